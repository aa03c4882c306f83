"""The prof data structure of instrument/span_prof_calls.h against dictionaries, on made-up sequences of its methods."""

from __future__ import annotations

import ctypes
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = Path(__file__).resolve().parents[2] / "instrument" / "span_prof_calls.h"
PROFS, AMOUNTS = 4, 9
SOURCE = """
#include "span_prof_calls.h"
static struct call_prof profs[4];
static uint32_t known = 1;
void know(uint32_t calls) { known = calls; }
void init(int prof) { call_prof_clear(&profs[prof]); }
void assign(int into, int from) { call_prof_assign(&profs[into], &profs[from]); }
void update(int prof, uint32_t call, const uint64_t *amounts)
{
	struct call_amounts given;
	memcpy(&given, amounts, sizeof(given));
	call_prof_update(&profs[prof], call, &given, known);
}
void join(int into, int from) { call_prof_union(&profs[into], &profs[from], known); }
void add(int into, int from) { call_prof_add(&profs[into], &profs[from], known); }
int is_empty(int prof) { return call_prof_is_empty(&profs[prof]); }
uint32_t logged(int prof) { return profs[prof].logged; }
uint32_t size(int prof) { return profs[prof].size; }
void print(int prof, uint64_t *out)
{
	for (struct call_entry *entry = profs[prof].first; entry; entry = entry->next)
		for (int i = 0; i < CALL_AMOUNTS; i++)
			out[entry->call * CALL_AMOUNTS + i] += entry->amounts.of[i];
	for (uint32_t call = 0; call < profs[prof].size; call++)
		for (int i = 0; i < CALL_AMOUNTS; i++)
			out[call * CALL_AMOUNTS + i] += profs[prof].dense[call].of[i];
}
"""
MAX_CALLS = 40


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("prof")
    (folder / "prof.c").write_text(SOURCE)
    output = folder / "prof.so"
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    include = f"-I{HEADER.parent}"
    subprocess.run(["gcc", *flags, include, str(folder / "prof.c"), "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


Model = list[Counter[tuple[int, int]]]
PROF = st.integers(0, PROFS - 1)
STEP = st.one_of(
    st.tuples(
        st.just("update"), PROF, st.integers(0, MAX_CALLS - 1),
        st.lists(st.integers(0, 1 << 40), min_size=AMOUNTS, max_size=AMOUNTS),
    ),
    st.tuples(st.just("updates"), PROF, st.integers(0, MAX_CALLS - 1), st.integers(1, 60)),
    st.tuples(st.sampled_from(["assign", "join", "add"]), PROF, PROF),
    st.tuples(st.just("init"), PROF),
    st.tuples(st.just("grow"), st.integers(1, 8)),
)  # fmt: skip


def printed(library: ctypes.CDLL, prof: int) -> Counter[tuple[int, int]]:
    out = (ctypes.c_uint64 * (MAX_CALLS * AMOUNTS))()
    library.print(prof, out)
    return +Counter({divmod(at, AMOUNTS): value for at, value in enumerate(out)})


class Both:
    """The C and the model, in step."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.known = 1
        self.model: Model = [Counter() for _ in range(PROFS)]
        library.know(1)
        for prof in range(PROFS):
            library.init(prof)

    def update(self, prof: int, call: int, amounts: Sequence[int]) -> None:
        call %= self.known  # a call site has its number before it is used
        self.library.update(prof, call, (ctypes.c_uint64 * AMOUNTS)(*amounts))
        self.model[prof].update({(call, at): value for at, value in enumerate(amounts) if value})

    def step(self, name: str, *words: object) -> None:
        match name, words:
            case "update", (int(prof), int(call), list(amounts)):
                self.update(prof, call, amounts)
            case "updates", (int(prof), int(call), int(times)):
                for time in range(times):
                    self.update(prof, call + time * 7, range(time, time + AMOUNTS))
            case "init", (int(prof),):
                self.library.init(prof)
                self.model[prof] = Counter()
                assert self.library.is_empty(prof)
            case "grow", (int(more),):
                self.known = min(self.known + more, MAX_CALLS)
                self.library.know(self.known)
            case method, (int(into), int(from_)) if into != from_:
                self._two(str(method), into, from_)

    def _two(self, method: str, into: int, from_: int) -> None:
        getattr(self.library, method)(into, from_)
        if method == "assign":
            self.model[into] = Counter()
        self.model[into].update(self.model[from_])
        if method != "add":
            self.model[from_] = Counter()
            assert self.library.is_empty(from_)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_it_is_a_dictionary_of_sums(library: ctypes.CDLL, steps: list[tuple[object, ...]]) -> None:
    both = Both(library)
    for name, *words in steps:
        both.step(str(name), *words)
        for prof in range(PROFS):
            assert printed(library, prof) == +both.model[prof]
            # theorem 6: O(call sites) of memory
            assert library.logged(prof) <= both.known and library.size(prof) <= both.known


def test_a_long_log_becomes_an_array(library: ctypes.CDLL) -> None:
    both = Both(library)
    both.step("grow", 9)
    for call in range(10):
        both.update(0, call, [1] * AMOUNTS)
    assert (library.logged(0), library.size(0)) == (10, 0)
    both.update(0, 3, [1] * AMOUNTS)
    assert (library.logged(0), library.size(0)) == (0, 10)
    both.step("grow", 5)
    both.update(0, 14, [1] * AMOUNTS)  # the array is too short for it: logged again
    assert (library.logged(0), library.size(0)) == (1, 10)
    assert printed(library, 0) == both.model[0]
