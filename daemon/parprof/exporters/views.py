"""What of a profile can be shown in a table; apart from what shows it, which takes long to import."""

from __future__ import annotations

VIEWS = ("context", "callers", "flat")
"""Call paths from the root, functions and their callers, functions."""
DEFAULT_LIMIT = 40
"""Rows."""
