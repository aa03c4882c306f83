# SPDX-License-Identifier: Apache-2.0
"""The Debian package as a file: built twice it is the same, it is small, and nothing is missing in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from booted import REPO

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb"),
    pytest.mark.skipif(not Path("/usr/bin/python3.11").exists(), reason="needs Debian 12's Python"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as scripts/install.sh does"),
]
MOST_MB = 30
IMPORTS = """
import importlib, pkgutil, sys
sys.path[:0] = [sys.argv[1]]
import parprof
names = [one.name for one in pkgutil.walk_packages(parprof.__path__, "parprof.")]
for name in names:
    if not name.endswith("__main__") and "opentelemetry" not in name:
        importlib.import_module(name)
assert len(names) > 300
import capstone, psutil, prometheus_client, symbolic
from google.protobuf import message
assert all("site-packages" in sys.modules[name].__file__ for name in ("rich", "symbolic", "capstone", "psutil"))
from rich.console import Console
from rich.table import Table
table = Table("a")
table.add_row("[b]x[/b]")
Console().print(table)
Console().print({"a": [1, 2]})
assert next(capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm(b"\\x90", 0)).mnemonic == "nop"
assert symbolic.Archive.open(sys.argv[2]).object_count == 1
assert psutil.Process().name()
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two, built one after the other from two copies of the sources at different places."""
    out = []
    for name in ("first", "another-place"):
        directory = tmp_path_factory.mktemp(name)
        source = directory / "source"
        source.mkdir()
        for part in ("scripts", "systemd", "daemon", "bpf", "instrument", "docs", "packaging"):
            shutil.copytree(REPO / part, source / part, copy_function=shutil.copy)
        for part in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copy(REPO / part, source / part)
        built = subprocess.run(
            [source / "packaging/deb/build.sh", directory / "out"], check=True, capture_output=True, text=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, timeout=1200,
        )  # fmt: skip
        out.append(Path(built.stdout.strip().splitlines()[-1]))
    return out


def test_two_builds_are_the_same(packages: list[Path]) -> None:
    assert packages[0].read_bytes() == packages[1].read_bytes()


def test_it_is_small_and_whole(packages: list[Path], tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", packages[0], tmp_path], check=True)
    told_kb = re.search("Installed-Size: ([0-9]+)", (tmp_path / "DEBIAN/control").read_text())
    assert told_kb and int(told_kb[1]) * 1024 < MOST_MB * 1e6
    (site,) = tmp_path.glob("usr/lib/parprof/lib/python3.*/site-packages")
    library = next(site.glob("symbolic/*.so"))
    subprocess.run(["/usr/bin/python3", "-s", "-B", "-c", IMPORTS, site, library], check=True)
    assert sorted(path.name for path in (tmp_path / "usr/lib/parprof/bin").iterdir()) == [
        "parprof", "parprofd", "python", "python3", "python3.11",
    ]  # fmt: skip
    pages = [path for path in tmp_path.glob("usr/share/man/man*/*")]
    assert {"parprof.1.gz", "parprof-scale.1.gz", "parprofd.8.gz"} <= {path.name for path in pages}
    assert all(path.suffix == ".gz" and path.read_bytes()[3:8] == bytes(5) for path in pages), (
        "no name, no time"
    )
    names = {path.name for path in site.iterdir()}
    assert not names & {"pip", "setuptools", "pkg_resources", "pygments", "tests"}
    assert not list(tmp_path.rglob("__pycache__")), "made by postinst"
    licences = [path for path in site.rglob("*") if path.name.upper().startswith(("LICEN", "COPYING"))]
    assert len(licences) >= 8
    sbom = json.loads((tmp_path / "usr/share/doc/parprofd/sbom.cdx.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    # with byte code, as it is when it is installed
    subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", site], check=True)
    size = sum(
        path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()
    )
    print(f"{packages[0].stat().st_size / 1e6:.1f} MB packed, {int(told_kb[1]) * 1.024e-3:.1f} MB installed, "
          f"{size / 1e6:.1f} MB with byte code", file=sys.stderr)  # fmt: skip
    assert size < 1.1 * MOST_MB * 1e6
    where = str(packages[0].parent.parent).encode()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and where in path.read_bytes()]
