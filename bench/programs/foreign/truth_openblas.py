# SPDX-License-Identifier: Apache-2.0
"""Serial code between products of matrices, which OpenBLAS computes on two threads: the serial code is logged.

Usage: OPENBLAS_NUM_THREADS=2 truth_openblas.py LIBRARY (truth_calls.c).
"""

import ctypes
import sys

import numpy

ROUNDS, UNIT_NS = 60, 20_000_000

calls = ctypes.CDLL(sys.argv[1])
calls.truth_serial.argtypes, calls.truth_serial.restype = [ctypes.c_uint64], None
a = numpy.random.default_rng(1).random((700, 700))
calls.truth_begin()
for _ in range(ROUNDS):
    b = a @ a
    calls.truth_serial(UNIT_NS)
calls.truth_end()
