"""Amounts by site, instrument/span_prof.h, against dictionaries: short lists, which are searched, and long ones."""

from __future__ import annotations

import ctypes
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

HEADER = Path(__file__).resolve().parents[2] / "instrument" / "span_prof.h"
SOURCE = """
#include "span_prof.h"
static struct prof profs[3];
void begin(void) { for (int i = 0; i < 3; i++) prof_init(&profs[i]); }
void end(void) { for (int i = 0; i < 3; i++) prof_free(&profs[i]); }
void add(int prof, uint32_t site, uint64_t cycles) { prof_add(&profs[prof], site, cycles, 1); }
void clear(int prof, int unused) { prof_clear(&profs[prof]); }
void copy(int into, int from) { if (into != from) prof_copy(&profs[into], &profs[from]); }
void join(int into, int from) { if (into != from) prof_union(&profs[into], &profs[from]); }
void take_out(int prof, int unused)
{
	struct prof_entry *entries = prof_entries(&profs[prof]), first = entries[0];
	if (!profs[prof].length)
		return;
	entries[0] = entries[--profs[prof].length];
	prof_place(&profs[prof], 0);
	prof_add(&profs[prof], first.site, first.cycles, first.count);
}
uint32_t print(int prof, uint64_t *out)
{
	for (uint32_t i = 0; i < profs[prof].length; i++) {
		out[2 * prof_entries(&profs[prof])[i].site] += prof_entries(&profs[prof])[i].cycles;
		out[2 * prof_entries(&profs[prof])[i].site + 1] += prof_entries(&profs[prof])[i].count;
	}
	return profs[prof].length;
}
"""
PROFS, SITES = 3, 300


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("prof")
    (folder / "prof.c").write_text(SOURCE)
    output = folder / "prof.so"
    flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Werror",
    ]
    subprocess.run(["gcc", *flags, f"-I{HEADER.parent}", folder / "prof.c", "-o", output], check=True)
    return ctypes.CDLL(str(output))


PROF = st.integers(0, PROFS - 1)
RUN = st.tuples(st.just("add"), PROF, st.integers(0, SITES - 1), st.integers(1, 90))
"""Adds to so many sites from this one on."""
STEPS = st.lists(
    RUN | st.tuples(st.sampled_from(("clear", "copy", "join", "take_out")), PROF, PROF, st.just(0)),
    max_size=40,
)


@given(STEPS)
def test_it_does_what_dictionaries_do(library: ctypes.CDLL, steps: list[tuple[str, int, int, int]]) -> None:
    library.begin()
    model = [Counter[tuple[int, int]]() for _ in range(PROFS)]
    for step, (name, prof, other, length) in enumerate(steps):
        if name == "add":
            for site in ((other + at) % SITES for at in range(length)):
                library.add(prof, site, ctypes.c_uint64(step + site))
                model[prof].update({(site, 0): step + site, (site, 1): 1})
            continue
        getattr(library, name)(prof, other)
        if name == "clear":
            model[prof].clear()
        elif name == "copy" and prof != other:
            model[prof] = model[other].copy()
        elif name == "join" and prof != other:
            model[prof].update(model[other])
    for prof in range(PROFS):
        out = (ctypes.c_uint64 * (2 * SITES))()
        assert library.print(prof, out) == len({site for site, _ in model[prof]}), "each site once"
        assert list(out) == [model[prof][at // 2, at % 2] for at in range(2 * SITES)]
    library.end()
