# SPDX-License-Identifier: Apache-2.0
"""The maps of the code name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PACKAGE = REPO / "daemon/parprof"


def place_of(path: str) -> Path:
    """What a path in the documents means: those of the package are relative to it."""
    return REPO / path if path.startswith(("bpf/", "daemon/", "tests/", "docs/")) else PACKAGE / path


@pytest.mark.parametrize("document", ["docs/internals.md", "docs/glossary.md"])
def test_files_that_are_named_are_there(document: str) -> None:
    text = (REPO / document).read_text()
    named = set(re.findall(r"`([\w/]+(?:\.bpf)?\.(?:py|c|h)|[\w/]+/)`", text))
    assert named
    assert not [path for path in named if not place_of(path).exists()]
    links = re.findall(r"\]\(([\w./-]+\.md)\)", text)
    assert links and all((REPO / "docs" / link).exists() for link in links)


def test_functions_that_are_named_are_in_their_file() -> None:
    """A path, then names: `kernel/counts.py`, `CountTable.take`."""
    text = (REPO / "docs/internals.md").read_text()
    found = 0
    for path, names in re.findall(r"`([\w/]+(?:\.bpf)?\.(?:py|c|h))`((?:, `[A-Za-z_.]+`)+)", text):
        source = place_of(path).read_text()
        for name in re.findall(r"`([A-Za-z_.]+)`", names):
            if "/" in name or name.endswith((".c", ".py", ".h")):
                continue
            found += 1
            for part in name.split("."):
                assert re.search(rf"(?m)\b{part}\b", source), f"{path}: {name}"
                assert path.endswith((".c", ".h")) or re.search(rf"\b(def|class) {part}\b", source), name
    assert found > 25


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_maps_are_found(document: str) -> None:
    text = (REPO / document).read_text()
    assert "docs/internals.md" in text and "docs/glossary.md" in text
