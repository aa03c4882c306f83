# SPDX-License-Identifier: Apache-2.0
"""The lock files of Python packages, and the bill of materials that is made of them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "packaging/python"


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts/lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["requirements", "build"])
def test_all_that_the_project_asks_for_is_locked(lock: ModuleType, name: str) -> None:
    text = (LOCKS / f"{name}.lock").read_text()
    packages = lock.read(text)
    asked = {re.split(r"[^\w.-]", one)[0] for one in lock.wanted()[name]}
    assert {lock.normal(one) for one in asked} <= packages.keys()
    for package in packages.values():
        assert package.version and package.hashes
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in package.hashes)
    assert lock.text_of(packages) == text
    assert "://" not in text, "no host: pip's configuration says where packages are"


def test_wheels_are_there_for_each_python(lock: ModuleType) -> None:
    """One for each, one for all, or one for several by the stable interface (of which pydemumble's second is)."""
    packages = lock.read((LOCKS / "requirements.lock").read_text())
    files = {name: len(package.hashes) for name, package in packages.items()}
    assert files.pop("pydemumble") == 2
    assert set(files.values()) <= {1, len(lock.PYTHONS)}


def test_nothing_is_installed_but_what_is_locked() -> None:
    script = (ROOT / "scripts/install.sh").read_text()
    installs = re.findall(r"(?m)^ *(?:PYTHONPATH=\S+ )?pip (?:install|wheel) .*", script)
    assert len(installs) == 5
    for one in installs:
        assert "--require-hashes" in one or "--no-index" in one or one == installs[-1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(">=" in one for one in project["dependencies"]), "what is allowed is said there"


def test_what_differs_from_the_index_is_told(lock: ModuleType) -> None:
    here = {"a": lock.Package("1", "", {"sha256:1"}), "b": lock.Package("1", "", {"sha256:2"})}
    there = {"a": lock.Package("1", "", {"sha256:3"}), "c": lock.Package("1", "", {"sha256:2"})}
    assert lock.differences(here, here) == []
    assert lock.differences(here, there) == [
        "a 1 has other files on the index", "b is not needed any more", "c is missing in the lock file",
    ]  # fmt: skip


def test_bill_of_materials(lock: ModuleType) -> None:
    made = [
        subprocess.run([sys.executable, ROOT / "scripts/sbom.py"], capture_output=True, check=True).stdout
        for _ in "12"
    ]
    assert made[0] == made[1]
    bom: dict[str, Any] = json.loads(made[0])
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    refs = [one["bom-ref"] for one in bom["components"]]
    assert len(refs) == len(set(refs)) and bom["dependencies"][0]["dependsOn"] == refs
    listed = {one["name"]: one for one in bom["components"] if one["purl"].startswith("pkg:pypi/")}
    packages = lock.read((LOCKS / "requirements.lock").read_text())
    assert listed.keys() == packages.keys()
    for name, package in packages.items():
        (reference,) = listed[name]["externalReferences"]
        assert {f"sha256:{one['content']}" for one in reference["hashes"]} == package.hashes
    assert "pkg:deb/debian/python3-bpfcc" in refs
