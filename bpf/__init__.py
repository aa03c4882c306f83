"""The BPF programs, as package data: C text that ``parprof.kernel`` compiles at run time."""
