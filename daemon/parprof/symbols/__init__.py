"""Addresses to frames: names, files, lines and inlined functions.

Nothing is imported here: children that read hostile files load what they need, and no more.
"""
