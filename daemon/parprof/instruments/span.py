"""libparprof_span, which computes work and span in the target: what it is made of, and how a command gets it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from parprof.instruments.toolchain import Library, compiler_version

LIBRARY = Library(
    "libparprof_span",
    ("span_library.c",),
    (
        "parprof_span.h",
        "span.c",
        "span.h",
        "span_accounts.c",
        "span_accounts.h",
        "span_alone.h",
        "span_call_sites.c",
        "span_calls.c",
        "span_chains.c",
        "span_calls.h",
        "span_clock.c",
        "span_clock.h",
        "span_conditions.c",
        "span_crews.c",
        "span_dependences.c",
        "span_doacross.c",
        "span_exec.c",
        "span_futex.c",
        "span_gomp.c",
        "span_gomp_tasks.c",
        "span_holds.c",
        "span_hooks.c",
        "span_items.c",
        "span_kmp.c",
        "span_kmp.h",
        "span_kmp_tasks.c",
        "span_locks.c",
        "span_loops.c",
        "span_meetings.c",
        "span_phases.c",
        "span_prof.h",
        "span_prof_calls.h",
        "span_process.c",
        "span_processors.c",
        "span_record.h",
        "span_regions.c",
        "span_runtime.c",
        "span_segments.c",
        "span_semaphores.c",
        "span_sites.c",
        "span_stages.c",
        "span_tasks.c",
        "span_threads.c",
        "span_tokens.c",
    ),
    (
        "-fvisibility=hidden",
        "-fwhole-program",
        "-ftls-model=initial-exec",
        "-Wl,-z,nodelete",
        "-ldl",
        "-lpthread",
    ),
)


def environment(
    library: str, records: str, threads: int, preloaded: str = "", is_serial: bool = False
) -> dict[str, str]:
    """The variables of a run with so many threads.

    ``records`` is the directory for the record files, ``preloaded`` what LD_PRELOAD is without us. Threads wait
    passively: on fewer cores than threads, those that spin would keep the others from working. ``is_serial``: the
    chunks of a loop are taken as if each had a thread, though one executes them all.
    """
    serial = {"PARPROF_SPAN_SERIAL": "1"} if is_serial else {}
    return {
        **serial,
        "LD_PRELOAD": f"{library}:{preloaded}" if preloaded else library,
        "PARPROF_SPAN_DIR": records,
        "PARPROF_SPAN_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "OMP_DYNAMIC": "false",
        # else LLVM's runtime shares the machine's own cores out to a team of teams
        "OMP_TEAMS_THREAD_LIMIT": os.environ.get("OMP_TEAMS_THREAD_LIMIT", str(threads)),
    }


def compile_command(command: Sequence[str]) -> list[str]:
    """A compiler's command with hooks at the begin and the end of each function.

    The C library has hooks that do nothing, so such a program runs without us, too. clang leaves out what it inlines,
    as the paper does; gcc cannot, but leaves out what is in the system's headers (C++ templates, above all). A call
    at the end of a task's body would be a jump without -fno-optimize-sibling-calls, and its line the runtime's.
    """
    words = [*command, "-fno-optimize-sibling-calls"]
    if "clang" in compiler_version(command[0]):
        return [*words, "-finstrument-functions-after-inlining"]
    return [
        *words,
        "-finstrument-functions",
        "-finstrument-functions-exclude-file-list=/usr/include,/usr/lib",
    ]
