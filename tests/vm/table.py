#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `tests/vm/guest.py` found on each kernel, as Markdown: python tests/vm/table.py OUT [KERNEL...]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROWS = ("check", "record gomp", "record omp", "record pthread", "attach", "daemon", "demo", "tests")


def cell(name: str, found: dict[str, Any]) -> str:
    """What to say of a step."""
    if not found:
        return "not run"
    if not found["passed"]:
        return "**failed**"
    said = [f"{found['seconds']} s"] if "seconds" in found else []
    if "ratios" in found:
        said += [f"{function} {measured} ({true})" for function, (measured, true) in found["ratios"].items()]
    said += [f"{found[key]} {what}" for key, what in (("descriptors", "descriptors"), ("passed_tests", "passed"))
             if key in found]  # fmt: skip
    if "detach_s" in found:
        said.append(f"detached after {found['detach_s']} s")
    return ", ".join(said) or "passed"


def main() -> int:
    """Print the table."""
    out = Path(sys.argv[1])
    results = {}
    for kernel in sys.argv[2:] or sorted(path.name for path in out.iterdir()):
        file = out / kernel / "result.json"
        results[kernel] = json.loads(file.read_text()) if file.is_file() else {}
    print("| | " + " | ".join(results) + " |")
    print("| --- |" + " --- |" * len(results))
    for row in ROWS:
        print(f"| {row} | " + " | ".join(cell(row, found.get(row, {})) for found in results.values()) + " |")
    names = next((list(found["programs"]) for found in results.values() if found.get("programs")), [])
    for name in names:
        if name == "passed":
            continue
        cells = []
        for found in results.values():
            facts = found.get("programs", {}).get(name)
            cells.append(
                f"{facts['instructions']:,}, {facts['seconds']} s" if facts and facts["instructions"] else "-"
            )
        print(f"| {name}: instructions verified | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
