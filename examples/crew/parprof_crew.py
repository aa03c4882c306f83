# SPDX-License-Identifier: Apache-2.0
"""All that parprof has to know of crew.h: as a runtime whose edges of work are probed, or as a pool without probes.

One of the two will do. ``pyproject.toml`` names them as entry points.
"""

from __future__ import annotations

import re

from parprof.plans import Edge
from parprof.runtimes import Agent, hook
from parprof.runtimes.pools import Pool


class Crew(Agent):
    """crew.h, compiled into a program."""

    name = "crew"
    marker = "crew_serve"
    functions = re.compile(r"crew_(?:serve|run|start)\b")
    joins = True
    hooks = (
        hook(
            "crew_run",
            Edge.REGION,
            "has its first argument run by all threads, the caller among them, and waits for them (crew.h)",
            learn_argument=1,
            instance_argument=2,
        ),
    )

    def outlined_instance(self, name: str) -> int:
        """Functions that are run get the data of their call as their first argument."""
        return 1


CREW_POOL = Pool(
    name="crew",
    library=re.compile(r"(?!)"),
    serves=re.compile(r"crew_serve"),
    hands_out=re.compile(r"crew_run"),
    runs_any=True,
)
