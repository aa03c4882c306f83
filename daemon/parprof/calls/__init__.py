"""Exact calls of chosen functions: which functions, where they are probed, and what was counted (malony-1987)."""
