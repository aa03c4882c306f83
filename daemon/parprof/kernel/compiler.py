"""The compiler child: BCC turns ``bpf/*.bpf.c`` into a compiled object, and exits.

Run as ``python -m parprof.kernel.compiler OUTPUT``. The parent never maps LLVM (75 to 170 MB): it reads the
object - bytecode, map definitions, struct layouts, relocations, all of it plain data - and loads it with
the bpf system call. BCC's process-wide effects (it changes the directory, and LLVM may abort) stay here.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from parprof.errors import ParprofError
from parprof.kernel.bcc_import import import_bcc
from parprof.kernel.btf import read_layout
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.headers import make_tree
from parprof.kernel.linking import SHARED_FUNCTIONS, defines, link

OBJECT_HEADERS = (
    "wire.h",
    "wire_calls.h",
    "wire_counters.h",
    "wire_languages.h",
    "wire_records.h",
    "thread_state.h",
    "amounts.h",
    "strata.h",
)
OBJECT_PARTS = (
    "maps.bpf.c",
    "trace.bpf.c",
    "scope.bpf.c",
    "loiterers.bpf.c",
    "threads.bpf.c",
    "budget.bpf.c",
    "memory.bpf.c",
    "run_queues.bpf.c",
    "unwind_tables.bpf.c",
    "places.bpf.c",
    "hotspot.bpf.c",
    "unwind_step.bpf.c",
    "stacks.bpf.c",
    "unwind.bpf.c",
    "closures.bpf.c",
    "mappings.bpf.c",
    "python.bpf.c",
    "gil.bpf.c",
    "python_code.bpf.c",
    "activations.bpf.c",
    "amounts.bpf.c",
    "polls.bpf.c",
    "waits.bpf.c",
    "creators.bpf.c",
    "bytes.bpf.c",
    "transfers.bpf.c",
    "scheduler.bpf.c",
    "lives.bpf.c",
    "commands.bpf.c",
    "n_working.bpf.c",
    "sampler.bpf.c",
    "work_edges.bpf.c",
    "allocations.bpf.c",
    "call_times.bpf.c",
    "calls.bpf.c",
    "phases.bpf.c",
)
PROGRAMS = {
    "on_switch": "raw_tracepoint",
    "on_wakeup": "raw_tracepoint",
    "on_fork": "raw_tracepoint",
    "on_exec": "raw_tracepoint",
    "on_exit": "raw_tracepoint",
    "on_command": "raw_tracepoint",
    "on_sample": "perf_event",
    "on_unwind": "perf_event",
    "on_python": "perf_event",
    "on_python_code": "perf_event",
    "on_seek": "perf_event",
    "on_activations": "perf_event",
    "on_wait_unwind": "raw_tracepoint",
    "on_wait_python": "raw_tracepoint",
    "on_wait_code": "raw_tracepoint",
    "on_wait_seek": "raw_tracepoint",
    "on_edge": "kprobe",
    "on_load_map": "kprobe",
    "on_edge_unwind": "kprobe",
    "on_edge_python": "kprobe",
    "on_allocation": "kprobe",
    "on_call": "kprobe",
    "on_timed_switch": "raw_tracepoint",
    "on_phase": "kprobe",
    "on_transfer": "raw_tracepoint",
    "on_bytes": "raw_tracepoint",
    "on_bytes_fork": "raw_tracepoint",
}
_PSEUDO_MAP_FD = 1
_INITIAL_PID_NAMESPACE = 4026531836
_LD_IMM64 = 0x18
_LEAST_CPUS, _MOST_CPUS = 8, 1024


def source_directory() -> Path:
    """Where the BPF sources are, in a checkout or an installed package."""
    checkout = Path(__file__).resolve().parents[3] / "bpf"
    if (checkout / "wire.h").is_file():
        return checkout
    return Path(__file__).resolve().parents[1] / "bpf"


def _ctype_name(kind: Any) -> str:
    if issubclass(kind, ctypes.Array):
        return f"{_ctype_name(kind._type_)}[{kind._length_}]"
    if issubclass(kind, (ctypes.c_char, ctypes.c_byte)):
        return "char" if kind is ctypes.c_char else "s8"
    unsigned = kind(-1).value > 0
    return f"{'u' if unsigned else 's'}{8 * ctypes.sizeof(kind)}"


def _fields(structure: Any) -> list[list[Any]]:
    return [
        [name, _fields(kind) if issubclass(kind, ctypes.Structure) else _ctype_name(kind)]
        for name, kind, *_ in structure._fields_
    ]


def _relocations(code: bytes, name_of_fd: dict[int, str]) -> list[tuple[int, str]]:
    out: list[tuple[int, str]] = []
    for index in range(0, len(code), 8):
        opcode, registers, _, immediate = struct.unpack_from("<BBhi", code, index)
        if opcode == _LD_IMM64 and registers >> 4 == _PSEUDO_MAP_FD:
            out.append((index, name_of_fd[immediate]))
    return out


def _namespace() -> list[str]:
    """In a PID namespace of its own the kernel must number processes as that does."""
    number = pid_namespace()
    return [f"-DPID_NAMESPACE={number}u"] if number else []


def pid_namespace() -> int:
    """Number of our PID namespace; 0 for the initial one."""
    number = os.stat("/proc/self/ns/pid").st_ino
    return 0 if number == _INITIAL_PID_NAMESPACE else number


def cpu_bound() -> int:
    """Of so many CPUs the programs look at what they run: a power of two.

    As many as this machine may have, for the verifier goes through each; a few more, for a machine that is not this.
    """
    return min(max(1 << (possible_cpus() - 1).bit_length(), _LEAST_CPUS), _MOST_CPUS)


def compile_object() -> dict[str, Any]:
    """Compile all parts and return the object as JSON-ready data."""
    bcc = import_bcc()
    layout = read_layout()
    sources = source_directory()
    text = "\n".join(f'#line 1 "{part}"\n{(sources / part).read_text()}' for part in OBJECT_PARTS)
    with tempfile.TemporaryDirectory(prefix="parprof-headers-") as tree:
        os.environ["BCC_KERNEL_SOURCE"] = str(make_tree(Path(tree)))
        bpf = bcc.BPF(
            text=text,
            cflags=[
                f"-I{sources}",
                "-Wno-macro-redefined",
                f"-DMAX_CPUS={cpu_bound()}",
                *layout.defines(),
                *defines(),
                *_namespace(),
            ],
        )
    lib, module = bcc.lib, ctypes.c_void_p(bpf.module)  # some of bcc's prototypes lack argument types
    lib.bpf_table_name.restype = ctypes.c_char_p
    maps: dict[str, dict[str, int]] = {}
    name_of_fd: dict[int, str] = {}
    for index in range(lib.bpf_num_tables(module)):
        name = lib.bpf_table_name(module, index).decode()
        maps[name] = {
            "type": lib.bpf_table_type_id(module, index),
            "key_size": lib.bpf_table_key_size_id(module, index),
            "value_size": lib.bpf_table_leaf_size_id(module, index),
            "max_entries": lib.bpf_table_max_entries_id(module, index),
            "flags": lib.bpf_table_flags_id(module, index),
        }
        name_of_fd[lib.bpf_table_fd_id(module, index)] = name
    codes = {name: bpf.dump_func(name.encode()) for name in (*PROGRAMS, *SHARED_FUNCTIONS)}
    relocations = {name: _relocations(code, name_of_fd) for name, code in codes.items()}
    programs = {}
    for name, kind in PROGRAMS.items():
        linked = link(name, codes, relocations)
        programs[name] = {
            "kind": kind,
            "code": base64.b64encode(linked.code).decode(),
            "relocations": linked.relocations,
            "functions": linked.functions,
        }
    layouts = {
        "sample_key": _fields(bpf["counts"].Key),
        "sample_value": _fields(bpf["counts"].Leaf),
        "process": _fields(bpf["processes"].Leaf),
        "process_config": _fields(bpf["configs"].Leaf),
        "thread": _fields(bpf["threads"].Leaf),
        "scope": _fields(bpf["scopes"].Leaf),
        "settings": _fields(bpf["settings_map"].Leaf),
        "interpreter": _fields(bpf["interpreters"].Leaf),
        "jvm": _fields(bpf["jvms"].Leaf),
        "meter": _fields(bpf["meters"].sLeaf),
        "call_count": _fields(bpf["call_counts"].sLeaf),
        "call_arc": _fields(bpf["call_arcs"].Key),
        "routine_time": _fields(bpf["routine_times"].Leaf),
        "arc_time": _fields(bpf["arc_times"].Leaf),
        "phase_site": _fields(bpf["phase_sums"].Key),
        "phase_sum": _fields(bpf["phase_sums"].Leaf),
        "phase_process": _fields(bpf["phase_processes"].Leaf),
        "amount_plan": _fields(bpf["amount_plans"].Leaf),
        "amount": _fields(bpf["amounts"].sLeaf),
        "control_record": _fields(bpf["layout_control"].Leaf),
        "trace_record": _fields(bpf["layout_trace"].Leaf),
        "thread_record": _fields(bpf["layout_thread"].Leaf),
        "path_record": _fields(bpf["layout_path"].Leaf),
    }
    return {"maps": maps, "programs": programs, "layouts": layouts}


def main(output: str) -> int:
    """Write the compiled object to ``output``; errors go to standard error as one line."""
    try:
        compiled = compile_object()
    except ParprofError as error:
        print(error, file=sys.stderr)
        return 3
    Path(output).write_text(json.dumps(compiled))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
