"""For all tests: no time limits on single examples. On a busy machine they are missed for no fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("parprof", deadline=None)
settings.load_profile("parprof")
