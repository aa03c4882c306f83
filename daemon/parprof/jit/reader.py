"""Reads what JIT compilers have registered in processes, in a thread of its own: their memory may not answer."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from parprof.jit.objects import MadeFunction, ObjectFacts
from parprof.jit.registry import MAX_BYTES, Read, RegisteredObject, registered_objects
from parprof.process.memory import read_exactly
from parprof.resources import Closing
from parprof.untrusted import visible
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.rows import ROW_SIZE
from parprof.unwind.table import UnwindTable
from parprof.workers.client import WorkerClient, WorkerFailed

_SECONDS = 5.0
"""What one request may take."""
_END_SECONDS = 1.0
HUNG_SECONDS = 10.0
"""Who has not answered by then never will: a process can have its memory wait for ever (userfaultfd, FUSE)."""
_MAX_NAME = 1 << 10

MemorySpan = tuple[int, int]
"""[start, end), or an address and bytes."""


class _Client(WorkerClient):
    module = "parprof.jit.worker"
    doing = "reading code that a JIT compiler made"


class MadeCode(NamedTuple):
    """What is known of the code that JIT compilers have made in a process."""

    objects: Mapping[RegisteredObject, ObjectFacts]
    spans: Collection[MemorySpan] = ()
    """Executable memory of no file, as it was then."""
    tables: Mapping[int, UnwindTable] = {}
    """By the begin of such memory, from which their addresses count."""


NOTHING_MADE = MadeCode({})


_Queue = queue.SimpleQueue[Callable[[], object] | None]


class JitReader(Closing):
    """The thread, and its child. Ends with `close`."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._client = _Client()
        self._wanted: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._begun_s = math.inf
        """When the thread began with what it does now."""
        self._closed = False

    def look(
        self, pid: int, heads: Sequence[int], spans: Collection[MemorySpan], known: MadeCode
    ) -> Future[MadeCode]:
        """What is registered in a process by now; ``known`` itself where that is the same.

        ``heads``: where its lists are. ``spans``: its executable memory of no file.
        """
        future: Future[MadeCode] = Future()
        client = self._client

        def work() -> None:
            if self._closed or not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self._look(client, pid, heads, spans, known))
            except (OSError, ValueError, TypeError, LookupError, MemoryError, WorkerFailed):
                future.set_result(known)  # it has ended, or what it has is nothing that we understand

        self._wanted.put(work)
        if self._thread is None:
            wanted = self._wanted
            self._thread = threading.Thread(target=self._run, args=(wanted,), name="parprof-jit", daemon=True)
            self._thread.start()
        return future

    def _run(self, wanted: _Queue) -> None:
        while (work := wanted.get()) is not None:
            if wanted is self._wanted:
                self._begun_s = time.monotonic()
            work()
            if wanted is self._wanted:
                self._begun_s = math.inf

    def leave_behind(self) -> None:
        """Go on with another thread if this one hangs. What waits behind is not looked at."""
        if time.monotonic() - self._begun_s > HUNG_SECONDS:
            self._wanted.put(None)
            self._client.close()
            self._client, self._wanted, self._thread = _Client(), queue.SimpleQueue(), None
            self._begun_s = math.inf

    def _look(
        self,
        client: WorkerClient,
        pid: int,
        heads: Sequence[int],
        spans: Collection[MemorySpan],
        known: MadeCode,
    ) -> MadeCode:
        if not known.objects:
            client.prepare()  # a start takes longer than all else: before there is any code
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            read = partial(read_exactly, fd)
            listed = dict.fromkeys(one for head in heads for one in registered_objects(read, head))
            if client is not self._client or self._closed:
                return known  # nobody waits any more
            if listed.keys() == known.objects.keys() and spans == known.spans:
                return known
            fresh = self._objects(client, read, [one for one in listed if one not in known.objects])
            objects = {one: known.objects.get(one) or fresh.get(one, ObjectFacts()) for one in listed}
            return MadeCode(objects, spans, self._tables(client, read, objects.values(), spans))
        finally:
            os.close(fd)

    @staticmethod
    def _objects(
        client: WorkerClient, read: Read, fresh: Iterable[RegisteredObject]
    ) -> dict[RegisteredObject, ObjectFacts]:
        data: dict[RegisteredObject, bytes] = {}
        for one in fresh:
            with suppress(OSError):
                data[one] = read(one.address, one.size)
        if not data:
            return {}
        answer = _ask(client, {"objects": [len(piece) for piece in data.values()]}, data.values())
        return dict(zip(data, map(_facts, answer["objects"]), strict=True))

    @staticmethod
    def _tables(
        client: WorkerClient, read: Read, objects: Iterable[ObjectFacts], spans: Collection[MemorySpan]
    ) -> dict[int, UnwindTable]:
        known = list(objects)
        code = sorted({span for facts in known for span in facts.code})
        made = [(start, end) for start, end in spans if any(start <= low < end for low, _ in code)]
        if not made:
            return {}
        frames = _memory(read, {place for facts in known for place in facts.frames})
        codes = _memory(read, ((low, high - low) for low, high in code))
        out = os.memfd_create("parprof-jit", os.MFD_CLOEXEC)
        try:
            request = {"frames": list(frames), "code": list(codes), "spans": made}
            answer = _ask(client, request, (*frames.values(), *codes.values()), out)
            tables: dict[int, UnwindTable] = {}
            at = 0
            for (start, _), size in zip(made, answer["rows"], strict=True):
                if not isinstance(size, int) or size % ROW_SIZE or not 0 <= size <= MAX_ROWS * ROW_SIZE:
                    raise ValueError("no rows")
                if size:
                    tables[start] = UnwindTable(os.pread(out, size, at))
                at += size
            return tables
        finally:
            os.close(out)

    def trim(self, idle_seconds: float = 60.0) -> None:
        """End the child, and give back its memory, if it had nothing to do for so long."""
        if self._thread is not None:
            self._wanted.put(lambda: self._client.stop_if_idle(idle_seconds))

    def close(self) -> None:
        """End the child; what is still looked at is not found."""
        self._closed = True
        self._wanted.put(None)
        self._client.interrupt()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)  # a target's memory may hang for ever
        self._client.close()


def _ask(client: WorkerClient, request: dict[str, Any], data: Iterable[bytes], *out: int) -> dict[str, Any]:
    """Have the child look at bytes.

    Raises:
        WorkerFailed: it did not; OSError: there is no memory for it.
    """
    fd = os.memfd_create("parprof-jit", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.writelines(data)
        answer = client.ask(request, [fd, *out], time.monotonic() + _SECONDS)
    finally:
        os.close(fd)
    if problem := answer.get("problem"):
        raise WorkerFailed(visible(str(problem), _MAX_NAME))
    return answer


def _memory(read: Read, places: Iterable[MemorySpan]) -> dict[MemorySpan, bytes]:
    """What is at these addresses, each with its number of bytes; not all where that is too much."""
    out: dict[MemorySpan, bytes] = {}
    left = MAX_BYTES // 2
    for address, size in places:
        if size <= left:
            with suppress(OSError):
                out[address, size] = read(address, size)
                left -= size
    return out


def _facts(raw: Any) -> ObjectFacts:
    """What the child says of an object.

    Raises:
        ValueError: that is nothing.
    """
    try:
        functions, code, frames = raw
        return ObjectFacts(
            tuple(
                MadeFunction(_number(start), _number(size), visible(str(name), _MAX_NAME))
                for start, size, name in functions
            ),
            tuple((_number(start), _number(end)) for start, end in code),
            tuple((_number(address), _number(size)) for address, size in frames),
        )
    except TypeError as error:
        raise ValueError("no facts about an object") from error


def _number(raw: Any) -> int:
    if not isinstance(raw, int) or not 0 <= raw < 1 << 63:
        raise ValueError("no number")
    return raw
