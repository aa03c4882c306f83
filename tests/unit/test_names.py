# SPDX-License-Identifier: Apache-2.0
"""One meaning each: no public class or type of the product has the name of another one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "daemon/parprof"


def public_types(source: str) -> Iterator[str]:
    """The classes and the aliases of types that a module defines for others."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_what_defines_types_is_found() -> None:
    source = "class Part: pass\nPair = tuple[int, int]\n_Own = int\nMOST = 3\npart = Part()"
    assert list(public_types(source)) == ["Part", "Pair"]


def test_no_two_types_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.stem.endswith("_pb2"):
            for name in public_types(path.read_text()):
                places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
