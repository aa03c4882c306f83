#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what an installation consists of, as CycloneDX 1.5 in JSON: scripts/sbom.py [FILE]

Made of packaging/python/requirements.lock and the Debian packages that scripts/install.sh asks for. The same sources
give the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from lock import LOCKS, read  # noqa: E402

_SPDX = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*")


def version() -> str:
    """Of parprof."""
    found = re.search('__version__ = "(.*)"', (ROOT / "daemon/parprof/__init__.py").read_text())
    assert found is not None
    return found[1]


def debian_packages() -> list[str]:
    """Those that an installation needs."""
    found = re.search(r"for package in (.*); do", (ROOT / "scripts/install.sh").read_text())
    assert found is not None
    return found[1].split()


def document() -> dict[str, Any]:
    """The bill of materials."""
    own = f"pkg:generic/parprofd@{version()}"
    components: list[dict[str, Any]] = []
    for name, package in sorted(read((LOCKS / "requirements.lock").read_text()).items()):
        purl = f"pkg:pypi/{name}@{package.version}"
        component: dict[str, Any] = {
            "type": "library", "bom-ref": purl, "name": name, "version": package.version, "purl": purl,
            "scope": "required",
            # one file of these is installed, depending on the Python version
            "externalReferences": [{
                "type": "distribution", "url": f"https://pypi.org/project/{name}/{package.version}/",
                "hashes": [
                    {"alg": "SHA-256", "content": one.removeprefix("sha256:")} for one in sorted(package.hashes)
                ],
            }],
        }  # fmt: skip
        if package.licence:
            kind = "id" if _SPDX.fullmatch(package.licence) and " " not in package.licence else "name"
            component["licenses"] = [{"license": {kind: package.licence}}]
        components.append(component)
    for name in debian_packages():
        purl = f"pkg:deb/debian/{name}"
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "scope": "required",
             "description": "of the distribution, in its version"}
        )  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": own, "name": "parprofd", "version": version(), "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }  # fmt: skip


if __name__ == "__main__":
    text = json.dumps(document(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)
