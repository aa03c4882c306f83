"""Interpreters: the functions of their language in the stacks that the unwinder sees. CPython is the only one."""
