"""Code that JIT compilers make and register with debuggers, as GDB's JIT interface has it: names and unwind tables.

LLVM's MCJIT does so in each program that uses it (numba among them): of each piece of code there is an ELF object in
memory, in a list at a symbol. `registry` reads that list out of a process, `objects` and `tables` what is in it, in a
child (`worker`); `registered` has what came of it for one process.
"""
