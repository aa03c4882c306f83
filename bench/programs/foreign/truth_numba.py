# SPDX-License-Identifier: Apache-2.0
"""Phases of known truth in numba: two threads work, then the first one. The work is C's, which logs it.

Usage: truth_numba.py LIBRARY (truth_calls.c).
"""

import ctypes
import sys

import numba

ROUNDS, UNIT_NS = 50, 20_000_000

calls = ctypes.CDLL(sys.argv[1])
serial, shared = calls.truth_serial, calls.truth_shared
for function in (serial, shared):
    function.argtypes, function.restype = [ctypes.c_uint64], None


@numba.njit(parallel=True)
def both(cpu_ns):
    for _ in numba.prange(2):
        shared(cpu_ns)


numba.set_num_threads(2)
both(0)  # compiled
calls.truth_begin()
for _ in range(ROUNDS):
    both(UNIT_NS)
    serial(UNIT_NS)
calls.truth_end()
