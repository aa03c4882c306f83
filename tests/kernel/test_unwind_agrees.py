# SPDX-License-Identifier: Apache-2.0
"""Our walk and the kernel's walk by frame pointers, at the very same samples of programs that have such.

The programs for the kernel are compiled from a copy with one addition, which keeps both stacks. A frame pointer
walk misses the caller of a function that has not set up its frame yet, or never does; all else must agree.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.files.elf import ElfFile
from parprof.kernel import bpf, engine, objects
from parprof.session.session import Session

pytestmark = pytest.mark.beside

OURS, THEIRS = 128, 127
PAIR = struct.Struct(f"<4I{OURS}Q{THEIRS}Q")
ADDRESS = (1 << 47) - 1
"""Without the flag of interrupted frames."""
ADDITION = """
struct fp_pair {
	u32 depth, end, fp_bytes, unused;
	u64 pc[128], fp[127];
};
BPF_TABLE("percpu_array", u32, struct fp_pair, fp_scratch, 1);
BPF_TABLE("hash", u64, struct fp_pair, fp_pairs, 8192);

static __always_inline void keep_both(struct bpf_perf_event_data *ctx, struct walk *w)
{
	u32 zero = 0;
	struct fp_pair *p = fp_scratch.lookup(&zero);
	u64 now = bpf_ktime_get_ns();
	s32 bytes;

	if (!p || w->depth > 128)
		return;
	bytes = bpf_get_stack(ctx, p->fp, sizeof(p->fp), BPF_F_USER_STACK);
	p->fp_bytes = bytes < 0 ? 0 : bytes;
	p->depth = w->depth;
	p->end = w->end;
	bpf_probe_read_kernel(p->pc, sizeof(p->pc), w->record.pc);
	fp_pairs.update(&now, p);
}

"""
PROGRAM = """
#include <time.h>
volatile long sink;
#define NOINLINE __attribute__((noinline, noclone))
NOINLINE long leaf(long n) { long x = n; for (long i = 0; i < 3000; i++) x = x * 31 + i; sink = x; return x; }
NOINLINE long middle(long (*f)(long), long n) { long x = f(n); sink += x; return x + 1; }
NOINLINE long array(int depth, int n);
NOINLINE long plain(int depth)
{
    long x = depth > 0 ? depth % 3 ? plain(depth - 1) : array(depth - 1, depth % 17 + 1) : middle(leaf, depth);
    sink += x;
    return x;
}
NOINLINE long array(int depth, int n)
{
    volatile long values[n];
    values[n - 1] = plain(depth - 1);
    return values[n - 1] + leaf(n);
}
int main(int c, char **v)
{
    while (clock() < 3 * CLOCKS_PER_SEC)
        plain(30);
    return 0;
}
"""


@pytest.fixture(scope="module")
def both_walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The compiled object with the addition."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(profiling.ROOT / "bpf", tree / "bpf")
    shutil.copytree(profiling.ROOT / "daemon/parprof", tree / "daemon/parprof")
    source = tree / "bpf/unwind.bpf.c"
    before, begin, rest = source.read_text().partition("int on_unwind(")
    body, finish, after = rest.partition("\tif (w->compares) {")
    assert begin and finish and "\n}" not in body
    source.write_text(f"{before}{ADDITION}{begin}{body}\tkeep_both(ctx, w);\n{finish}{after}")
    subprocess.run(
        [sys.executable, "-P", "-m", "parprof.kernel.compiler", str(tree / "object.json")],
        check=True, env={**os.environ, "PYTHONPATH": str(tree / "daemon")}, timeout=120,
    )  # fmt: skip
    loaded: dict[str, Any] = json.loads((tree / "object.json").read_text())
    return loaded


@contextmanager
def both(compiled: dict[str, Any], command: list[str]) -> Iterator[tuple[Session, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "get_object", lambda: compiled)
        with engine.BpfKernel(["cpu-clock"], 997) as kernel:
            session = Session(kernel)
            try:
                child = Child(command)
                session.watch(child.pid, follow=True, stop=True)
                child.release()
                profiling.run_until(session, lambda: child.poll() is not None)
                session.finish()
                assert child.wait() == 0
                yield session, child.pid
            finally:
                session.close()


class Function:
    """Which of a program's own functions an address is in; empty elsewhere."""

    def __init__(self, session: Session, pid: int, program: Path) -> None:
        self._target = [target for target in session.targets.values() if target.pid == pid][-1]
        self._program = program.name
        with ElfFile.open(str(program)) as elf:
            self._symbols = sorted((s.value, s.value + s.size, s.name) for s in elf.symbols() if s.size)

    def __call__(self, address: int, is_return: bool) -> str:
        load_map = self._target.load_map
        found = load_map.find(address) if load_map else None
        if found is None or found[0].name != self._program:
            return ""
        at = bisect_right(self._symbols, (found[1] - is_return, 1 << 64)) - 1
        start, stop, name = self._symbols[at]
        return name if start <= found[1] - is_return < stop else ""


def up_to_main(frames: list[int], function: Function) -> list[int] | None:
    """The frames from the leaf up to main; None if main is not among them."""
    for at, address in enumerate(frames):
        if function(address, at > 0) == "main":
            return frames[: at + 1]
    return None


def compare(ours: list[int], theirs: list[int] | None) -> str:
    if theirs == ours:
        return "same"
    if theirs is None:
        return "frame pointers miss main"
    if theirs == ours[:1] + ours[2:]:
        return "frame pointers miss the direct caller"
    return "other"


@pytest.mark.parametrize("kind", ["recursion", "arrays"])
def test_no_older_frame_disagrees(kind: str, both_walks: dict[str, Any], tmp_path: Path) -> None:
    program = profiling.BUILD / "stacks.fp"
    command = [str(program), "recursion", "40", "3"]
    if kind == "arrays":
        program = tmp_path / "arrays"
        (tmp_path / "arrays.c").write_text(PROGRAM)
        flags = ["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]
        subprocess.run(["gcc", *flags, "-o", str(program), str(tmp_path / "arrays.c")], check=True)
        command = [str(program)]
    with both(both_walks, command) as (session, pid):
        maps, definitions = session.kernel._object.maps, session.kernel._object.definitions
        function = Function(session, pid, program)
        found = Counter[str]()
        others = []
        for _, raw in bpf.map_read_all(maps["fp_pairs"], 8, definitions["fp_pairs"]["value_size"]):
            depth, _, fp_bytes, _, *words = PAIR.unpack(raw)
            ours = up_to_main([word & ADDRESS for word in words[: min(depth, OURS)]], function)
            theirs = words[OURS : OURS + fp_bytes // 8]
            if ours is None or not function(ours[0], False):
                continue  # before main and in the C library, which has no frame pointers
            result = compare(ours, up_to_main(theirs, function))
            found[result] += 1
            if result == "other":
                others.append([(function(a, True), hex(a)) for a in (*ours[:4], 0, *theirs[:4])])
        total = sum(found.values())
        print(kind, dict(found))
        assert total > 200
        assert found["same"] + found["frame pointers miss the direct caller"] >= 0.99 * total, found
        assert found["other"] == 0, others[:3]


def test_the_comparison_can_fail() -> None:
    ours = [1, 2, 3, 4]
    assert compare(ours, [1, 2, 3, 4]) == "same"
    assert compare(ours, [1, 3, 4]) == "frame pointers miss the direct caller"
    assert {compare(ours, wrong) for wrong in ([1, 4], [1, 2, 9, 4], [1, 2, 3, 9, 4], [9, 2, 3, 4])} == {
        "other"
    }
