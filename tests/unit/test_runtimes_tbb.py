# SPDX-License-Identifier: Apache-2.0
"""What the agent for oneTBB says about libraries and names, and about those of the library of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compiled import compile_once
from parprof.files.elf import ElfFile
from parprof.runtimes import agent_for_library
from parprof.runtimes.onetbb import OneTbb
from parprof.symbols.names import readable

LIBTBB = Path("/usr/lib/x86_64-linux-gnu/libtbb.so.12")
EXECUTE = (
    "tbb::detail::d1::start_for<tbb::detail::d1::blocked_range<int>, solve(int)::{lambda(int)#1}, "
    "tbb::detail::d1::auto_partitioner const>::execute(tbb::detail::d1::execution_data&)"
)


@pytest.mark.parametrize(
    ("library", "known"),
    [
        ("libtbb.so.12", True), ("libtbb.so.2", True), ("libtbb12.so", True), ("libtbb_12.so", True),
        ("libtbb-4f2a1b3c.so.12.8", True), ("libtbbmalloc.so.2", False), ("libtbbmalloc_proxy.so.2", False),
        ("libtbbbind_2_5.so.3", False), ("mylibtbb.so", False),
    ],
)  # fmt: skip
def test_recognised_by_base_name(library: str, known: bool) -> None:
    agent = agent_for_library(library)
    assert (agent is not None and agent.name == "onetbb") == known


@pytest.mark.parametrize(
    ("name", "file", "owned"),
    [
        (EXECUTE, "", True),
        ("tbb::detail::d2::function_invoker<solve()::{lambda()#1}>::execute(tbb::detail::d1::task&)", "", True),
        ("tbb::interface9::internal::start_for<R, B, P>::execute()", "", True),
        ("non-virtual thunk to tbb::detail::d1::task::cancel()", "", True),
        ("run_body", "/usr/include/oneapi/tbb/parallel_for.h", True),
        ("operator()", "/opt/tbb-2020/include/tbb/parallel_for.h", True),
        ("solve(int)::{lambda(int)#1}::operator()(int) const", "/home/me/solve.cpp", False),
        ("solve(int)::{lambda(tbb::detail::d1::blocked_range<int> const&)#1}::operator()(int) const", "", False),
        ("my::Body<tbb::detail::d1::blocked_range<int> >::operator()(tbb::detail::d1::blocked_range<int>&)", "", False),
        ("my_tbb::run()", "/home/me/tbb/run.cpp", False),
        ("operator()", "/home/me/src/tbb/body.h", False),
    ],
)  # fmt: skip
def test_owns(name: str, file: str, owned: bool) -> None:
    assert OneTbb().owns(name, "program", file) == owned


def test_owns_the_library_and_nothing_of_libc() -> None:
    assert OneTbb().owns("", "libtbb.so.12")
    assert not OneTbb().owns("clone3", "libc.so.6")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tbb::detail::r1::spawn(tbb::detail::d1::task&, tbb::detail::d1::task_group_context&)", "create"),
        ("tbb::detail::d1::task_group::run<solve()::{lambda()#1}>(solve()::{lambda()#1}&&)", "create"),
        ("tbb::detail::r1::wait(tbb::detail::d1::wait_context&, tbb::detail::d1::task_group_context&)", "sync"),
        ("tbb::detail::r1::execute_and_wait(tbb::detail::d1::task&)", "sync"),
        ("tbb::detail::d1::queuing_mutex::scoped_lock::acquire(tbb::detail::d1::queuing_mutex&)", "sync"),
        ("tbb::detail::r1::market::process(tbb::detail::r1::rml::job&)", "schedule"),
        ("tbb::detail::r1::arena::process(tbb::detail::r1::thread_data&)", "schedule"),
        (EXECUTE, "schedule"),
        ("tbb::detail::r1::cache_aligned_deallocate(void*)", "other"),
        ("solve_and_wait()", "other"),
    ],
)  # fmt: skip
def test_kinds_of_overhead(name: str, kind: str) -> None:
    assert OneTbb().overhead(name) == kind


def test_no_probes() -> None:
    assert not OneTbb.hooks
    assert OneTbb.source == "sampled"


def test_exports_of_the_library() -> None:
    """What programs import of this library is recognised as imports, and as TBB's own by name."""
    if not LIBTBB.exists():
        pytest.skip("libtbb-dev is not installed: apt install libtbb-dev")
    agent = OneTbb()
    with ElfFile.open(str(LIBTBB)) as elf:
        names = {symbol.name for symbol in elf.symbols() if symbol.name.startswith("_ZN3tbb6detail2r1")}
    assert len(names) > 50
    for name in names:
        assert agent.imports.match(name)
        assert agent.owns(readable(name), "program")


def test_templates_in_a_program(tmp_path: Path) -> None:
    """All that a compiler makes of TBB's headers is TBB's; the bodies are the author's."""
    if not LIBTBB.exists() or not shutil.which("g++"):
        pytest.skip("g++ or libtbb-dev is not installed: apt install g++ libtbb-dev")
    text = (
        "#include <tbb/parallel_for.h>\n#include <tbb/task_group.h>\n"
        "namespace mine { struct Body { void operator()(const tbb::blocked_range<int> &r) const; };\n"
        '[[gnu::noinline]] void Body::operator()(const tbb::blocked_range<int> &r) const { asm("" :: "r"(&r)); } }\n'
        "int main() { tbb::parallel_for(tbb::blocked_range<int>(0, 9), mine::Body());\n"
        'tbb::task_group g; g.run([] { asm(""); }); g.wait(); }\n'
    )
    compile_once(["g++", "-O0", "-x", "c++", "-", "-ltbb", "-o", tmp_path / "p"], text=text)
    agent = OneTbb()
    with ElfFile.open(str(tmp_path / "p")) as elf:
        names = {readable(symbol.name) for symbol in elf.symbols()}
        assert any(agent.imports.match(name) for name in elf.undefined())
    owned = {name for name in names if agent.owns(name, "p")}
    assert len(owned) > 20
    assert any("start_for" in name and "::execute(" in name for name in owned)
    assert {name for name in names if name.startswith(("mine::", "main"))}.isdisjoint(owned)
