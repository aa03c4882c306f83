"""Imports go one way, by folder, and only one module knows bcc."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "daemon/parprof"
# A folder (or a module that is in none) imports from itself and from the lines above its own.
LAYERS = (
    "patterns values",
    "units",
    "errors halving metrics newfile plans pprof_pb2 remembered resources untrusted wording",
    "model",
    "by_frame",
    "cache cct http_client workers",
    "attribution files kernel",
    "causes",
    "scale",
    "exporters process runtimes symbols",
    "loops",
    "languages logical probes unwind",
    "facts instruments jit",
    "input profile session",
    "calls timeline",
    "service",
    "commands",
    "__main__",
    "manuals prebuilt",
)
SERVICE_LAYERS = (
    "blame capabilities model log notify requests serving subuids",
    "accounts agreement folding kept_intervals kernel_stacks labels levels losses machine past",
    "control metrics open_intervals push recent selection",
    "groups http",
    "config",
    "footprint governor own_limits short_lived",
    "watching",
    "watchlist",
    "loop",
    "daemon",
    "main",
    "__main__",
)


def modules() -> dict[str, Path]:
    out = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        out[".".join(parts).removesuffix(".__init__")] = path
    assert len(out) > 30
    return out


MODULES = modules()


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & MODULES.keys()
            if inside - MODULES.keys():
                found.add(node.module)
    return frozenset(found)


def check(package: str, layers: tuple[str, ...]) -> None:
    layer = {name: index for index, line in enumerate(layers) for name in line.split()}
    depth = package.count(".") + 1
    used = set()
    for module, path in MODULES.items():
        if not module.startswith(package + "."):
            continue
        own = module.split(".")[depth]
        used.add(own)
        for imported in imports(path):
            if imported.startswith(package + "."):
                other = imported.split(".")[depth]
                assert own == other or layer[other] < layer[own], f"{module} imports {imported}"
    assert used == layer.keys(), "each folder has its place, and each place its folder"


def test_imports_go_one_way() -> None:
    check("parprof", LAYERS)


def test_imports_go_one_way_in_the_service() -> None:
    check("parprof.service", SERVICE_LAYERS)


def test_only_the_compiler_child_knows_bcc() -> None:
    for module, path in MODULES.items():
        if (
            "bcc" in {name.split(".")[0] for name in imports(path)}
            or 'import_module("bcc")' in path.read_text()
        ):
            assert module == "parprof.kernel.bcc_import"
    users = [module for module, path in MODULES.items() if "parprof.kernel.bcc_import" in imports(path)]
    assert users == ["parprof.kernel.compiler"]


def test_only_the_table_of_languages_knows_them() -> None:
    """A second language is a folder and a line in the table."""
    for module, path in MODULES.items():
        if module != "parprof.languages.front_ends":
            known = {
                name
                for name in imports(path)
                if name.count(".") >= 2 and name.startswith("parprof.languages.")
            }
            own = ".".join(module.split(".")[:3])
            others = {name for name in known if ".".join(name.split(".")[:3]) != own}
            assert others <= {"parprof.languages.front_ends"}, f"{module} imports {others}"
