# SPDX-License-Identifier: Apache-2.0
"""Reports of profiles in this process: a process of their own would take a second to start."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from parprof.__main__ import main


def report_of(profile: Path) -> dict[str, Any]:
    """What `parprof report --json` says."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["report", "--json", str(profile)]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found
