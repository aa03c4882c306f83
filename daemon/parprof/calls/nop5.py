"""What probes cost that `parprof.probes.prices` does not know, found by trying them on ourselves.

On a 5-byte nop, which recent kernels make cheap; and on a ``ret``, through which functions are left.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from parprof.calls.placing import NOP5
from parprof.errors import ParprofError
from parprof.kernel.call_counts import CallProbe
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Prices

_RETURN = b"\xc3"
_SIZE = 4096
_CALLS, _ROUNDS = 50, 20
"""Short rounds, of which the fastest counts: on a busy machine long ones are all disturbed."""
_FAILED = ctypes.c_void_p(-1).value


def nop5_is_cheap(kernel: BpfKernel, prices: Prices) -> bool:
    """Whether its price is nearer to that of an emulated instruction than to that of any other."""
    with suppress(OSError, ParprofError):
        cost_ns = _cost_ns(kernel, 0)
        return cost_ns < (prices.entry_ns + prices.dear_ns) / 2
    return False


def with_exits(kernel: BpfKernel, prices: Prices) -> Prices:
    """Prices as they are now, for a ``ret``, which the kernel executes out of line, as most instructions."""
    with suppress(OSError, ParprofError):
        cost_ns = int(_cost_ns(kernel, len(NOP5)))
        return replace(prices, dear_ns=cost_ns) if cost_ns > 0 else prices
    return prices


def _cost_ns(kernel: BpfKernel, offset: int) -> float:
    """What a probe takes from a call of a function in memory that is made for this: a 5-byte nop and a ``ret``.

    Raises:
        OSError, ParprofError: it cannot be tried.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    fd = os.memfd_create("parprof-nop5")
    try:
        os.write(fd, (NOP5 + _RETURN).ljust(_SIZE, b"\0"))
        at = libc.mmap(None, _SIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
        if at == _FAILED:
            raise OSError(ctypes.get_errno(), "no memory that may be executed")
        try:
            function = ctypes.CFUNCTYPE(None)(at)
            bare_ns = _call_ns(function)
            probes = kernel.calls.attach([CallProbe(f"/proc/self/fd/{fd}", offset, 0)], os.getpid())
            try:
                return _call_ns(function) - bare_ns
            finally:
                probes.close()
        finally:
            libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(_SIZE))
    finally:
        os.close(fd)


def _call_ns(function: Callable[[], object]) -> float:
    best_ns = float("inf")
    for _ in range(_ROUNDS):
        begun_ns = time.perf_counter_ns()
        for _ in range(_CALLS):
            function()
        best_ns = min(best_ns, (time.perf_counter_ns() - begun_ns) / _CALLS)
    return best_ns
