"""Call paths as people want to read them: what is not the reader's code is told in a word.

- The kernel becomes one frame: ``[kernel: write]``, ``[kernel: page fault]``, ``[waits: lock]``.
- What a program calls of the C library, of a language's or a parallel runtime is the first function of it.
- What lies between the program's own frames is left out: the start of threads, what calls a callback.
- The interpreter's own functions are ``[python]``, and an import is ``[import numpy]``. Where no functions of scripts
  are known, as of Perl's and R's, it is told which of its own an interpreter is in: it says more than ``main``.
- Names lose what compilers put around them: ``(anonymous namespace)::``, the insides of lambdas.

What is left out of a path is its caller's; but calls of a function that is not shown are nobody else's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from parprof.attribution.waiting import is_wait
from parprof.by_frame import ByFrame
from parprof.causes.ownership import SCRIPT, Owner, Ownership, is_of_interpreter, is_of_script
from parprof.causes.preparing import compiler, imported, is_import, is_made, module_name
from parprof.metrics import ACTIVATIONS
from parprof.model import Frame, Path, PathSample, Profile
from parprof.patterns import regex
from parprof.values import dataclass

_KERNEL = "[kernel]"
_CALL = regex(r"(?:__(?:x64|ia32|arm64|se|do)_(?:compat_)?sys_|ksys_|__sys_)(\w+)")
_EVENTS = (
    (regex(r".*page_fault|do_user_addr_fault"), "page fault"),
    (regex(r"(?:a?sm_)?sysvec|.*interrupt|irq_|.*softirq"), "interrupt"),
    (regex(r"io_sq_thread"), "polls for io_uring"),
    (regex(r"io_wq_worker"), "io_uring"),
    (regex(r"ret_from_fork|schedule_tail"), "thread start"),
    (regex(r"vm_mmap_pgoff"), "mmap"),
    (regex(r"exit_to_user_mode|syscall_exit"), "return to the program"),
)
_INTERPRETER = regex(r"(?:lib)?python\d[\d.]*(?:\.so\S*)?\Z")
_LAMBDA = regex(r"\{lambda\(.*?\)#(\d+)\}")
_CALL_OPERATOR = regex(r"(lambda#\d+)(?:::operator\(\)(?:\(.*\))?(?: const)?)")
_RUST_CLOSURE = regex(r"\{\{closure\}\}|\$u7b\$\$u7b\$closure\$u7d\$\$u7d\$|\{closure(#\d+)\}")
_FORTRAN = regex(r"__(\w+?)_MOD_(\w+)")

_LONGEST_NAME = 60
"""Columns: of a longer name of C++'s the parameters are left out."""
_FEW_PARAMETERS = 12
"""Columns: as few gain nothing."""


def readable(profile: Profile) -> Profile:
    """The same profile by such call paths."""
    folder = _Folder(profile.samples)
    return replace(profile, samples=[folder.sample(sample) for sample in profile.samples])


def plain_name(name: str) -> str:
    """A function's name for people.

    >>> plain_name("(anonymous namespace)::run(int)::{lambda(int)#2}::operator()(int) const")
    'run(int)::lambda#2'
    """
    name = name.replace("(anonymous namespace)::", "").replace("_GLOBAL__N_1::", "")
    name = _CALL_OPERATOR.sub(r"\1", _LAMBDA.sub(r"lambda#\1", name))
    name = _FORTRAN.sub(r"\1::\2", name)
    return _RUST_CLOSURE.sub(r"closure\1", name)


def without_parameters(name: str) -> str:
    """A long name of C++'s without its last list of parameters, which may take ten lines and says who it is to few.

    >>> without_parameters("gmx::Simulator::force(_IO_FILE*, t_commrec const*, float const (*) [3], double) const")
    'gmx::Simulator::force(..) const'
    >>> without_parameters("solve(int, double)")
    'solve(int, double)'
    """
    end = name.rfind(")")
    if len(name) <= _LONGEST_NAME or end < 0:
        return name
    depth = 0
    for at in range(end, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if not depth:
            return f"{name[:at]}(..){name[end + 1 :]}" if end - at > _FEW_PARAMETERS else name
    return name


@dataclass(frozen=True, slots=True, eq=False)
class _FrameFacts:
    """What can be said of a frame by itself."""

    frame: Frame
    """Kept: else its id may come to mean another one."""
    named: Frame
    """With its name for people."""
    owner: Owner
    """A loop's is that of the function before it on the path."""
    is_loop: bool
    is_pseudo: bool
    """Whether it is a word of ours in brackets, which stays as it is."""


class _FrameBook(ByFrame[_FrameFacts]):
    """The facts of all frames, each found once: there are far fewer than paths go through."""

    def __init__(self) -> None:
        super().__init__()
        self.ownership = Ownership()
        self.kernel: set[_FrameFacts] = set()
        self.scripts: set[_FrameFacts] = set()
        self.interpreters: set[_FrameFacts] = set()
        self.preparing: set[_FrameFacts] = set()
        """Those of Python's import machinery, and of what compiles functions as they are called."""
        self.changing: set[_FrameFacts] = set()
        """Those that may not stay as they are: paths without any of them do."""

    def _find(self, frame: Frame) -> _FrameFacts:
        name = frame.name if frame.is_loop else plain_name(frame.name)
        named = frame if name == frame.name else replace(frame, name=name)
        owner = self.ownership.of(frame)
        is_pseudo = frame.name.startswith("[") and not frame.address
        facts = _FrameFacts(frame, named, owner, frame.is_loop, is_pseudo)
        changes = named is not frame or not frame.is_loop and (owner is Owner.SYSTEM or frame.inlined)
        if frame.module == _KERNEL:
            self.kernel.add(facts)
            changes = True
        if is_of_interpreter(frame):
            self.interpreters.add(facts)
        if frame.module == SCRIPT:
            self.scripts.add(facts)
            if _prepares(frame):
                self.preparing.add(facts)
                changes = True
        if changes:
            self.changing.add(facts)
        return facts


class _Folder:
    """Folds paths, each one once."""

    def __init__(self, samples: Sequence[PathSample]) -> None:
        """``samples``: all that there are."""
        self._samples = samples
        self._book = _FrameBook()
        self._paths: dict[int, Path] = {}
        """By the ids of paths, which the profile keeps: to compare them takes long."""
        self._inside: dict[int, Path] = {}
        """The same for those that are an interpreter's alone: with what it does."""
        self._words: dict[str, Frame] = {}

    @cached_property
    def _running_scripts(self) -> frozenset[int]:
        """PIDs of processes of which functions of scripts are known."""
        return frozenset(one.origin.pid for one in self._samples if any(map(is_of_script, one.path)))

    def sample(self, sample: PathSample) -> PathSample:
        path = self._paths.get(id(sample.path))
        if path is None:
            path = self._paths[id(sample.path)] = self._folded(sample.path)
        if id(sample.path) in self._inside and sample.origin.pid not in self._running_scripts:
            path = self._inside[id(sample.path)]
        if path is sample.path:
            return sample
        metrics = sample.metrics
        if metrics[ACTIVATIONS] and not (path and path[-1].name == plain_name(sample.path[-1].name)):
            metrics = metrics.copy()
            metrics[ACTIVATIONS] = 0
        return replace(sample, path=path, metrics=metrics)

    def _folded(self, path: Path) -> Path:
        book = self._book
        facts = book.along(path)
        if book.changing.isdisjoint(facts) and not (path and path[0].is_loop):
            return path
        if not (book.kernel.isdisjoint(facts) and book.preparing.isdisjoint(facts)):
            facts = book.along(_without_preparing(self._with_kernel(path), book.ownership, self._word))
        owners: list[Owner] = []
        last = Owner.SYSTEM
        for fact in facts:
            if not fact.is_loop:
                last = fact.owner
            owners.append(last)
        if set(owners) == {Owner.SYSTEM} and not book.interpreters.isdisjoint(facts):
            inside = [at for at, fact in enumerate(facts) if fact in book.interpreters]
            told = [
                Owner.PROGRAM if at in (inside[0], inside[-1]) else Owner.SYSTEM for at in range(len(facts))
            ]
            self._inside[id(path)] = self._shown(facts, told)
        return self._shown(facts, owners)

    def _shown(self, facts: Sequence[_FrameFacts], owners: Sequence[Owner]) -> Path:
        """What is shown of a path. ``owners``: of its frames."""
        own = [at for at, owner in enumerate(owners) if owner is not Owner.SYSTEM]
        outermost, innermost = (own[0], own[-1]) if own else (len(facts), -1)
        out: list[Frame] = []
        for at, (fact, owner) in enumerate(zip(facts, owners, strict=True)):
            if fact.is_pseudo:
                out.append(fact.frame)
            elif owner is not Owner.SYSTEM:
                out.append(fact.named)
            elif at < innermost:
                if at < outermost and fact.frame.name == "main":
                    out.append(fact.named)
            elif at == innermost + 1:
                is_script = not self._book.scripts.isdisjoint(facts)
                out.append(self._entered(fact, is_script=is_script))
        return _in_place(out)

    def _entered(self, fact: _FrameFacts, *, is_script: bool) -> Frame:
        """What stands for all foreign frames that follow the program's last one."""
        if is_script and _INTERPRETER.match(os.path.basename(fact.frame.module)):
            return self._word("[python]")
        return fact.named

    def _word(self, name: str) -> Frame:
        """The frame that says this. There is one of each."""
        return self._words.setdefault(name, Frame(name))

    def _with_kernel(self, path: Path) -> Path:
        """With one frame for all of the kernel's."""
        first = next((at for at, frame in enumerate(path) if frame.module == _KERNEL), len(path))
        inside = [frame.name for frame in path[first:] if frame.module == _KERNEL]
        if not inside:
            return path
        if is_wait(inside[-1]):
            return (*path[:first], self._word(inside[-1]))
        call = next((match[1] for name in inside if (match := _CALL.match(name))), "")
        if not call:
            call = next((text for pattern, text in _EVENTS for name in inside if pattern.match(name)), "")
        return (*path[:first], self._word(f"[kernel: {call}]" if call else "[kernel]"))


def _prepares(frame: Frame) -> bool:
    return is_import(frame) or compiler(frame) != ""


def _without_preparing(path: Path, ownership: Ownership, word: Callable[[str], Frame]) -> Path:
    """With one frame for an import and all that it does, but for the program's own code, and one for the compiler of
    functions that are called. ``word`` makes it."""
    if not any(map(_prepares, path)):
        return path
    out: list[Frame] = []
    at = 0
    while at < len(path):
        frame = path[at]
        if not _prepares(frame):
            out.append(frame)
            at += 1
            continue
        end = at
        module, compiles = "", compiler(frame)
        while end < len(path) and not (
            (path[end].module == SCRIPT and ownership.of(path[end]) is Owner.PROGRAM)
            or (compiles and is_made(path[end]))
        ):
            module = module or imported(path[end])
            end += 1
        if not module and end < len(path):
            module = module_name(path[end].file)
        if compiles:
            out.append(word(f"[compile {compiles}]"))
        else:
            out.append(word(f"[import {module}]" if module else "[import]"))
        at = end
    return tuple(out)


def _in_place(path: list[Frame]) -> Path:
    """Inline no function into one that is no longer before it."""
    last: Frame | None = None
    for at, frame in enumerate(path):
        if frame.inlined and not frame.is_loop and (last is None or last.address != frame.address):
            path[at] = replace(frame, inlined=False)
        last = path[at]
    return tuple(path)
