"""How each routine's cost grows with its input: records of instrumented programs, their fit, and what to say of it.

coppa-2013. What counts is in ``instrument/input_algorithm.h``; a process leaves a record file (`records`), whose
addresses get names (`naming`); several make one `InputProfile` (`model`), whose routines get a `fit` and the whole a
sentence (`advice`).
"""
