# SPDX-License-Identifier: Apache-2.0
"""What Prometheus sees: names, values, hostile labels, and counters that never fall."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

sys.path.insert(0, str(Path(__file__).parent))

from parprof.metrics import Metrics
from parprof.service.config.options import DaemonOptions
from parprof.service.levels import FIRST_OF_LEVEL
from parprof.service.metrics.collector import MetricsPage, ServiceCollector
from parprof.service.metrics.series import (
    MAX_LABEL,
    REST,
    Amounts,
    BoundedCounters,
    FunctionKey,
    FunctionLedger,
    HighWater,
    label,
    minus,
    plus,
)
from parprof.service.metrics.tables import LEVEL_NAMES
from parprof.service.model import FunctionUse, Labels
from stand_in_service import Program, StandInService

DOCS = Path(__file__).resolve().parents[2] / "docs/metrics.md"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(page: MetricsPage, accept: str = "") -> Series:
    """All samples of a page, as prometheus_client's own parser reads them; each series once."""
    text = b"".join(page.render(accept)[1]).decode()
    out: Series = {}
    for family in (parse_openmetrics if accept else parse_text)(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in out, f"{key} twice"
            out[key] = sample.value
    return out


def value(series: Series, name: str, **labels: str) -> float:
    found = [
        number
        for (metric, pairs), number in series.items()
        if metric == name and labels.items() <= dict(pairs).items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@pytest.fixture
def service() -> StandInService:
    return StandInService()


def test_results(service: StandInService) -> None:
    heat = service.snapshot().processes[0]
    series = scrape(MetricsPage(service))
    own = {"comm": "heat", "pid": "42", "cgroup": "", "runtime": "libgomp"}
    assert value(series, "parprof_work_seconds_total", **own) == heat.totals.work_ns / 1e9
    assert value(series, "parprof_idleness_seconds_total", **own) == heat.totals.idleness_ns / 1e9
    assert value(series, "parprof_overhead_seconds_total", **own) == heat.totals.overhead_ns / 1e9
    assert value(series, "parprof_spin_seconds_total", **own) == heat.totals.spin_ns / 1e9
    assert value(series, "parprof_profiling_seconds_total", **own) == heat.totals.profiling_ns / 1e9 > 0
    assert value(series, "parprof_threads", state="working", **own) == heat.threads["working"]
    assert value(series, "parprof_cores", **own) == 8
    useful = heat.totals.work_ns - heat.totals.overhead_ns
    ratio = value(series, "parprof_parallel_efficiency_ratio", **own)
    assert ratio == pytest.approx(useful / heat.totals.effort_ns)
    assert value(series, "parprof_process_info", n_w_source="exact", **own) == 1
    solve = value(
        series, "parprof_function_idleness_seconds_total", pid="42", function="solve", module="heat"
    )
    assert solve == pytest.approx(0.7 * heat.totals.idleness_ns / 1e9)


def test_programs_with_one_thread_have_no_unused_cores(service: StandInService) -> None:
    """Not 0 either: rules take them out of efficiency by what they do not have. Of a group one is enough."""
    service.programs[0].is_parallel = False
    service.advance(1)
    series = scrape(MetricsPage(service))
    found = {dict(pairs)["pid"] for name, pairs in series if name == "parprof_unused_seconds_total"}
    assert found == {"77"}
    assert value(series, "parprof_work_seconds_total", pid="42") > 0
    service.programs += [Program(78, "solver", is_parallel=False), Program(43, "heat", is_parallel=False)]
    series = scrape(MetricsPage(by_group(service)))
    found = {dict(pairs)["comm"] for name, pairs in series if name == "parprof_unused_seconds_total"}
    assert found == {"solver"}


def test_what_the_machine_has_and_left_idle(service: StandInService) -> None:
    page = MetricsPage(service)
    assert value(scrape(page), "parprof_node_cores") == 8
    before = value(scrape(page), "parprof_node_idle_seconds_total")
    service.advance(3)
    assert value(scrape(page), "parprof_node_idle_seconds_total") == before + 3


def test_daemon(service: StandInService) -> None:
    service.unhealthy = "the loop has not turned for 9 s"
    series = scrape(MetricsPage(service))
    snapshot = service.snapshot()
    assert value(series, "parprofd_samples_total") == snapshot.samples
    assert value(series, "parprofd_lost_total", reason="ring_full") == snapshot.lost["ring_full"]
    assert value(series, "parprofd_lost_total", reason="stack_map_full") == 0
    assert value(series, "parprofd_probe_hits_total", runtime="libgomp") == snapshot.probe_hits["libgomp"]
    hits = [count for (name, _), count in series.items() if name == "parprofd_probe_hits_total"]
    assert sum(hits) == sum(snapshot.probe_hits.values()), (
        "each hit once: kinds of edges are a metric of their own"
    )
    assert value(series, "parprofd_edge_hits_total", edge="work") == snapshot.edge_hits["work"]
    transitions = series[("parprofd_governor_transitions_total", (("from", "exact"), ("to", "sampled")))]
    assert transitions == 100
    assert value(series, "parprofd_attach_failures_total", runtime="libomp", reason="stripped") == 100
    assert value(series, "parprofd_pushed_profiles_total", backend="pyroscope", outcome="sent") == 100
    assert value(series, "parprofd_push_queued_profiles", backend="pyroscope") == 100
    assert value(series, "parprofd_push_queued_bytes", backend="pyroscope") == 2_500_000
    assert value(series, "parprofd_push_failing", backend="pyroscope") == 1
    assert value(series, "parprofd_push_failing", backend="parca") == 0
    assert value(series, "parprofd_target_cost_ratio", pid="42") == 0.004
    assert value(series, "parprofd_budget_ratio") == 0.01
    assert value(series, "parprofd_processes") == 2
    assert value(series, "parprofd_drain_seconds") == 0.012
    assert value(series, "parprofd_snapshot_timestamp_seconds") == snapshot.time_s
    assert value(series, "parprofd_healthy") == 0
    assert value(series, "parprofd_ready") == 1
    assert value(series, "parprofd_build_info") == 1
    assert value(series, "process_cpu_seconds_total") > 0


@pytest.mark.parametrize("openmetrics", [False, True])
def test_text_is_what_prometheus_client_writes(service: StandInService, openmetrics: bool) -> None:
    service.programs[0].comm = 'a"b\\c'
    service.advance(1)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5" if openmetrics else "text/plain"
    kind, page = MetricsPage(service).render(accept)
    assert kind.startswith(
        "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
    )
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    theirs = (generate_openmetrics if openmetrics else generate_latest)(registry).decode()

    def parsed(text: str) -> list[tuple[str, str, str, list[tuple[object, ...]]]]:
        families = (parse_openmetrics if openmetrics else parse_text)(text)
        return [
            (
                f.name,
                f.type,
                f.documentation,
                [(s.name, sorted(s.labels.items()), s.value) for s in f.samples],
            )
            for f in families
            if not f.name.startswith(("process_", "parprofd_children_"))
        ]

    ours = parsed(b"".join(page).decode())
    assert ours == parsed(theirs)
    assert ours


def test_every_metric_is_documented(service: StandInService) -> None:
    service.programs[0].totals.blame_ns = 1e9  # functions have series of it only where there is any
    service.advance(1)
    exported = {name for name, _ in scrape(MetricsPage(service)) if name.startswith("parprof")} | {
        "parprofd_http_requests_total"
    }
    service.by_process = False
    service.advance(1)
    exported |= {name for name, _ in scrape(MetricsPage(service)) if name.startswith("parprof")}
    documented = set(re.findall(r"`(parprofd?_[a-z_]*[a-z])\b(?!_)", DOCS.read_text()))
    assert exported == documented


def test_a_process_has_a_bounded_number_of_series(service: StandInService) -> None:
    """As the manual says. Programs of thirty functions, of which the daemon's default lets some through."""
    most = DaemonOptions().functions_per_process
    heat = service.programs[0]
    heat.functions = {f"f{number}": 1 / 30 for number in range(30)}
    heat.totals.blame_ns = 1e9
    service.advance(10)
    snapshot = service.snapshot()
    (process,) = (one for one in snapshot.processes if one.pid == heat.pid)
    shown = replace(process, functions=process.functions[:most], levels_s=(1.0,) * len(LEVEL_NAMES))
    families = ServiceCollector(service).families(replace(snapshot, processes=(shown,)))
    every = [dict(zip(row.names, row.values, strict=True)) for family in families for row, _ in family.rows]
    own = [labels for labels in every if labels.get("pid") == str(heat.pid)]
    by_function = [labels for labels in own if "function" in labels]
    assert len(own) - len(by_function) == 26 and len(by_function) == 5 * (most + 1) == 30


def test_what_a_process_belongs_to_is_on_all_its_series(service: StandInService) -> None:
    cid, uid = "ab" * 32, "01234567-89ab-cdef-0123-456789abcdef"
    heat, solver = service.programs
    heat.labels = Labels(container=cid, pod=uid, pod_name="cart-0", namespace="shop")
    solver.labels = Labels(unit="solver.service", pod=uid)
    service.advance(1)
    series = scrape(MetricsPage(service))
    own = [dict(pairs) for name, pairs in series if ("pid", "42") in pairs]
    assert len(own) > 30
    expected = {"container": cid, "pod": "cart-0", "namespace": "shop"}
    assert all(expected.items() <= one.items() and "unit" not in one for one in own)
    assert value(series, "parprof_process_info", pid="42", pod_uid=uid) == 1
    assert value(series, "parprof_work_seconds_total", unit="solver.service", pod=uid) > 0


def by_group(service: StandInService) -> StandInService:
    service.by_process = False
    service.advance(1)
    return service


def test_without_pids_counters_never_fall(service: StandInService) -> None:
    """Processes of two names come and go; each series only grows, and all together are the machine's."""
    page = MetricsPage(by_group(service))
    before: Series = {}
    for turn in range(20):
        name = ("heat", "solver")[turn % 2]
        functions = {f"f{turn % 7}": 0.4, f"g{turn % 3}": 0.5}
        service.programs.append(Program(1000 + turn, name, functions=functions))
        service.advance(2, steps=3)
        if turn % 3 == 2:
            service.end(service.programs[0].pid)
        series = scrape(page)
        assert not [pairs for _, pairs in series if "pid" in dict(pairs)]
        for key, number in series.items():
            assert not key[0].endswith("_total") or number >= before.get(key, 0), key
        before = series
    for kind in ("work", "idleness", "overhead", "spin"):
        total = value(before, f"parprof_node_{kind}_seconds_total")
        each = [number for (name, _), number in before.items() if name == f"parprof_{kind}_seconds_total"]
        assert len(each) == 2 and sum(each) == pytest.approx(total)
        parts = [
            number for (name, _), number in before.items() if name == f"parprof_function_{kind}_seconds_total"
        ]
        assert sum(parts) == pytest.approx(total)
    live = len(service.programs)
    gauges = [number for (name, _), number in before.items() if name == "parprof_processes"]
    assert sum(gauges) == live == value(before, "parprofd_processes")


def test_without_pids_a_group_has_a_bounded_number_of_series(service: StandInService) -> None:
    most = DaemonOptions().functions_per_process
    by_group(service)
    service.programs = [Program(number, "heat") for number in range(100, 200)]
    for program in service.programs:
        program.functions = {f"f{number}": 1 / 30 for number in range(30)}
        program.totals.blame_ns = 1e9
    service.all_programs = []
    service.advance(10)
    snapshot = service.snapshot()
    assert snapshot.groups is not None and len(snapshot.groups) == 1
    group = replace(
        snapshot.groups[0],
        functions=snapshot.groups[0].functions[:most],
        levels_s=(1.0,) * len(LEVEL_NAMES),
    )
    families = ServiceCollector(service).families(replace(snapshot, groups=(group,)))
    every = [dict(zip(row.names, row.values, strict=True)) for family in families for row, _ in family.rows]
    own = [labels for labels in every if labels.get("comm") == "heat"]
    by_function = [labels for labels in own if "function" in labels]
    assert len(own) - len(by_function) == 26 and len(by_function) == 5 * (most + 1) == 30


def test_the_childrens_cost_is_told(service: StandInService) -> None:
    """Of a child that lives, and of the same when it has ended; it never falls."""
    page = MetricsPage(service)
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ntime.sleep(60)"
    before = value(scrape(page), "parprofd_children_cpu_seconds_total")
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        during = scrape(page)
        child.kill()
    after = value(scrape(page), "parprofd_children_cpu_seconds_total")
    living = value(during, "parprofd_children_cpu_seconds_total")
    assert before + 0.35 <= living <= after < before + 3
    assert value(during, "parprofd_children_resident_memory_bytes") > 4e6


def test_series_of_ended_processes_go_but_their_time_stays(service: StandInService) -> None:
    page = MetricsPage(service)
    before = scrape(page)
    service.end(42)
    after = scrape(page)
    assert not [key for key in after if ("pid", "42") in key[1]]
    for kind in ("work", "idleness", "overhead", "spin", "profiling"):
        name = f"parprof_node_{kind}_seconds_total"
        assert value(after, name) == value(before, name) > 0
        # Nor is it only remembered.
        assert value(scrape(MetricsPage(service)), name) == pytest.approx(value(before, name))


def test_time_by_threads_at_work(service: StandInService) -> None:
    heat = service.snapshot().processes[0]
    series = scrape(MetricsPage(service))
    own = {
        dict(pairs)["n_working"]: number
        for (name, pairs), number in series.items()
        if name == "parprof_concurrency_seconds_total" and ("pid", "42") in pairs
    }
    assert list(own.values()) == list(heat.levels_s[: len(own)])
    assert list(own) == ["0", "1", "2-3", "4-7", "8-15"]  # it may use 8 cores
    assert sum(own.values()) == pytest.approx(500)
    for level in own:
        name = "parprof_concurrency_seconds_total"
        each = [
            number
            for (metric, pairs), number in series.items()
            if metric == name and ("n_working", level) in pairs
        ]
        assert value(series, "parprof_node_concurrency_seconds_total", n_working=level) == pytest.approx(
            sum(each)
        )


def test_time_by_threads_at_work_of_ended_processes_stays_with_the_machine(service: StandInService) -> None:
    page = MetricsPage(service)
    before = scrape(page)
    service.end(42)
    after = scrape(page)
    name = "parprof_node_concurrency_seconds_total"
    assert value(after, name, n_working="4-7") == value(before, name, n_working="4-7") > 0


def test_levels_are_bounded_whatever_a_process_does(service: StandInService) -> None:
    service.programs[0].levels_s = (1.0,) * len(FIRST_OF_LEVEL)
    service.advance(1)
    series = scrape(MetricsPage(service))
    found = [
        dict(pairs)["n_working"]
        for name, pairs in series
        if name == "parprof_concurrency_seconds_total" and ("pid", "42") in pairs
    ]
    assert found == list(LEVEL_NAMES) and len(found) == len(FIRST_OF_LEVEL) == 8


def test_pid_reuse_starts_anew(service: StandInService) -> None:
    page = MetricsPage(service)
    scrape(page)
    service.end(42)
    service.programs.append(Program(42, "heat"))
    service.started_s = time.time()
    service.advance(1)
    series = scrape(page)
    assert value(series, "parprof_function_work_seconds_total", pid="42", function="other") == pytest.approx(
        0
    )


def test_two_processes_of_one_pid_are_one_series(service: StandInService) -> None:
    older, newer = Program(9, "same"), Program(9, "same")
    snapshot = StandInService([older]).snapshot()
    younger = replace(newer.snapshot(snapshot.started_s + 1), cores=3)
    service._snapshot = replace(snapshot, processes=(younger, *snapshot.processes))
    assert value(scrape(MetricsPage(service)), "parprof_cores", pid="9") == 3


HOSTILE = [
    'x"} 1\nparprof_cores{pid="7',
    "a\nb\rc",
    "back\\slash",
    "caf\udce9",
    "\x00\x1b[31m",
    "\u2028\u202e",
    "y" * 5000,
    "",
]


@pytest.mark.parametrize("by_group", [False, True])
def test_hostile_labels(service: StandInService, by_group: bool) -> None:
    service.programs = [
        Program(
            number, text, functions={text: 1.0}, labels=Labels("", 0, text, text, text, text), runtime=text
        )
        for number, text in enumerate(HOSTILE, 1)
    ]
    service.attach_failures = service.attach_failures.__class__({(text, text): 1 for text in HOSTILE})
    service.by_process = not by_group
    service.advance(1)
    page = MetricsPage(service)
    for accept in ("", "application/openmetrics-text"):
        for name, pairs in scrape(page, accept):
            assert re.fullmatch("(parprofd?|process)_[a-z_]+", name)
            for _, text in pairs:
                assert len(text) <= MAX_LABEL
                assert not re.search("[\x00-\x1f\u2028\u202e\ud800-\udfff]", text)
        names = {dict(pairs)["comm"] for name, pairs in scrape(page, accept) if name == "parprof_cores"}
        assert len(names) == len(HOSTILE)


@settings(deadline=None)
@given(st.text(st.characters()))
def test_labels_are_clean(text: str) -> None:
    clean = label(text)
    assert len(clean) <= MAX_LABEL
    clean.encode()
    assert label(clean) == clean


def test_long_labels_stay_apart() -> None:
    assert label("x" * 500 + "a") != label("x" * 500 + "b")


def test_functions_that_look_alike_are_one(service: StandInService) -> None:
    service.programs[0].functions = {"a\x01": 0.2, "a\x02": 0.3, "other": 0.1}
    service.advance(1)
    snapshot = service.snapshot()
    own = replace(
        snapshot.processes[0],
        functions=(
            FunctionUse("a\x01", "/x/m", Metrics(work_ns=2e9)),
            FunctionUse("a\x02", "/y/m", Metrics(work_ns=3e9)),
            FunctionUse("other", "", Metrics(work_ns=1e9)),
        ),
    )
    service._snapshot = replace(snapshot, processes=(own,))
    series = scrape(MetricsPage(service))
    name = "parprof_function_work_seconds_total"
    assert value(series, name, function="a\ufffd", module="m") == 5
    assert value(series, name, function="other") == pytest.approx(own.totals.work_ns / 1e9 - 5)


def test_series_are_bounded(service: StandInService) -> None:
    functions = {f"f{number}": 0.001 * number for number in range(40)}
    service.programs = [Program(1000 + number, f"p{number}", functions=functions) for number in range(30)]
    service.advance(1)
    collector = ServiceCollector(service, max_functions=5, max_processes=20)
    families = {metric.name: metric.samples for metric in collector.collect()}
    assert len(families["parprof_cores"]) == 20
    assert len(families["parprof_function_work_seconds"]) == 20 * 6
    assert families["parprofd_hidden_processes"][0].value == 10
    assert families["parprofd_processes"][0].value == 30
    assert {s.labels["function"] for s in families["parprof_function_work_seconds"]} == {
        "other", *(f"f{number}" for number in range(35, 40))
    }  # fmt: skip


def test_a_page_is_made_once_for_a_snapshot(service: StandInService, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = ServiceCollector.families
    monkeypatch.setattr(ServiceCollector, "families", lambda *args: made.append(1) or original(*args))
    page = MetricsPage(service)
    for _ in range(5):
        page.render()
    assert len(made) == 1
    service.advance(1)
    page.render()
    assert len(made) == 2


_seconds = st.tuples(*[st.floats(0, 1e6)] * 4)
_keys = st.sampled_from([("f", "m"), ("g", "m"), ("h", "m"), ("i", "m")])
NONE: Amounts = (0.0,) * 4
_steps = st.lists(st.tuples(st.dictionaries(_keys, _seconds), st.frozensets(_keys, max_size=3)), max_size=12)


@settings(deadline=None)
@given(_steps)
def test_ledger(steps: list[tuple[dict[FunctionKey, Amounts], frozenset[FunctionKey]]]) -> None:
    """Whichever functions are among the costliest: no series falls, and all together grow as the process."""
    ledger = FunctionLedger()
    actual: dict[FunctionKey, Amounts] = defaultdict(lambda: NONE)
    last: dict[FunctionKey, Amounts] = {}
    grown = NONE
    for spent, top in steps:
        for key, seconds in spent.items():
            actual[key] = plus(actual[key], seconds)
        total = NONE
        for seconds in actual.values():
            total = plus(total, seconds)
        shown = ledger.split(total, {key: actual[key] for key in top})
        assert shown.keys() == top | {REST}
        for key, seconds in shown.items():
            before = last.get(key, NONE)
            assert all(now >= then for now, then in zip(seconds, before, strict=True))
            grown = plus(grown, minus(seconds, before))
        # What a scraper that saw every step adds up; a series that comes back begins at 0.
        last = {key: shown[key] for key in shown}
        assert all(
            math.isclose(sum_, whole, rel_tol=1e-9, abs_tol=1e-3)
            for sum_, whole in zip(grown, total, strict=True)
        ), (grown, total)


def test_high_water() -> None:
    highest: HighWater[str] = HighWater()
    assert [highest("a", number) for number in (1.0, 3.0, 2.9999, 4.0)] == [1.0, 3.0, 3.0, 4.0]


def test_bounded_counters() -> None:
    counters = BoundedCounters(1, limit=2)
    assert counters.series({("a",): 1, ("b",): 2}) == {("a",): 1, ("b",): 2}
    assert counters.series({("c",): 5, ("a",): 1, ("d",): 1, ("b",): 3}) == {
        ("a",): 1,
        ("b",): 3,
        ("other",): 6,
    }
