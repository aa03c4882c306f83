#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes packaging/python/*.lock: the Python packages that are installed, each with the hashes of its files.

    scripts/lock.py            the newest versions that pyproject.toml allows
    scripts/lock.py --check    for a release: whether the index has these versions still, with these hashes

Only PyPI is asked, by pip, whatever pip's configuration says; what pip is told there is the only source of hashes.
Wheels alone, for x86-64 and each Python of PYTHONS. scripts/install.sh installs nothing else (`--require-hashes`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "packaging/python"
INDEX = "https://pypi.org/simple"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
"""Of Debian 12 and later."""
HEAD = "# Written by scripts/lock.py; `scripts/lock.py --check` compares it with the index.\n"


@dataclass
class Package:
    """One package of a lock file."""

    version: str
    licence: str = ""
    hashes: set[str] = field(default_factory=set)


Lock = dict[str, Package]


def wanted() -> dict[str, list[str]]:
    """What each lock file is for, as pip's requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {"requirements": project["project"]["dependencies"], "build": project["build-system"]["requires"]}


def resolve(requirements: list[str], python: str) -> list[dict[str, Any]]:
    """What pip would install for a Python version, as its report says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    # Where the certificates are is this machine's business; where packages are is not.
    environment |= {name: os.environ[name] for name in ("PIP_CERT", "PIP_PROXY") if name in os.environ}
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--python-version",
            python,
            "--implementation",
            "cp",
            "--index-url",
            INDEX,
            "--target",
            directory,
            "--report",
            f"{directory}/report",
        ]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        if cert := environment.pop("PIP_CERT", ""):
            command += ["--cert", cert]
        subprocess.run([*command, *requirements], check=True, env=environment, stdout=subprocess.DEVNULL)
        found: list[dict[str, Any]] = json.loads(Path(directory, "report").read_text())["install"]
        return found


def licence_of(metadata: dict[str, Any]) -> str:
    """As the package says it, in one line."""
    said = metadata.get("license_expression") or ""
    classified = [
        one.rpartition(" :: ")[2] for one in metadata.get("classifier", ()) if one.startswith("License ::")
    ]
    said = said or ", ".join(classified) or str(metadata.get("license") or "").strip().partition("\n")[0]
    return re.sub(r"[^\x20-\x7e]", "", said)[:80]


def normal(name: str) -> str:
    """The name of a package, as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(requirements: list[str]) -> Lock:
    """Versions for the oldest Python, and hashes for all."""
    out: Lock = {}
    for python in PYTHONS:
        pinned = [f"{name}=={package.version}" for name, package in out.items()]
        for one in resolve(pinned or requirements, python):
            metadata, archive = one["metadata"], one["download_info"]["archive_info"]
            name = normal(metadata["name"])
            package = out.setdefault(name, Package(metadata["version"], licence_of(metadata)))
            if package.version != metadata["version"]:
                raise SystemExit(f"lock: {name} would have two versions, depending on Python's")
            package.hashes.add(f"sha256:{archive['hashes']['sha256']}")
    return out


def text_of(packages: Lock) -> str:
    """The lock file, as pip reads it."""
    lines = [HEAD]
    for name, package in sorted(packages.items()):
        hashes = "".join(f" \\\n    --hash={one}" for one in sorted(package.hashes))
        lines.append(f"# licence: {package.licence}\n{name}=={package.version}{hashes}\n")
    return "".join(lines)


def read(text: str) -> Lock:
    """The packages of a lock file."""
    out: Lock = {}
    licence = ""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("# licence: "):
            licence = line.removeprefix("# licence: ")
        elif line and not line.startswith("#"):
            pinned, *hashes = line.split()
            name, _, version = pinned.partition("==")
            out[name] = Package(version, licence, {one.removeprefix("--hash=") for one in hashes})
    return out


def differences(here: Lock, there: Lock) -> list[str]:
    """What is not on the index as the lock file has it."""
    out = []
    for name in sorted(here.keys() | there.keys()):
        if name not in there:
            out.append(f"{name} is not needed any more")
        elif name not in here:
            out.append(f"{name} is missing in the lock file")
        elif here[name].hashes != there[name].hashes:
            out.append(f"{name} {here[name].version} has other files on the index")
    return out


def main() -> int:
    """Returns the exit code: 1 where a check fails."""
    parser = argparse.ArgumentParser(description="Writes or checks the lock files of Python packages.")
    parser.add_argument("--check", action="store_true", help="compare with the index; write nothing")
    check = parser.parse_args().check
    problems = []
    LOCKS.mkdir(parents=True, exist_ok=True)
    for name, requirements in wanted().items():
        path = LOCKS / f"{name}.lock"
        if check:
            here = read(path.read_text())
            pinned = [f"{package}=={one.version}" for package, one in here.items()]
            problems += [f"{path.name}: {one}" for one in differences(here, lock([*pinned, *requirements]))]
        else:
            path.write_text(text_of(lock(requirements)))
    for problem in problems:
        print(f"lock: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
