# SPDX-License-Identifier: Apache-2.0
"""The JSON report against DESIGN.md section 6."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

sys.path.insert(0, str(Path(__file__).parent))

from parprof.exporters import json_report
from parprof.model import SCOPE, TRACE_ELAPSED, TRACE_MINIMUM, ProcessInfo, Profile
from profiles import any_profile, heat

METRICS = ["samples", "work_s", "idleness_s", "overhead_s", "spin_s", "blame_s", "profiling_s"]
METRICS += ["stall_s", "outside_s", "wait_s", "ready_s", "stolen_s", "unused_s", "activations"]
NONE = dict.fromkeys(METRICS, 0.0)


def parsed(profile: Profile) -> dict[str, Any]:
    out = io.StringIO()
    json_report.write(profile, out)
    assert out.getvalue().isascii()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def keys(metrics: dict[str, Any]) -> list[str]:
    """Without the one that is only there where events were counted."""
    assert metrics.get("events") != {}
    return [key for key in metrics if key != "events"]


@given(any_profile)
def test_keys(profile: Profile) -> None:
    report = parsed(profile)
    assert list(report) == [
        "schema", "process", "duration_s", "frequency_hz", "totals", "elapsed_s", "concurrency", "scope", "advice",
        "causes", "lost", "cost", "functions", "paths",
    ]  # fmt: skip
    assert list(report["process"]) == ["pid", "comm", "command", "runtime", "cores", "n_w_source"]
    assert keys(report["totals"]) == [*METRICS, "efficiency", "verdict", "accounted", "counted_idleness_s"]
    assert list(report["cost"]) == ["target_percent", "daemon_percent"]
    for function in report["functions"]:
        assert list(function) == [
            "name",
            "file",
            "line",
            "module",
            "exclusive",
            "inclusive",
            "interval_percent",
            "rank_interval",
            "concurrency",
            "gain_bound",
            "verdict",
        ]
        assert list(function["concurrency"]) == ["exclusive", "inclusive"]
        for kind in ("exclusive", "inclusive"):
            assert list(function["interval_percent"][kind]) == ["work", "idleness", "overhead", "spin"]
        assert keys(function["exclusive"]) == keys(function["inclusive"]) == METRICS
    for path in report["paths"]:
        assert keys(path) == ["frames", *METRICS, "gain_bound", "verdict"]
    total = profile.total()
    for rows in (report["paths"], [f["exclusive"] for f in report["functions"]]):
        if all(sample.path for sample in profile.samples):
            assert sum(row["samples"] for row in rows) == total.samples
    assert sum(row["samples"] for row in report["paths"]) == total.samples


def test_values() -> None:
    profile = heat()
    profile.lost = {"map-full": 3}
    profile.target_cost_percent, profile.daemon_cost_percent = 0.5, 0.25
    report = parsed(profile)
    assert report["schema"] == 2
    assert report["process"]["n_w_source"] == "exact"
    assert report["totals"] == {
        **NONE,
        "samples": 4510, "work_s": 4.46, "idleness_s": 0.96, "overhead_s": 0.1, "spin_s": 0.05, "blame_s": 0,
        "profiling_s": 0,
        "efficiency": pytest.approx(4.36 / 5.42, abs=1e-6), "verdict": "refine",
        "accounted": None, "counted_idleness_s": None,
    }  # fmt: skip
    assert report["lost"] == {"map-full": 3}
    assert report["cost"] == {"target_percent": 0.5, "daemon_percent": 0.25}


def test_what_an_execution_trace_says() -> None:
    profile = heat()
    profile.extra = {**profile.extra, TRACE_ELAPSED: "1.500000", TRACE_MINIMUM: "0.250000"}
    assert parsed(profile)["trace"] == {"elapsed_s": 1.5, "minimum_time_s": 0.25}


def test_the_scope_is_what_was_chosen() -> None:
    profile = heat()
    assert parsed(profile)["scope"]["kind"] == "process"
    profile.extra = {**profile.extra, SCOPE: "cgroup"}
    assert parsed(profile)["scope"]["kind"] == "cgroup"


def test_functions_by_exclusive_idleness() -> None:
    functions = parsed(heat())["functions"]
    assert [function["name"] for function in functions] == [
        "vfprintf", "write", "fib", "main", "fprintf", "write_boundary", "step", "barrier", "solve",
    ]  # fmt: skip
    boundary = functions[5]
    assert (boundary["file"], boundary["line"]) == ("/home/u/heat/heat.c", 33)
    assert boundary["exclusive"]["samples"] == 0
    assert boundary["inclusive"]["idleness_s"] == 0.9


def test_what_a_fix_would_gain() -> None:
    """Without the idleness of a function and of all that it calls."""
    report = parsed(heat())
    gains = {function["name"]: function["gain_bound"] for function in report["functions"]}
    assert gains["write_boundary"] == pytest.approx(5.42 / 4.52, abs=1e-6)
    assert gains["main"] == pytest.approx(5.42 / 4.46, abs=1e-6)
    assert gains["step"] == 1
    assert report["causes"][0]["gain_bound"] == gains["write_boundary"]


def test_recursion_counts_once() -> None:
    fib = next(function for function in parsed(heat())["functions"] if function["name"] == "fib")
    assert fib["inclusive"] == fib["exclusive"]
    assert fib["inclusive"]["work_s"] == 0.06


def test_paths_are_root_first() -> None:
    paths = parsed(heat())["paths"]
    assert len(paths) == 5  # work and spin in the barrier are one path
    assert paths[0] == {
        **NONE,
        "frames": ["main", "write_boundary", "fprintf", "vfprintf"],
        "samples": 200, "work_s": 0.2, "idleness_s": 0.6, "overhead_s": 0.0, "spin_s": 0.0, "blame_s": 0.0,
        "profiling_s": 0.0, "gain_bound": pytest.approx(5.42 / 4.82, abs=1e-6), "verdict": "refine",
    }  # fmt: skip


def test_nothing() -> None:
    report = parsed(Profile(ProcessInfo(), 0.0, 0, []))
    assert report["functions"] == report["paths"] == []
    assert report["totals"]["efficiency"] == 0
    assert report["totals"]["verdict"] == "unknown"


def test_events() -> None:
    profile = heat()
    profile.samples[0].metrics.events = {"page-faults": 7}
    report = parsed(profile)
    assert report["totals"]["events"] == {"page-faults": 7}
    functions = {function["name"]: function for function in report["functions"]}
    assert (
        functions["main"]["inclusive"]["events"]
        == functions["vfprintf"]["exclusive"]["events"]
        == {"page-faults": 7}
    )
    assert "events" not in functions["step"]["inclusive"]


def test_causes() -> None:
    report = parsed(heat())
    cause, *_ = report["causes"]
    assert (cause["kind"], cause["path"], cause["function"]) == (
        "serial",
        ["main", "write_boundary"],
        "write_boundary",
    )
    assert (cause["file"], cause["line"]) == ("/home/u/heat/heat.c", 33)
    assert cause["lost_s"] == 0.9
    assert cause["lost_percent"] == pytest.approx(100 * 0.9 / 5.42, abs=1e-3)
    assert cause["interval_percent"][0] < cause["lost_percent"] < cause["interval_percent"][1]
    assert cause["gain_bound"] == pytest.approx(5.42 / (5.42 - 0.9), abs=1e-3)
    assert cause["remedy"]


def test_advice_is_the_first_causes() -> None:
    report = parsed(heat())
    advice, *_ = report["advice"]["paths"]
    assert report["advice"]["sentence"] == advice["sentence"]
    assert advice["sentence"].startswith("serial code in main > write_boundary (heat.c:33): one thread works")
    assert advice["frames"] == ["main", "write_boundary"]
    assert (advice["file"], advice["line"]) == ("/home/u/heat/heat.c", 33)
    assert (advice["verdict"], advice["idleness_s"]) == ("refine", 0.9)
    assert advice["lost_percent"] == pytest.approx(100 * 0.9 / 1.06, abs=1e-3)
    assert advice["effort_percent"] == pytest.approx(100 * 0.9 / 5.42, abs=1e-3)


def test_verdicts_are_those_of_subtrees() -> None:
    report = parsed(heat())
    verdicts = {function["name"]: function["verdict"] for function in report["functions"]}
    assert verdicts["main"] == verdicts["write_boundary"] == "refine"
    assert verdicts["step"] == verdicts["solve"] == "effectively parallel"
    assert verdicts["barrier"] == "coarsen"
