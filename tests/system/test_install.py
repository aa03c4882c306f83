"""The install script, in the machine that it was installed in; and the Debian package."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from booted import REPO, Machine

pytestmark = pytest.mark.beside

SHARED = (
    "man/man1/parprof.1",
    "man/man1/parprof-record.1",
    "man/man8/parprofd.8",
    *(f"bash-completion/completions/{name}" for name in ("parprof", "parprofd")),
    *(f"zsh/site-functions/_{name}" for name in ("parprof", "parprofd")),
    *(f"fish/vendor_completions.d/{name}.fish" for name in ("parprof", "parprofd")),
)
"""Man pages and completions."""
CONFIG = "/etc/parprofd/parprofd.toml"
COPIED = (
    "scripts",
    "systemd",
    "daemon",
    "bpf",
    "instrument",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "docs",
)


@pytest.fixture
def machine(booted: Machine) -> Iterator[Machine]:
    """With the sources in /run/source."""
    source = booted.root / "run/source"
    if not source.exists():
        source.mkdir()
        for name in (*COPIED, "packaging"):
            subprocess.run(["cp", "-R", str(REPO / name), str(source)], check=True)
    yield booted


def test_again_it_keeps_what_was_edited(machine: Machine) -> None:
    sample = (REPO / "systemd/parprofd.toml").read_text()
    machine.write(CONFIG, sample + "# edited\n")
    again = machine.run("/run/source/scripts/install.sh", "--no-packages", network=True)
    assert "kept your" in again.stderr
    assert (machine.root / CONFIG[1:]).read_text() == sample + "# edited\n"
    assert (machine.root / (CONFIG + ".new")[1:]).read_text() == sample
    assert machine.run("parprof", "--version").stdout.startswith("parprof ")
    for path in SHARED:
        assert (machine.root / "usr/local/share" / path).stat().st_size > 1000, path
    assert machine.run("parprofd", "--version").stdout.startswith("parprofd ")
    unit = machine.run("systemctl", "cat", "parprofd.service").stdout
    assert "ExecStart=/usr/local/bin/parprofd" in unit
    verified = machine.run("systemd-analyze", "verify", "parprofd.service", "parprofd.socket")
    assert verified.stderr == ""


def test_it_overwrites_nothing_of_others(machine: Machine) -> None:
    machine.write("/run/bin/parprof", "mine")
    refused = machine.run(
        "/run/source/scripts/install.sh", "--no-packages", "--bindir", "/run/bin", check=False
    )
    assert refused.returncode == 1 and "in the way" in refused.stderr
    machine.write("/run/prefix/x", "mine")
    refused = machine.run("/run/source/scripts/install.sh", "--no-packages", "--prefix", "/run/prefix",
                          "--bindir", "/run/other", check=False)  # fmt: skip
    assert refused.returncode == 1 and "no virtual environment" in refused.stderr
    usage = machine.run("/run/source/scripts/install.sh", "--what", check=False)
    assert usage.returncode == 2 and "--uninstall" in usage.stderr


@pytest.mark.slow
def test_the_debian_package_installs_and_goes(machine: Machine) -> None:
    missing = machine.run("dpkg-query", "-W", "python3-bpfcc", "linux-libc-dev", check=False).returncode
    assert not missing, "scripts/install.sh was to install these"
    built = machine.run(
        "env", "DPKG_DEB_COMPRESSOR_TYPE=gzip", "/run/source/packaging/deb/build.sh", "/run/deb", network=True
    ).stdout.strip()
    listed = machine.run("dpkg-deb", "--contents", built).stdout
    for path in (
        "./usr/bin/parprofd",
        "./lib/systemd/system/parprofd.service",
        "./usr/lib/parprof/bin/parprofd",
        "./usr/share/man/man8/parprofd.8.gz",
        "./usr/share/man/man1/parprof-record.1.gz",
        "./usr/share/zsh/site-functions/_parprofd",
    ):
        assert path in listed
    machine.run("/run/source/scripts/install.sh", "--uninstall", "--purge")
    assert not (machine.root / "opt/parprof").exists()
    assert not (machine.root / "usr/local/bin/parprof").is_symlink()
    assert not [path for path in SHARED if (machine.root / "usr/local/share" / path).exists()]
    try:
        machine.run("dpkg", "--install", built)
        assert machine.run("/usr/bin/parprofd", "--check-config").stdout == f"{CONFIG}: all is well\n"
        machine.systemctl("start", "parprofd")
        assert machine.systemctl("is-active", "parprofd") == "active"
        machine.run("dpkg", "--purge", "parprofd")
        assert machine.systemctl("is-active", "parprofd", check=False) != "active"
        for path in ("usr/lib/parprof", "etc/parprofd", "var/lib/parprofd", "usr/bin/parprofd"):
            assert not (machine.root / path).exists(), path
    finally:
        machine.run("dpkg", "--purge", "parprofd", check=False)
        machine.run("/run/source/scripts/install.sh", "--no-packages", network=True)
