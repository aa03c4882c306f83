# SPDX-License-Identifier: Apache-2.0
"""What the reader of a profile that was made through the daemon must know of how it was made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parprof.service.watching import NOT_FOLLOWED, _not_followed


@pytest.mark.parametrize(
    ("job_time", "notes"),
    [
        (None, []),
        (SimpleNamespace(ticked=False), []),
        (SimpleNamespace(ticked=True), [NOT_FOLLOWED]),
    ],
)
def test_switches_that_were_not_followed_are_told(job_time: Any, notes: list[str]) -> None:
    charged: Any = SimpleNamespace(job_time=job_time)
    assert _not_followed(charged) == notes
