"""The paper's table: work and span of each call site (schardl-2015 sec. 6), of programs built with hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parprof.model import Frames
from parprof.scale.record import Address, CallRecord, CallSums, SpanRecord
from parprof.values import dataclass

_OUTSIDE, _OTHER = 0, 1


@dataclass(frozen=True, slots=True)
class CallSite:
    """One function as it is called from one place, with its names."""

    place: str
    """``solve.c:112``."""
    caller: str
    callee: str
    on_work: CallSums
    on_span: CallSums
    path: Frames = ()
    """Root first: the caller with its loops and what is inlined, then the function that is called."""

    @property
    def label(self) -> str:
        """``partition at sort.c:31 in sort``."""
        if not self.callee:
            return self.place
        inside = f" in {self.caller}" if self.caller else ""
        return f"{self.callee} at {self.place}{inside}" if self.place else f"{self.callee}{inside}"


def addresses_of(call: CallRecord) -> tuple[Address, Address, Address]:
    """Where the call is, its callee and its caller, as addresses after which names are looked for.

    A function is known by its first address: one more stands for the code there, as return addresses do.
    """
    return call.address, _inside(call.callee), _inside(call.caller)


def _inside(function: Address) -> Address:
    return replace(function, vaddr=function.vaddr + 1) if function.vaddr else function


def call_sites(
    record: SpanRecord, resolve: Callable[[Address], Frames], place_of: Callable[[Frames], str]
) -> tuple[CallSite, ...]:
    """A run's call sites, what adds most to the span first: by local span on span."""
    found = [_call_site(call, resolve, place_of) for call in record.calls]
    found.sort(key=lambda one: (-one.on_span.local_span_s, -one.on_work.local_work_s, one.label))
    return tuple(found)


def _call_site(
    call: CallRecord, resolve: Callable[[Address], Frames], place_of: Callable[[Frames], str]
) -> CallSite:
    if call.index in (_OUTSIDE, _OTHER):
        place = "outside of the functions with hooks" if call.index == _OUTSIDE else "other call sites"
        return CallSite(place, "", "", call.on_work, call.on_span)
    at, callee, caller = (resolve(one) if one.vaddr else () for one in addresses_of(call))
    path = (*reversed(at), *_function(callee))
    return CallSite(place_of(at), _name(caller), _name(callee), call.on_work, call.on_span, path)


def _function(frames: Frames) -> Frames:
    """The function itself, not what is inlined at its begin."""
    return next(((frame,) for frame in reversed(frames) if not frame.is_loop), ())


def _name(frames: Frames) -> str:
    return next((frame.name for frame in _function(frames)), "")
