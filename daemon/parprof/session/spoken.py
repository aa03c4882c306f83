"""The interpreted language that a process speaks: whose functions are to be in its call paths."""

from __future__ import annotations

import time

from parprof.kernel.engine import BpfKernel
from parprof.languages import Instance
from parprof.languages.front_ends import FrontEnds
from parprof.process.loadmap import LoadMap


class Spoken:
    """The interpreter of one process, once there is one."""

    def __init__(self, kernel: BpfKernel, pid: int, front_ends: FrontEnds) -> None:
        """``front_ends``: those of the languages that are wanted."""
        self._kernel = kernel
        self._pid = pid
        self._front_ends = front_ends
        self.language: Instance | None = None
        """None: none that is known."""
        self._unknown = ""
        """Why its interpreter is not known, if it has one of that kind."""

    def find(self, load_map: LoadMap) -> None:
        """Look for it among the files that the process maps."""
        if self.language is not None:
            return
        if (found := self._front_ends.find(load_map)) is not None:
            self._speak(found)
        else:
            self._unknown = self._front_ends.refusal(load_map)

    def inherit(self, parent: Spoken) -> None:
        """A fork starts with its parent's memory."""
        self._unknown = parent._unknown
        if parent.language is not None:
            self._speak(parent.language.for_child(self._pid))

    def notes(self) -> list[str]:
        """What the reader of results must know of it."""
        text = self._unknown if self.language is None else self.language.problem
        return [text] if text else []

    def close(self) -> None:
        """The kernel looks for its functions no more."""
        if self.language is not None and self.language.is_open:
            self._kernel.set_interpreter(self._pid, {}, self.language.structure)
            self.language.close()

    def _speak(self, language: Instance) -> None:
        self.language = language
        if facts := language.kernel_facts():
            self._kernel.set_interpreter(self._pid, facts, language.structure)

    def look_again(self) -> None:
        """Tell the programs what was not known of it so far."""
        if self.language is not None and time.monotonic() >= self.language.due_s:
            self._speak(self.language)
