# SPDX-License-Identifier: Apache-2.0
"""What the daemon lost, and what of that can be of a process that somebody attaches to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parprof.commands.attach import _what_differs
from parprof.metrics import ACTIVATIONS
from parprof.service.losses import EXPECTED, LOST_MEANWHILE, Losses, lost_between
from profiles import heat


def test_only_what_can_be_of_a_watched_process_is_told_to_who_attaches() -> None:
    kernel = {"undecided": 5, "counts_full": 2}
    losses = Losses(lambda: kernel)
    losses.also("candidates_full", lambda: 3)
    assert losses.of_watched() == {"counts_full": 2}
    losses.settle()
    kernel["undecided"] = 9
    assert losses.counts() == {"settling": 5, "undecided": 4, "counts_full": 2, "candidates_full": 3}
    assert losses.of_watched() == {"counts_full": 2}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {}, ""),
        ({"memory": 7}, {"memory": 7}, ""),
        ({"memory": 7}, {"memory": 1240, "callers": 1}, "1 callers, 1,233 memory"),
    ],
)
def test_what_was_lost_meanwhile_in_words(before: dict[str, int], after: dict[str, int], told: str) -> None:
    assert lost_between(before, after) == told


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({LOST_MEANWHILE: ""}, False),
        ({LOST_MEANWHILE: "2 memory"}, "what the daemon lost meanwhile (2 memory) was of this process"),
        ({}, "says what was lost of this process alone"),  # a daemon of before does not tell
    ],
)
def test_attach_says_what_is_not_known_of_losses(extra: dict[str, str], said: str | bool) -> None:
    profile = heat()
    profile.extra = extra
    sentence = _what_differs(profile, 499)
    assert said in sentence if isinstance(said, str) else "lost" not in sentence
    assert "also counts calls" in sentence, "nor does it tell calls apart"
    profile.samples[0].metrics[ACTIVATIONS] = 3
    assert "counts calls" not in _what_differs(profile, 499)
    profile.samples.clear()
    assert "counts calls" not in _what_differs(profile, 499), "there was nothing to be told apart"


def test_the_alert_leaves_out_what_is_expected() -> None:
    rules = (Path(__file__).resolve().parents[2] / "grafana/rules/recording.yaml").read_text()
    left_out = re.findall(r'parprofd_lost_total\{reason!~"([^"]+)"', rules)
    assert left_out and all(set(one.split("|")) == EXPECTED for one in left_out)
