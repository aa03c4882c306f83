"""The calling context tree, and the ways to look at it."""
