"""Imports go one way, and only one module knows bcc."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "daemon/parprof"
# A module imports only from its own layer or those above it in this list.
LAYERS = (
    ("errors", "model", "untrusted", "closing", "descriptors", "heap", "cachedir", "pprof_pb2", ""),
    ("elf_image", "elf_symbols", "elf", "codescan", "mounts", "openfile", "workers"),
    ("kernel", "processes", "mapsline", "dso", "dsocache", "loadmap", "runtimes"),
    (
        "symbols",
        "staticruntime",
        "waitcode",
        "filefacts",
        "seeding",
        "sharedprobes",
        "placedprobes",
        "probing",
        "unwind",
        "loops",
        "epochs",
        "interpreters",
        "processmemory",
    ),
    (
        "sources",
        "prices",
        "regionrate",
        "callpath",
        "logical",
        "cct",
        "views",
        "attribution",
        "target",
        "stops",
        "cost",
    ),
    ("session", "exporters"),
    ("addresses",),
    ("rows",),
    ("assemble", "progress"),
    ("service",),
    ("commands",),
    ("__main__",),
)


def layer_of(module: str) -> int:
    """Index of the layer of ``parprof.X...``."""
    first = module.split(".")[1] if "." in module else ""
    return next(
        index for index, names in enumerate(LAYERS) if first in names or (first == "spawn" and index == 1)
    )


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "parprof")
    return found


def modules() -> list[tuple[str, Path]]:
    out = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        out.append((".".join(parts).removesuffix(".__init__"), path))
    assert len(out) > 30
    return out


def test_imports_go_one_way() -> None:
    for module, path in modules():
        for imported in imports(path):
            if imported.startswith("parprof.") and imported != "parprof.__version__":
                assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}"


def test_only_the_compiler_child_knows_bcc() -> None:
    for module, path in modules():
        if (
            "bcc" in {name.split(".")[0] for name in imports(path)}
            or 'import_module("bcc")' in path.read_text()
        ):
            assert module == "parprof.kernel.bcc_import"
    users = [module for module, path in modules() if "parprof.kernel.bcc_import" in imports(path)]
    assert users == ["parprof.kernel.compiler"]
