# SPDX-License-Identifier: Apache-2.0
"""Prices are measured once for each start of the machine, and a damaged file is measured anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Prices
from parprof.probes import prices

MEASURED = Prices(500, 18_000, 250, 17_000)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often prices were measured; the cache is a directory of the test's own."""
    out: list[int] = []
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path))
    monkeypatch.setattr(prices, "measure", lambda kernel: (out.append(1), MEASURED)[1])
    return out


def ask() -> Prices:
    return prices.machine_prices(cast(BpfKernel, None))


def file_of(tmp_path: Path) -> Path:
    return next((tmp_path / "prices").iterdir())


def test_measured_once(runs: list[int], tmp_path: Path) -> None:
    assert [ask(), ask(), ask()] == [MEASURED] * 3
    assert len(runs) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"entry_ns": 1}', '{"entry_ns": "x", "dear_ns": 2, "return_ns": 3, "interrupt_ns": 4}',
     json.dumps({"entry_ns": 0, "dear_ns": 18_000, "return_ns": 250, "interrupt_ns": 10**9})],
)  # fmt: skip
def test_a_damaged_file_is_measured_anew(runs: list[int], tmp_path: Path, text: str) -> None:
    ask()
    file_of(tmp_path).write_text(text)
    assert ask() == MEASURED
    assert len(runs) == 2


def test_a_file_that_others_can_write_is_not_believed(runs: list[int], tmp_path: Path) -> None:
    ask()
    file_of(tmp_path).chmod(0o666)
    ask()
    assert len(runs) == 2


def test_those_of_earlier_starts_go(runs: list[int], tmp_path: Path) -> None:
    (tmp_path / "prices").mkdir(mode=0o700)
    old = [tmp_path / f"prices/{number}.json" for number in range(9)]
    for number, file in enumerate(old):
        file.write_text("{}")
        os.utime(file, (1000 + number, 1000))
    ask()
    left = [file for file in old if file.exists()]
    assert left == old[6:], "four blocks are kept, one of them of this start"


def test_what_was_not_measured_is_typical_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one probe that was not hit, once, would make all dear ones look cheap until the machine starts anew."""
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path))
    found = [Prices(1200, 0, 700, 5000), Prices(1300, 13_000, 700, 5000)]
    monkeypatch.setattr(prices, "measure", lambda kernel: found.pop(0))
    assert ask() == Prices(1200, Prices().dear_ns, 700, 5000)
    assert ask() == ask() == Prices(1300, 13_000, 700, 5000)


def test_typical_prices_where_nothing_can_be_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(kernel: BpfKernel) -> Prices:
        raise PermissionError

    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path))
    monkeypatch.setattr(prices, "measure", refuse)
    assert ask() == Prices()
    assert not (tmp_path / "prices").exists()
