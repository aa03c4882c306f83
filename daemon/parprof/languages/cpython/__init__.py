"""CPython: its functions in the stacks of its evaluation loop, read from the process's memory."""
