"""Loops of hot functions, recovered from their machine code, as scopes of call paths.

`nest.find_loops` has the loops of one function, `kept.KeptLoops` has a child look for them, as code is what others
wrote, and `scopes.LoopScopes` puts them into call paths. Nothing is imported here: children load what they need, and no
more.
"""
