"""parprofd: where the cores of a parallel program stand idle, and which line of code is to blame."""

from __future__ import annotations

__version__ = "0.1.0"
