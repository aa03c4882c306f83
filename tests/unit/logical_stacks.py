# SPDX-License-Identifier: Apache-2.0
"""Stacks to fold: written as text, or made up by Hypothesis as runtimes and compilers would nest them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hypothesis import strategies as st

from parprof.logical.bichord import Bichord, logical_projection
from parprof.logical.folding import Folder
from parprof.model import Frame, Path
from parprof.runtimes.libgomp import Libgomp
from parprof.runtimes.libomp import Libomp

PROGRAM, GOMP, OMP, LIBC = "heat", "libgomp.so.1", "libomp.so.5", "libc.so.6"
AGENTS = (Libgomp(), Libomp())
FOLDER = Folder(AGENTS)


def physical_projection(path: Iterable[Bichord]) -> Path:
    """What was on the thread's stack: a fold may not lose any of it."""
    return tuple(frame for bichord in path for frame in bichord.physical)


def module_of(name: str) -> str:
    if name.startswith(("GOMP_", "gomp_", "libgomp.so.1+")):
        return GOMP
    if name.startswith("__kmp"):
        return OMP
    return LIBC if name in ("qsort", "syscall", "pthread_create", "pthread_mutex_lock", "malloc") else PROGRAM


def frames(text: str) -> Path:
    """A path, root first, from names; ``name:7`` is at line 7, ``name*`` is inlined, ``@name`` is a loop."""
    out = []
    for number, word in enumerate(text.split(), 1):
        word, line = match.groups() if (match := re.fullmatch(r"(.+):(\d+)", word)) else (word, "")
        is_loop, inlined = word.startswith("@"), word.endswith("*") or word.startswith("@")
        name = word.strip("@*")
        address = out[-1].address if inlined and out else 16 * number
        out.append(
            Frame(name, "heat.c", int(line or number), 1, module_of(name), "b1d", address, inlined, is_loop)
        )
    return tuple(out)


def text(path: Path) -> str:
    return " ".join(frame.name for frame in path)


def folded(own: str, *, outer: str = "", before: str | None = None, keep: bool = True) -> str:
    context = None if before is None else frames(before)
    path = FOLDER.fold(frames(own), outer=frames(outer), before=context, keep_runtime_leaf=keep).path
    return text(logical_projection(path))


_NAMES = st.sampled_from("abcd")
_INSIDE_GOMP = st.lists(st.sampled_from(["gomp_team_end", "gomp_x", "syscall"]), max_size=2)
_INSIDE_OMP = st.lists(st.sampled_from(["__kmp_fork_call", "__kmp_invoke_microtask"]), max_size=3)


@st.composite
def stacks(draw: st.DrawFn, max_size: int = 8) -> Path:
    """Names of the author's functions, with loops, regions, tasks and a runtime leaf as they really nest."""
    words = ["main"]
    function = "main"
    for _ in range(draw(st.integers(0, max_size))):
        match draw(st.integers(0, 6)):
            case 0 | 1:
                function = draw(_NAMES)
                words.append(function + draw(st.sampled_from(["", "", "*"])))
            case 2:
                words.append("@loop")
            case 3:
                words += [
                    "GOMP_parallel",
                    *draw(_INSIDE_GOMP),
                    f"{function}._omp_fn.{draw(st.integers(0, 2))}",
                ]
            case 4:
                words += ["__kmpc_fork_call", *draw(_INSIDE_OMP), ".omp_outlined..2"]
            case 5:  # a task that another function created
                function = draw(_NAMES)
                words += ["GOMP_taskwait", *draw(_INSIDE_GOMP), f"{function}._omp_fn.7"]
            case 6:
                words += ["qsort", draw(_NAMES)]
                function = words[-1]
    words += draw(
        st.sampled_from([[], ["GOMP_barrier", "gomp_wait"], ["__kmpc_barrier", "syscall"], ["malloc"],
                         ["pthread_mutex_lock", "syscall"]])
    )  # fmt: skip
    return frames(" ".join(words))
