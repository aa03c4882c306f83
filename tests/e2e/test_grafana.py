# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes parprofd; every query of panels, variables and rules must have data.

All is done twice: with `StandInService`, in which everything happens that a daemon can count, and with a real
parprofd that watches a real OpenMP program.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from parprof.service.http import HttpServer
from parprof.service.model import Labels
from parprof.service.push.labels import DEFAULT_LABELS, SERVICE_NAME
from stand_in_service import Program, StandInService

pytestmark = pytest.mark.beside

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RULES = [GRAFANA / "rules/recording.yaml", GRAFANA / "rules/alerts.yaml"]
RULE_TESTS = sorted((GRAFANA / "rules/tests").glob("*.yaml"))
PARPROFD = Path(os.environ.get("PARPROFD", Path(sys.executable).parent / "parprofd"))
BUILD = ROOT / "tests/workloads/build"
WAIT_S = 60.0

EMPTY_WHILE_ALL_IS_WELL = {"short processes", "governor", "attach failures", "pushed profiles"}
"""Panels of what need not happen to a real daemon."""

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="apt install prometheus"
)


@dataclass(frozen=True)
class Daemon:
    """What is scraped, and a process in it for the dashboard of one process."""

    address: str
    comm: str
    pid: int

    @property
    def is_real(self) -> bool:
        return self.comm == "omp_truth.gomp"


def parprofd_command(config: Path) -> list[str]:
    """How a real daemon is started, in the foreground."""
    return [str(PARPROFD), "--config", str(config)]


@contextmanager
def stand_in() -> Iterator[Daemon]:
    """`StandInService`, in which time passes."""
    pod = Labels(
        container="ab" * 32, pod="01234567-89ab-cdef-0123-456789abcdef", pod_name="s-0", namespace="shop"
    )
    service = StandInService(
        [
            Program(42, "heat", 4, 2, labels=Labels(unit="heat.service")),
            Program(77, "solver", 7, 1, labels=pod),
        ]
    )
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.25):
            service.advance(0.25)

    server = HttpServer(service, "127.0.0.1:0")
    server.start()
    life = threading.Thread(target=live)
    life.start()
    try:
        yield Daemon(server.address, "heat", 42)
    finally:
        stop.set()
        life.join()
        server.close()


@contextmanager
def real(directory: Path) -> Iterator[Daemon]:
    """parprofd, and a program for it to watch."""
    address = free_address()
    config = directory / "parprofd.toml"
    config.write_text(
        f'[http]\nlisten = "{address}"\n[profiles]\ninterval_seconds = 1.0\n'
        f'[control]\nsocket = "{directory / "control.sock"}"\n'
    )
    with (
        subprocess.Popen(
            [BUILD / "omp_truth.gomp", "skewed,tasks", "--forever"], stdout=subprocess.DEVNULL
        ) as program,
        (directory / "parprofd.log").open("w") as log,
        subprocess.Popen(parprofd_command(config), stdout=log, stderr=log) as process,
    ):
        try:
            yield Daemon(address, "omp_truth.gomp", program.pid)
            assert process.poll() is None, "parprofd ended"
        finally:
            program.kill()
            process.terminate()


# the real one watches all programs of the machine
@pytest.fixture(scope="module", params=["stand-in", pytest.param("parprofd", marks=pytest.mark.alone)])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if request.param == "stand-in":
        with stand_in() as running:
            yield running
        return
    if os.geteuid():
        pytest.skip("parprofd needs root")
    if not PARPROFD.exists():
        pytest.skip("the command parprofd is not installed")
    with real(tmp_path_factory.mktemp("parprofd")) as running:
        yield running


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Prometheus:
    """A server of our own, in a directory of its own."""

    def __init__(self, directory: Path, target: str) -> None:
        self._address = free_address()
        config = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(rules) for rules in RULES]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={directory / 'prometheus.yaml'}",
             f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={self._address}"],
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # not up yet
                raise
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def wait(self, expression: str) -> None:
        """Until this has data."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if self.query(expression):
                    return
            except OSError:
                assert self._process.poll() is None, "Prometheus ended"
            assert time.monotonic() < deadline, f"no data for {expression}"
            time.sleep(0.2)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._log.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), daemon.address)
    try:
        server.wait('count_over_time(up{job="parprofd"}[1m]) >= 4')
        for metric in ("work", "idleness", "function_work"):
            server.wait(f'rate(parprof_{metric}_seconds_total{{pid="{daemon.pid}"}}[1m]) > 0')
        server.wait(f'comm:parprof_efficiency:ratio_rate5m{{comm="{daemon.comm}"}}')
        server.wait("instance:parprofd_lost:ratio_rate5m")
        server.wait(f'program_function:parprof_unused_cores:rate5m{{comm="{daemon.comm}"}}')
        yield server
    finally:
        server.close()


def panels() -> list[Any]:
    """(dashboard, panel, PromQL) of every target."""
    out = []
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                name = f"{file.stem}: {panel['title']} {target['refId']}"
                out.append(pytest.param(file.stem, panel, target["expr"], id=name))
    return out


def annotations() -> list[Any]:
    """(dashboard, annotation) of all."""
    return [
        pytest.param(file.stem, annotation, id=f"{file.stem}: {annotation['name']}")
        for file in DASHBOARDS
        for annotation in json.loads(file.read_text())["annotations"]["list"]
    ]


def filled(text: str, dashboard: str, daemon: Daemon) -> str:
    """A query with Grafana's variables set."""
    everything = dashboard not in ("process", "node")
    values = {
        "$__rate_interval": "1m",
        "$__range": "5m",
        "$instance": ".*" if everything else daemon.address,
        "$comm": daemon.comm if dashboard == "process" else ".*",
        "$pid": str(daemon.pid),
        "$namespace": ".*",
        "$unit": ".*",
        "$pod": ".*",
        "$container": ".*",
    }
    for name, value in values.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


@needs_prometheus
@pytest.mark.parametrize(("dashboard", "panel", "expression"), panels())
def test_panel(prometheus: Prometheus, daemon: Daemon, dashboard: str, panel: Any, expression: str) -> None:
    found = prometheus.query(filled(expression, dashboard, daemon))
    assert found or (daemon.is_real and panel["title"] in EMPTY_WHILE_ALL_IS_WELL)
    values = [float(series["value"][1]) for series in found]
    assert all(value >= 0 for value in values)
    if panel["fieldConfig"]["defaults"].get("max") == 1:
        assert all(value <= 1 for value in values)


@needs_prometheus
@pytest.mark.parametrize(("dashboard", "annotation"), annotations())
def test_annotation(prometheus: Prometheus, daemon: Daemon, dashboard: str, annotation: Any) -> None:
    """Its query is right, and has the labels that it shows; a start is marked at the time when it was."""
    expression = filled(annotation["expr"], dashboard, daemon)
    found = prometheus.query(expression)
    shown = set(re.findall(r"{{(\w+)}}", annotation["titleFormat"]))
    assert all(shown <= series["metric"].keys() for series in found)
    if annotation["useValueForTime"]:
        (series,) = found
        assert 0 < time.time() - float(series["value"][1]) / 1000 < 24 * 3600
    if annotation["name"] == "n_w source" and not daemon.is_real:
        assert found, "the stand-in counts such changes all the time"


@needs_prometheus
@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_variables(prometheus: Prometheus, daemon: Daemon, file: Path) -> None:
    offered = {}
    for variable in json.loads(file.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), ([a-z]+)\)", variable["query"]["query"])
            assert match is not None
            found = prometheus.query(filled(match[1], file.stem, daemon))
            offered[variable["name"]] = {series["metric"].get(match[2]) for series in found}
    assert daemon.address in offered["instance"]
    assert daemon.comm in offered.get("comm", {daemon.comm})
    assert str(daemon.pid) in offered.get("pid", {str(daemon.pid)})
    if not daemon.is_real:
        assert "heat.service" in offered.get("unit", {"heat.service"})
        assert "shop" in offered.get("namespace", {"shop"}) and "s-0" in offered.get("pod", {"s-0"})


@needs_prometheus
def test_rules(prometheus: Prometheus) -> None:
    """All rules are evaluated without error; each recording rule has data; no alert of an ill daemon fires."""
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    known = [
        rule
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len(rules) == len(known)
    assert {rule["health"] for rule in rules} == {"ok"}
    for rule in rules:
        if rule["type"] == "recording":
            assert prometheus.query(rule["name"]), rule["name"]
    assert not prometheus.query('ALERTS{alertstate="firing", severity="warning"}')


@needs_prometheus
def test_every_metric_that_queries_name_exists(prometheus: Prometheus, daemon: Daemon) -> None:
    """Alerts too, whose queries are empty while all is well."""
    queries = " ".join(
        [parameter.values[2] for parameter in panels()]
        + [parameter.values[1]["expr"] for parameter in annotations()]
        + [
            rule["expr"]
            for file in RULES
            for group in yaml.safe_load(file.read_text())["groups"]
            for rule in group["rules"]
        ]
    )
    if daemon.is_real:
        pytest.skip("not all that can happen happens to a real daemon; the stand-in shows all metrics")
    named = set(
        re.findall(
            r"(?<![\w:])(?:(?:instance_comm|instance|comm|program_function|program):)?(?:parprofd?|process)_[a-z_]+(?::[a-z0-9_]+)?",
            queries,
        )
    )
    assert len(named) > 40
    exported = set(prometheus.get("label/__name__/values"))
    assert named <= exported, named - exported


@needs_prometheus
def test_rates_agree(prometheus: Prometheus, daemon: Daemon) -> None:
    """Functions add up to their process, processes to the machine."""
    if daemon.is_real:
        pytest.skip("processes come and go beside it; tests/unit/test_metrics.py has the proof for those")
    for kind in ("work", "idleness", "overhead", "spin"):
        process = f'parprof_{kind}_seconds_total{{pid="{daemon.pid}"}}'
        functions = f'parprof_function_{kind}_seconds_total{{pid="{daemon.pid}"}}'
        everything, machine = f"parprof_{kind}_seconds_total", f"parprof_node_{kind}_seconds_total"
        for parts, whole in ((functions, process), (everything, machine)):
            found = prometheus.query(f"sum(increase({parts}[5m])) / (sum(increase({whole}[5m])) > 0)")
            assert all(float(one["value"][1]) == pytest.approx(1, abs=0.02) for one in found)
            assert found


# Without a server


@needs_prometheus
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_promtool_checks_metrics(daemon: Daemon, accept: str) -> None:
    request = urllib.request.Request(f"http://{daemon.address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    if accept:
        # promtool reads the older format only; there Prometheus itself is the check.
        assert text.endswith(b"# EOF\n")
        return
    check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")


@needs_prometheus
def test_promtool_checks_rules() -> None:
    for command in (
        ["check", "rules", *map(str, RULES)],
        ["test", "rules", *map(str, RULE_TESTS)],
    ):
        check = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert check.returncode == 0, check.stdout + check.stderr


@needs_prometheus
def test_promtool_checks_the_configuration() -> None:
    command = ["promtool", "check", "config", str(GRAFANA / "prometheus.yaml")]
    assert subprocess.run(command, capture_output=True, cwd=GRAFANA).returncode == 0


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((GRAFANA / "rules/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_alert_of_dropped_pushes_knows_all_reasons() -> None:
    """Its test invents its series; so here are the outcomes that the daemon counts."""
    sources = (ROOT / "daemon/parprof/service/push").glob("*.py")
    counted = {name for file in sources for name in re.findall(r'"(dropped\w+)"', file.read_text())}
    assert len(counted) >= 9
    selected = [re.findall('outcome=~"([^"]+)"', alert["expr"]) for alert in alerts()]
    (pattern,) = sum(selected, [])
    assert all(re.fullmatch(pattern, name) for name in counted), counted
    assert not any(re.fullmatch(pattern, name) for name in ("sent", "retried"))


def test_every_alert_has_a_section_and_a_test() -> None:
    sections = re.findall("^## (.+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"
    expected: dict[str, set[bool]] = {}
    for test in [test for file in RULE_TESTS for test in yaml.safe_load(file.read_text())["tests"]]:
        for check in test.get("alert_rule_test", ()):
            expected.setdefault(check["alertname"], set()).add(bool(check["exp_alerts"]))
    assert expected.keys() == set(sections)
    assert all(fires == {True, False} for fires in expected.values()), expected


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_dashboard(file: Path) -> None:
    board = json.loads(file.read_text())
    schema = json.loads((GRAFANA / "dashboard.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(board)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in own) < 24
        cells |= own
    assert all(
        panel["fieldConfig"]["defaults"].get("unit")
        for panel in board["panels"]
        if panel["type"] in ("stat", "timeseries")
    )


def strings(value: Any) -> Iterator[str]:
    """All texts in JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_all_variables_that_are_used_are_defined(file: Path) -> None:
    board = json.loads(file.read_text())
    defined = {variable["name"] for variable in board["templating"]["list"]}
    used = {name for text in strings(board) for name in re.findall(r"\$(?:\{)?([a-z]\w*)", text)}
    assert used == defined, "and all that are defined are used"
    built_in = {name for text in strings(board) for name in re.findall(r"\$(?:\{)?(__\w+)", text)}
    assert built_in <= {"__all", "__rate_interval", "__range", "__data", "__from", "__to"}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_links_name_fields_that_their_tables_have(file: Path) -> None:
    board, linked = json.loads(file.read_text()), 0
    uids = {}
    for other in DASHBOARDS:
        there = json.loads(other.read_text())
        uids[there["uid"]] = {variable["name"] for variable in there["templating"]["list"]}
    for panel in board["panels"]:
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            for link in (
                link for one in override["properties"] if one["id"] == "links" for link in one["value"]
            ):
                (labels,) = {
                    frozenset(re.split(", ", match))
                    for target in panel["targets"]
                    for match in re.findall(r"^(?:topk\(50, )?\(?(?:sum|max) by \(([^)]+)\)", target["expr"])
                }
                assert override["matcher"]["options"] in labels
                assert set(re.findall(r"__data\.fields\.(\w+)", link["url"])) <= labels, link["url"]
                if link["url"].startswith("/d/"):
                    uid, _, chosen = link["url"].removeprefix("/d/").partition("?")
                    assert set(re.findall(r"var-(\w+)=", chosen)) <= uids[uid], link["url"]
                linked += 1
    assert linked >= (0 if file.stem in ("daemon", "process") else 8)


def test_links_lead_to_pages_that_the_daemon_has() -> None:
    """Also those of a row: with the fields of a process that is watched."""
    urls = {
        text for file in DASHBOARDS for text in strings(json.loads(file.read_text())) if "${scheme}" in text
    }
    with stand_in() as running:
        fields = {"instance": running.address, "pid": "42", "scheme": "http"}
        for url in urls:
            for name, value in fields.items():
                url = url.replace(f"${{__data.fields.{name}}}", value).replace(f"${{{name}}}", value)
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert answer.status == 200 and b"heat" in answer.read(), url
    assert len(urls) == 4


def test_links_to_stores_name_what_is_pushed() -> None:
    """Type and label are those of the pushers, quoted as addresses are."""
    urls = {
        urllib.parse.unquote(text)
        for file in DASHBOARDS
        for text in strings(json.loads(file.read_text()))
        if text.startswith(("${pyroscope}", "${parca}"))
    }
    kinds = {re.findall(r"=(parprof:[^{]+)", url)[0] for url in urls}
    assert kinds == {
        "parprof:idleness:nanoseconds:cpu:nanoseconds",
        "parprof:idleness:nanoseconds:cpu:nanoseconds:delta",
    }
    labels = {re.findall(r'{(\w+)="\$', url)[0] for url in urls}
    assert labels == {SERVICE_NAME, "comm"} and "comm" in DEFAULT_LABELS
    assert len(urls) == 4 and all(not url.count(" ") for url in urls)


def test_the_schema_refuses() -> None:
    schema = json.loads((GRAFANA / "dashboard.schema.json").read_text())
    board = json.loads(DASHBOARDS[0].read_text())
    board["panels"][0]["targets"][0]["exprs"] = "up"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(board)


def test_dashboards_are_what_the_generator_writes() -> None:
    spec = importlib.util.spec_from_file_location("generate", GRAFANA / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert {file.name: file.read_text() for file in DASHBOARDS} == generate.documents()


def test_links_between_dashboards() -> None:
    assert len(DASHBOARDS) == 5
    uids = {json.loads(file.read_text())["uid"] for file in DASHBOARDS}
    linked = {uid for file in DASHBOARDS for uid in re.findall(r'"/d/([^?"]+)', file.read_text())}
    assert linked
    assert linked <= uids


def test_provisioning_is_yaml() -> None:
    providers = yaml.safe_load((GRAFANA / "provisioning/dashboards/parprof.yaml").read_text())["providers"]
    assert os.path.isabs(providers[0]["options"]["path"])
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/parprof.yaml").read_text())["datasources"]
    assert sources[0]["type"] == "prometheus"
