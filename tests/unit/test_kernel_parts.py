"""The parts of parprof.kernel that need neither root nor BPF."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from parprof.errors import KernelUnsupported, UsageError
from parprof.kernel import perf_events
from parprof.kernel.compiler import OBJECT_HEADERS
from parprof.kernel.cookies import COOKIE_LEARN
from parprof.kernel.headers import make_tree
from parprof.kernel.layout import check_size, make_structure
from parprof.kernel.uprobes import Site

ROOT = Path(__file__).resolve().parents[2]


def test_layouts_are_built_from_descriptions() -> None:
    made = make_structure("sample", [["a", "u64"], ["b", "s32"], ["c", "u8[4]"], ["d", "char[8]"]])
    assert ctypes.sizeof(made) == 24
    value = made.from_buffer_copy(bytes(range(24)))
    assert value.b == 0x0B0A0908
    assert list(value.c) == [12, 13, 14, 15]
    check_size(made, 24)
    with pytest.raises(KernelUnsupported):
        check_size(made, 32)
    with pytest.raises(KernelUnsupported):
        make_structure("bad", [["a", "struct"]])


def test_python_constants_equal_the_header(tmp_path: Path) -> None:
    """The few numbers that Python must know are those of the headers that make up the contract."""
    from parprof import model
    from parprof import plans as memory
    from parprof.kernel import (
        activations,
        allocation_probe,
        call_counts,
        call_times,
        cookies,
        counters,
        file_tables,
        phases,
        process_entries,
        records,
        settings,
        stacks,
        store,
        trace,
        uprobes,
        verdicts,
    )
    from parprof.languages.cpython import layouts
    from parprof.logical import paths
    from parprof.model import ThreadState
    from parprof.plans import Edge
    from parprof.unwind import pages, placing

    expected = {
        "FOLLOW_CHILDREN": records.FOLLOW_CHILDREN, "STOP_AT_EXEC": records.STOP_AT_EXEC,
        "STOP_AT_LOAD": records.STOP_AT_LOAD, "HAS_RUNTIME": records.HAS_RUNTIME,
        "MAX_RUNTIME_RANGES": records.MAX_RUNTIME_RANGES, "MAX_USER_RANGES": records.MAX_USER_RANGES,
        "RECORD_EXEC": records.RECORD_EXEC,
        "RECORD_FORK": records.RECORD_FORK, "RECORD_EXIT": records.RECORD_EXIT,
        "RECORD_LEARNED": records.RECORD_LEARNED, "RECORD_LOAD_MAP": records.RECORD_LOAD_MAP,
        "RECORD_REPLACED": records.RECORD_REPLACED, "LOST_REASONS": len(counters.LOST_REASONS),
        **{f"LOST_{name.upper()}": number for number, name in enumerate(counters.LOST_REASONS)},
        **{f"END_{name.upper()}": number for number, name in enumerate(stacks.STACK_ENDS)},
        **{f"PYTHON_{name.upper()}": number for number, name in enumerate(stacks.PYTHON_ENDS)},
        **{f"STATE_{state.name}": state for state in ThreadState},
        "EDGE_ENTER_WORK": Edge.WORK, "EDGE_ENTER_WAIT": Edge.WAIT, "EDGE_ENTER_REGION": Edge.REGION,
        "EDGE_LEARN": Edge.LEARN, "EDGE_CREATE_THREAD": Edge.CREATE_THREAD, "EDGE_LOAD_MAP": Edge.LOAD_MAP,
        "EDGE_BEGIN": Edge.BEGIN, "EDGE_END": Edge.END, "EDGE_CREATE_TASK": Edge.CREATE_TASK,
        "EDGE_LOCK": Edge.LOCK, "EDGE_UNLOCK": Edge.UNLOCK, "EDGE_STEAL": Edge.STEAL,
        "EDGE_KINDS": counters._EDGE_KINDS,
        "COOKIE_FUNCTION_SHIFT": uprobes._FUNCTION_SHIFT,
        "COOKIE_INSTANCE_SHIFT": uprobes._INSTANCE_SHIFT, "COOKIE_ROOT_SHIFT": uprobes._ROOT_SHIFT,
        "COOKIE_INSIDE_SHIFT": uprobes._INSIDE_SHIFT, "COOKIE_DELTA_SHIFT": uprobes._DELTA_SHIFT,
        "FROM_LEAVES": records.FROM_LEAVES, "FROM_MEMORY": records.FROM_MEMORY,
        "CHECK_MEMORY": records.CHECK_MEMORY, "CACTUS": records.CACTUS, "BLAME_LOCKS": records.BLAME_LOCKS,
        "LETS_GO": records.LETS_GO, "LOADS_ONCE": records.LOADS_ONCE, "CREATORS_UNPROBED": records.CREATORS_UNPROBED,
        "AWAITS_UNKNOWN": model.AWAITS_UNKNOWN, "AWAITS_GIL": model.AWAITS_GIL,
        "AWAITS_TIME": model.AWAITS_TIME, "AWAITS_ANSWER": model.AWAITS_ANSWER,
        "AWAITS_PIPE": model.AWAITS_PIPE, "AWAITS_THAW": model.AWAITS_THAW, "NO_EVENT": model.NO_EVENT,
        "AWAITS_CHILD": model.AWAITS_CHILD, "AWAITS_FILE": model.AWAITS_FILE,
        "RECORD_CUT": records.RECORD_CUT, "MAX_WAIT_RANGES": records.MAX_WAIT_RANGES,
        "MAX_LIBC_RANGES": records.MAX_LIBC_RANGES, "MAX_SPIN_RANGES": records.MAX_SPIN_RANGES,
        "MAX_UNPROBED_RANGES": records.MAX_UNPROBED_RANGES, "MAX_KERNEL_FRAMES": paths.MAX_KERNEL_FRAMES,
        "GUESSED_ASLEEP": records.GUESSED_ASLEEP, "NO_RUNTIME": records.NO_RUNTIME,
        **{name: value for name, value in vars(records).items() if name.startswith("COMMAND_")},
        **{name: value for name, value in vars(cookies).items() if name.startswith("COOKIE_")},
        **{f"ROOT_{root.name}": root for root in memory.Root},
        **{f"PHASE_{kind.name}": kind for kind in phases.PhaseKind},
        "CALL_DEAR": call_counts.CALL_DEAR, "CALL_KNOWS_CALLER": call_counts.CALL_KNOWS_CALLER,
        "CALL_TIMED": call_counts.CALL_TIMED, "CALL_LEAVES": call_counts.CALL_LEAVES,
        "CALL_LANDS": call_counts.CALL_LANDS, "CALL_ROUTINE_SHIFT": call_counts.CALL_ROUTINE_SHIFT,
        f"(CALL_ROUTINE_MASK >= {call_times.MAX_ROUTINES})": True, "OPEN_TIME_SHIFT": call_times._TIME_SHIFT,
        f"(CALL_SITE_MASK >= {call_counts.MAX_SITES})": True,
        "COMPARED_FRAMES": activations.COMPARED_FRAMES,
        "STAT_LEFT_OUT": counters._LEFT_OUT, "HOOK_RUNS": settings._HOOK_RUNS, "COST_KINDS": len(records.Cost),
        **{f"COST_{kind.name}": kind for kind in records.Cost},
        "RECORD_SEEN": records.RECORD_SEEN, "RECORD_GLIMPSE": records.RECORD_GLIMPSE,
        "RECORD_CODE": stacks.RECORD_CODE, "RECORD_THREAD": trace._RECORD_THREAD,
        "RECORD_PATH": trace._RECORD_PATH, "RECORD_CONTEXT": stacks.RECORD_CONTEXT,
        "CONTEXT_UNKNOWN": stacks.CONTEXT_UNKNOWN, "VERDICT_DENIED": verdicts._DENIED,
        "MEMORY_TEAM": process_entries._TEAM, "MEMORY_WORKERS": process_entries._WORKERS,
        "MAX_HOPS": memory.MAX_HOPS, "MAX_WORKERS": memory.MAX_WORKERS,
        **{f"STAT_{name.upper()}": number for name, number in counters._STATISTICS.items()},
        "STAT_PYTHON": counters._PYTHON, "PYTHON_ENDS": len(counters.PYTHON_ENDS), "NOT_THERE": layouts.NOT_THERE,
        "ENTRY_EVERY_FRAME": layouts.EVERY_FRAME, "ENTRY_FLAG": layouts.ENTRY_FLAG,
        "ENTRY_OWNER": layouts.ENTRY_OWNER,
        "STAT_EDGES": counters._EDGES, "STAT_STACKS": counters._STACKS, "END_KERNEL": len(counters.STACK_ENDS),
        "RECORD_STALE_MAP": records.RECORD_STALE_MAP, "MAPPING_WORDS": placing.MAPPING_WORDS,
        "RECORD_MAPPED": stacks.RECORD_MAPPED, "sizeof(struct mapping_record)": file_tables._RECORD.size,
        "PAGE_SHIFT": pages.PAGE_SHIFT, "REGION_SHIFT": pages.REGION_SHIFT,
        "RECORD_ABSENT_ROWS": records.RECORD_ABSENT_ROWS, "1 << CHUNK_SHIFT": store.CHUNK_WORDS,
        "FRAME_METHOD": stacks.METHOD, "METHOD_BITS": stacks.METHOD_BITS,
        "MAX_BYTECODES": stacks.MAX_BYTECODES, "PYTHON_ENTRY >> 32": stacks.PYTHON_ENTRY >> 32,
        "PATH_NAME_BYTES": file_tables._PATH_NAME_BYTES,
        "ALLOCATION_TIMES_SHIFT": allocation_probe.ALLOCATION_TIMES_SHIFT,
        "ALLOCATION_OUTER": allocation_probe.ALLOCATION_OUTER,
    }  # fmt: skip
    checks = "\n".join(
        f'_Static_assert({name} == {int(value)}, "{name}");' for name, value in expected.items()
    )
    types = "".join(f"typedef unsigned {c} u{n}; typedef signed {c} s{n};\n"
                    for c, n in (("char", 8), ("short", 16), ("int", 32), ("long long", 64)))  # fmt: skip
    headers = "".join(
        f'#include "{name}"\n' for name in OBJECT_HEADERS if name.startswith(("wire", "amounts"))
    )
    source = tmp_path / "check.c"
    source.write_text(f"{types}{headers}{checks}\n")
    subprocess.run(["gcc", "-fsyntax-only", "-I", str(ROOT / "bpf"), str(source)], check=True)


def test_events() -> None:
    assert perf_events.encode("cycles") == (0, 0)
    assert perf_events.encode("r01c2") == (4, 0x1C2)
    with pytest.raises(UsageError, match="page-faults"):
        perf_events.encode("nonsense")
    with pytest.raises(UsageError):
        perf_events.encode("r")


def test_cookies() -> None:
    assert Site("f", 0, 3).cookie == 3
    assert Site("f", 0, 3, learn=True, function_argument=1).cookie == 3 | COOKIE_LEARN | 1 << 12
    every = Site("f", 0, 9, True, True, 6, 3, 2, 1, 4)
    assert every.cookie == 9 | COOKIE_LEARN | 6 << 12 | 3 << 16 | 2 << 20 | 1 << 24 | 4 << 32


def test_header_tree_is_ours_and_names_the_remedy(tmp_path: Path) -> None:
    system = tmp_path / "include"
    (system / "linux").mkdir(parents=True)
    with pytest.raises(KernelUnsupported, match="linux-libc-dev"):
        make_tree(tmp_path / "tree", system)
    for name in ("linux/types.h", "linux/bpf.h", "asm/ptrace.h", "asm-generic/types.h"):
        (system / name).parent.mkdir(exist_ok=True)
        (system / name).write_text("")
    tree = make_tree(tmp_path / "tree2", system)
    assert (tree / "include/uapi/linux/types.h").is_symlink()
    assert "virtual" in (tree / "include/uapi/linux/bpf.h").read_text()


def _import_with(folder: Path, debian: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from pathlib import Path; from parprof.kernel.bcc_import import import_bcc\n"
        f"print(import_bcc(Path({str(debian)!r})).BPF)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{folder}:{ROOT / 'daemon'}"},
        capture_output=True,
        text=True,
    )


def test_a_stranger_called_bcc_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("lattice = 1\n")
    done = _import_with(tmp_path, tmp_path / "missing.py")
    assert done.returncode and "python3-bpfcc" in done.stderr and "different project" in done.stderr
    real = tmp_path / "debian/bcc"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("BPF = 'the real one'\n")
    done = _import_with(tmp_path, real / "__init__.py")
    assert done.stdout.strip() == "the real one", done.stderr
