"""Call paths as people want to read them: what is not the reader's code is told in a word.

- The kernel becomes one frame: ``[kernel: write]``, ``[kernel: page fault]``.
- What a program calls of the C library, of a language's or a parallel runtime is the first function of it.
- What lies between the program's own frames is left out: the start of threads, what calls a callback.
- The interpreter's own functions are ``[python]``, and an import is ``[import numpy]``.
- Names lose what compilers put around them: ``(anonymous namespace)::``, the insides of lambdas.

No metric changes: what is left out of a path is its caller's.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from parprof.causes.ownership import SCRIPT, Owner, Ownership
from parprof.model import Frame, Path, PathSample, Profile

_KERNEL = "[kernel]"
_CALL = re.compile(r"(?:__(?:x64|ia32|arm64|se|do)_(?:compat_)?sys_|ksys_|__sys_)(\w+)")
_EVENTS = (
    (re.compile(r".*page_fault|do_user_addr_fault"), "page fault"),
    (re.compile(r"(?:a?sm_)?sysvec|.*interrupt|irq_|.*softirq"), "interrupt"),
    (re.compile(r"ret_from_fork|schedule_tail"), "thread start"),
    (re.compile(r"vm_mmap_pgoff"), "mmap"),
    (re.compile(r"exit_to_user_mode|syscall_exit"), "return to the program"),
)
_IMPORTLIB = re.compile(r"<frozen (?:importlib|zipimport)|.*/importlib/")
_INTERPRETER = re.compile(r"(?:lib)?python\d[\d.]*(?:\.so\S*)?\Z")
_LAMBDA = re.compile(r"\{lambda\(.*?\)#(\d+)\}")
_CALL_OPERATOR = re.compile(r"(lambda#\d+)(?:::operator\(\)(?:\(.*\))?(?: const)?)")
_RUST_CLOSURE = re.compile(r"(?:\{\{closure\}\}|\$u7b\$\$u7b\$closure\$u7d\$\$u7d\$)")
_FORTRAN = re.compile(r"__(\w+?)_MOD_(\w+)")


def readable(profile: Profile) -> Profile:
    """The same profile by such call paths."""
    folder = _Folder()
    return replace(profile, samples=[folder.sample(sample) for sample in profile.samples])


def plain_name(name: str) -> str:
    """A function's name for people.

    >>> plain_name("(anonymous namespace)::run(int)::{lambda(int)#2}::operator()(int) const")
    'run(int)::lambda#2'
    """
    name = name.replace("(anonymous namespace)::", "").replace("_GLOBAL__N_1::", "")
    name = _CALL_OPERATOR.sub(r"\1", _LAMBDA.sub(r"lambda#\1", name))
    name = _FORTRAN.sub(r"\1::\2", name)
    return _RUST_CLOSURE.sub("closure", name)


class _Folder:
    """Folds paths, each one once."""

    def __init__(self) -> None:
        self._ownership = Ownership()
        self._paths: dict[Path, Path] = {}
        self._names: dict[Frame, Frame] = {}

    def sample(self, sample: PathSample) -> PathSample:
        path = self._paths.get(sample.path)
        if path is None:
            path = self._paths[sample.path] = self._folded(sample.path)
        return replace(sample, path=path)

    def _folded(self, path: Path) -> Path:
        path = _without_imports(_with_kernel(path), self._ownership)
        owners: list[Owner] = []
        last = Owner.SYSTEM
        for frame in path:
            if not frame.is_loop:
                last = self._ownership.of(frame)
            owners.append(last)
        script = any(frame.module == SCRIPT for frame in path)
        outermost = next((at for at, owner in enumerate(owners) if owner is not Owner.SYSTEM), len(path))
        innermost = max((at for at, owner in enumerate(owners) if owner is not Owner.SYSTEM), default=-1)
        out: list[Frame] = []
        for at, (frame, owner) in enumerate(zip(path, owners, strict=True)):
            if frame.name.startswith("[") and not frame.address:
                out.append(frame)
            elif owner is not Owner.SYSTEM:
                out.append(self._named(frame))
            elif at < innermost:
                if at < outermost and frame.name == "main":
                    out.append(self._named(frame))
            elif at == innermost + 1:
                out.append(self._entered(frame, script))
        return _in_place(out)

    def _entered(self, frame: Frame, script: bool) -> Frame:
        """What stands for all foreign frames that follow the program's last one."""
        if script and _INTERPRETER.match(os.path.basename(frame.module)):
            return Frame("[python]")
        return self._named(frame)

    def _named(self, frame: Frame) -> Frame:
        known = self._names.get(frame)
        if known is None:
            name = frame.name if frame.is_loop else plain_name(frame.name)
            known = self._names[frame] = frame if name == frame.name else replace(frame, name=name)
        return known


def _with_kernel(path: Path) -> Path:
    """With one frame for all of the kernel's."""
    first = next((at for at, frame in enumerate(path) if frame.module == _KERNEL), len(path))
    inside = [frame.name for frame in path[first:] if frame.module == _KERNEL]
    if not inside:
        return path
    call = next((match[1] for name in inside if (match := _CALL.match(name))), "")
    if not call:
        call = next((text for pattern, text in _EVENTS for name in inside if pattern.match(name)), "")
    return (*path[:first], Frame(f"[kernel: {call}]" if call else "[kernel]"))


def _without_imports(path: Path, ownership: Ownership) -> Path:
    """With one frame for an import and all that it does, but for the program's own code."""
    if not any(frame.module == SCRIPT and _IMPORTLIB.match(frame.file) for frame in path):
        return path
    out: list[Frame] = []
    at = 0
    while at < len(path):
        frame = path[at]
        if frame.module != SCRIPT or not _IMPORTLIB.match(frame.file):
            out.append(frame)
            at += 1
            continue
        end = at
        imported = ""
        while end < len(path) and not (
            path[end].module == SCRIPT and ownership.of(path[end]) is Owner.PROGRAM
        ):
            if not imported and path[end].name == "<module>" and not _IMPORTLIB.match(path[end].file):
                imported = _module_name(path[end].file)
            end += 1
        if not imported and end < len(path):
            imported = _module_name(path[end].file)
        out.append(Frame(f"[import {imported}]" if imported else "[import]"))
        at = end
    return tuple(out)


def _module_name(file: str) -> str:
    base = os.path.basename(file)
    if base == "__init__.py":
        base = os.path.basename(os.path.dirname(file))
    return base.partition(".")[0].strip("<>")


def _in_place(path: list[Frame]) -> Path:
    """Inline no function into one that is no longer before it."""
    last: Frame | None = None
    for at, frame in enumerate(path):
        if frame.inlined and not frame.is_loop and (last is None or last.address != frame.address):
            path[at] = replace(frame, inlined=False)
        last = path[at]
    return tuple(path)
