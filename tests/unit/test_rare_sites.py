# SPDX-License-Identifier: Apache-2.0
"""Where the creation of threads is probed, and what that is thought to cost."""

from __future__ import annotations

import os

from parprof.files.dso_cache import DsoCache
from parprof.probes.plan import _creation_sites, make_plan
from parprof.process.loadmap import LoadMap

PUSHES = (*(bytes((0x50 + register,)) for register in range(8)), b"\x41")


def test_a_push_is_cheap() -> None:
    """What a hit is charged must be what it costs: ten times too much, and the breaker cuts creations off too soon."""
    cache = DsoCache()
    try:
        load_map = LoadMap.read(os.getpid(), None, cache)
        assert not make_plan(load_map).rare_sites, "without a runtime the tracepoint tells of creators"
        sites = _creation_sites(load_map.dsos(), [])
        assert sites
        for site in sites:
            with open(site.path, "rb") as file:
                file.seek(site.offset)
                code = file.read(2)
            starts_with_push = code[:1] in PUSHES and (code[0] != 0x41 or 0x50 <= code[1] < 0x58)
            assert site.dear is not starts_with_push
    finally:
        cache.close()
