#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes dashboards/*.json: `python3 grafana/generate.py`. The JSON is checked in; a test compares.

A panel is a line here, so that units, variables and colours stay the same everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

DASHBOARDS = Path(__file__).parent / "dashboards"
SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

CORES, RATIO, SECONDS, COUNT, RATE, BYTES, HERTZ = (
    "suffix: cores",
    "percentunit",
    "s",
    "short",
    "cps",
    "bytes",
    "hertz",
)
USEFUL, OVERHEAD, IDLENESS, SPIN = "#6fa8dc", "#b9a5d6", "#e8783a", "#c9b458"
GREEN, AMBER, RED = "#56a64b", "#e0a01b", "#c4162a"
KIND_COLOURS = {
    "useful work": USEFUL,
    "overhead": OVERHEAD,
    "idleness": IDLENESS,
    "idle, wanted": IDLENESS,
    "idle": "#d9d9d9",
    "spin": SPIN,
}
RISING = ((None, RED), (0.5, AMBER), (0.8, GREEN))
"""Thresholds of efficiency."""

Json = dict[str, Any]
Query = tuple[str, str]
"""PromQL and legend."""


class Board:
    """A dashboard, laid out row by row on Grafana's 24 columns."""

    def __init__(
        self, uid: str, title: str, text: str, variables: list[Json], links: list[Json] | None = None
    ) -> None:
        self._links = links or []
        self._annotations: list[Json] = []
        self._panels: list[Json] = []
        self._x = self._y = self._height = 0
        self._head = {"uid": uid, "title": title, "description": text}
        self._variables = [_datasource(), *variables]

    def annotate(self, name: str, colour: str, query: str, title: str, **more: Any) -> None:
        """Mark the times at which a query has a value on all graphs; ``at_value``: that is the time."""
        self._annotations.append(
            {
                "name": name,
                "datasource": DATASOURCE,
                "enable": True,
                "hide": False,
                "iconColor": colour,
                "expr": query,
                "step": "60s",
                "titleFormat": title,
                "textFormat": more.get("text", ""),
                "tagKeys": "",
                "useValueForTime": "on" if more.get("at_value") else "",
            }
        )

    def row(self, title: str) -> None:
        """Begin a section."""
        self._feed()
        self._add({"type": "row", "title": title, "collapsed": False, "panels": []}, 24, 1)
        self._feed()

    def stat(self, title: str, text: str, query: Query, unit: str, width: int = 4, **more: Any) -> None:
        """One number; ``name=True`` shows its legend instead."""
        steps = more.get("steps", ((None, "text"),))
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none" if more.get("name") else "area",
            "textMode": "name" if more.get("name") else "value",
            "justifyMode": "auto",
            "orientation": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        }
        defaults = {"unit": unit, "thresholds": _thresholds(steps), "color": {"mode": "thresholds"}}
        self._panel("stat", title, text, [query], defaults | _mappings(more), options, width, 4)

    def graph(
        self, title: str, text: str, queries: list[Query], unit: str, width: int = 12, **more: Any
    ) -> None:
        """Lines over time; ``stacked=True`` stacks them."""
        stacked = bool(more.get("stacked"))
        custom = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        }
        defaults: Json = {"unit": unit, "min": 0, "custom": custom, "color": {"mode": "palette-classic"}}
        if unit == RATIO and more.get("whole"):
            defaults["max"] = 1
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        overrides = [
            _override("byName", name, [("color", {"mode": "fixed", "fixedColor": colour})])
            for name, colour in more.get("colours", {}).items()
            if name in {legend for _, legend in queries} or "{{" in queries[0][1]
        ]
        overrides += [
            _override("byName", name, [("custom.stacking", {"mode": "none", "group": "A"}),
                                       ("custom.fillOpacity", 0), ("custom.lineStyle", {"fill": "dash"})])
            for name in more.get("unstacked", ())
        ]  # fmt: skip
        self._panel("timeseries", title, text, queries, defaults, options, width, 8, overrides)

    def table(
        self, title: str, text: str, columns: list[tuple[str, str, str]], key: tuple[str, ...], **more: Any
    ) -> None:
        """A row for each set of ``key`` labels; columns are (PromQL, heading, unit)."""
        names = {f"Value #{_ref(number)}": heading for number, (_, heading, _) in enumerate(columns)}
        organize = {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True, "__name__": True, "job": True},
                "renameByName": names if len(columns) > 1 else {"Value": columns[0][1]},
                "indexByName": {name: position for position, name in enumerate((*key, *names))},
            },
        }
        overrides = [_override("byName", heading, [("unit", unit)]) for _, heading, unit in columns]
        for field, links in more.get("links", {}).items():
            overrides.append(_override("byName", field, [("links", links)]))
        options = {
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": columns[0][1], "desc": True}],
            "frameIndex": 0,
        }
        self._panel(
            "table", title, text, [(query, "") for query, _, _ in columns], {"custom": {"align": "auto"}}, options,
            more.get("width", 24), 9, overrides, [{"id": "merge", "options": {}}, organize], instant=True,
        )  # fmt: skip

    def _panel(
        self, kind: str, title: str, text: str, queries: list[Query], defaults: Json, options: Json,
        width: int, height: int, overrides: list[Json] | None = None,
        transformations: list[Json] | None = None, *, instant: bool = False,
    ) -> None:  # fmt: skip
        targets = [
            {
                "refId": _ref(number),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": expression,
                "legendFormat": legend or "__auto",
                "instant": instant,
                "range": not instant,
                "format": "table" if instant else "time_series",
            }
            for number, (expression, legend) in enumerate(queries)
        ]
        panel = {
            "type": kind,
            "title": title,
            "description": text,
            "datasource": DATASOURCE,
            "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": overrides or []},
            "options": options,
        }
        if transformations:
            panel["transformations"] = transformations
        self._add(panel, width, height)

    def _add(self, panel: Json, width: int, height: int) -> None:
        if self._x + width > 24:
            self._feed()
        panel["id"] = len(self._panels) + 1
        panel["gridPos"] = {"x": self._x, "y": self._y, "w": width, "h": height}
        self._panels.append(panel)
        self._x += width
        self._height = max(self._height, height)

    def _feed(self) -> None:
        self._y += self._height
        self._x = self._height = 0

    def json(self) -> Json:
        """What Grafana reads."""
        links = [
            {"type": "dashboards", "title": "parprof", "tags": ["parprof"], "asDropdown": True, "icon": "external link",
             "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "", "url": ""}
        ]  # fmt: skip
        return self._head | {
            "tags": ["parprof"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "30s",
            "annotations": {"list": self._annotations},
            "links": [*self._links, *links],
            "templating": {"list": self._variables},
            "panels": self._panels,
        }


def _ref(number: int) -> str:
    return chr(ord("A") + number)


def _thresholds(steps: tuple[tuple[float | None, str], ...]) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def _mappings(more: Json) -> Json:
    if "words" not in more:
        return {}
    options = {
        str(value): {"text": text, "color": colour, "index": value}
        for value, (text, colour) in more["words"].items()
    }
    return {"mappings": [{"type": "value", "options": options}]}


def _override(matcher: str, name: str, properties: list[tuple[str, Any]]) -> Json:
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def _datasource() -> Json:
    return {
        "type": "datasource", "name": "datasource", "label": "data source", "query": "prometheus", "regex": "",
        "refresh": 1, "hide": 0, "includeAll": False, "multi": False, "options": [],
    }  # fmt: skip


def variable(name: str, query: str, label: str, *, many: bool) -> Json:
    """A choice of label values; ``many``: several at a time, all of them at first."""
    out: Json = {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "regex": "",
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": many,
        "includeAll": many,
        "options": [],
    }
    return out | ({"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}} if many else {})


def rate(metric: str, labels: str, by: str = "") -> str:
    """The usual sum of rates: cores, where the metric is in seconds."""
    inner = f"rate({metric}{{{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def increase(metric: str, labels: str, period: str, by: str) -> str:
    """How much was added in a period."""
    return f"sum by ({by}) (increase({metric}{{{labels}}}[{period}]))"


def split(prefix: str, labels: str, lost: str = "unused") -> list[Query]:
    """Cores by what they were used for. ``lost``: unused, of several programs; idleness, of one by itself."""
    work, overhead, idle, spin = (
        rate(f"{prefix}_{kind}_seconds_total", labels) for kind in ("work", "overhead", lost, "spin")
    )
    return [
        (f"{work} - {overhead}", "useful work"),
        (overhead, "overhead"),
        (idle, "idleness" if lost == "idleness" else "idle, wanted"),
        (spin, "spin"),
    ]


def efficiency(prefix: str, labels: str) -> str:
    """Useful work / (work + cores that were really idle) of a machine, or useful work / effort of one process."""
    lost_kind = "unused" if prefix == "parprof_node" else "idleness"
    work, overhead, lost = (
        rate(f"{prefix}_{kind}_seconds_total", labels) for kind in ("work", "overhead", lost_kind)
    )
    return f"({work} - {overhead}) / (({work} + {lost}) > 0)"


WHO = "job, instance, comm, pid, unit, container, namespace, pod"
"""Labels that series of a process, and those of its functions, have in common."""


def efficiency_of_several(labels: str, by: str = "") -> str:
    """Useful work / (work + cores that were really idle), of programs that have, or had, a second thread."""
    unused = f"rate(parprof_unused_seconds_total{{{labels}}}[$__rate_interval])"
    head = f"sum by ({by})" if by else "sum"
    work, overhead = (
        f"{head} (rate(parprof_{kind}_seconds_total{{{labels}}}[$__rate_interval]) and {unused})"
        for kind in ("work", "overhead")
    )
    return f"({work} - {overhead}) / (({work} + {head} ({unused})) > 0)"


def recorded_efficiency(labels: str, by: str = "") -> str:
    """The same over 5 minutes, by recording rules: for graphs over many machines."""
    head = f"sum by ({by})" if by else "sum"
    work, overhead, unused = (
        f"{head} (program:parprof_{kind}_cores:rate5m{{{labels}}})"
        for kind in ("parallel_work", "parallel_overhead", "unused")
    )
    return f"({work} - {overhead}) / (({work} + {unused}) > 0)"


def idle_by_function(labels: str, by: str) -> str:
    """Cores that were really idle, by function: as their processes' idleness is shared among these."""
    named = f'{labels}, function!="other"'
    share = (
        f"{rate('parprof_unused_seconds_total', labels, WHO)}"
        f" / ({rate('parprof_idleness_seconds_total', labels, WHO)} > 0)"
    )
    each = f"rate(parprof_function_idleness_seconds_total{{{named}}}[$__rate_interval])"
    return f"sum by ({by}) ({each} * on ({WHO}) group_left () ({share}))"


BELONGING = 'namespace=~"$namespace", unit=~"$unit", pod=~"$pod", container=~"$container"'
PROGRAMS = f'instance=~"$instance", {BELONGING}, comm=~"$comm"'
"""Processes that are chosen by what they belong to."""


def choices(*, one_machine: bool = False) -> list[Json]:
    """Variables for `PROGRAMS`, each of which offers what the ones before leave."""
    here = 'instance=~"$instance"'
    return [
        variable("instance", "label_values(parprofd_build_info, instance)", "machine", many=not one_machine),
        variable("namespace", f"label_values(parprof_cores{{{here}}}, namespace)", "namespace", many=True),
        variable("unit", f'label_values(parprof_cores{{{here}, namespace=~"$namespace"}}, unit)', "unit", many=True),
        variable(
            "pod", f'label_values(parprof_cores{{{here}, namespace=~"$namespace", unit=~"$unit"}}, pod)', "pod",
            many=True,
        ),
        variable(
            "container",
            f'label_values(parprof_cores{{{here}, namespace=~"$namespace", unit=~"$unit", pod=~"$pod"}}, container)',
            "container", many=True,
        ),
        variable("comm", f"label_values(parprof_cores{{{here}, {BELONGING}}}, comm)", "program", many=True),
        *_addresses(),
    ]  # fmt: skip


def _scheme() -> Json:
    """How browsers reach the daemons' pages."""
    return {
        "type": "custom", "name": "scheme", "label": "daemon's pages", "query": "http,https", "hide": 0,
        "includeAll": False, "multi": False, "options": [], "current": {"text": "http", "value": "http"},
    }  # fmt: skip


def _addresses() -> list[Json]:
    """Where the links out of the dashboards lead."""
    return [
        _scheme(),
        *(
            {
                "type": "textbox", "name": store, "label": store, "query": address, "hide": 0, "skipUrlSync": False,
                "options": [{"text": address, "value": address, "selected": True}],
                "current": {"text": address, "value": address},
            }
            for store, address in (("pyroscope", "http://localhost:4040"), ("parca", "http://localhost:7070"))
        ),
    ]  # fmt: skip


def mark_events(board: Board, here: str) -> None:
    """What explains a break in the graphs: the daemon began anew, lost data, or knows n_w by other means."""
    board.annotate(
        "parprofd started", RED,
        f"process_start_time_seconds * 1000 and on (job, instance) parprofd_build_info{{{here}}}",
        "parprofd started on {{instance}}", text="its counters began at 0", at_value=True,
    )  # fmt: skip
    board.annotate(
        "samples lost", AMBER, f"instance:parprofd_lost:ratio_rate5m{{{here}}} > 0.01",
        "more than 1 % of the samples of {{instance}} lost",
    )  # fmt: skip
    board.annotate(
        "n_w source", SPIN,
        f'sum by (instance, from, to) (increase(parprofd_governor_transitions_total{{{here}, from!~".* Hz"}}[2m])) > 0',
        "n_w source on {{instance}}: {{from}} to {{to}}",
        text="of a process there: its budget was spent, or it is tried again",
    )  # fmt: skip
    board.annotate(
        "sampling rate", USEFUL,
        f'sum by (instance, from, to) (increase(parprofd_governor_transitions_total{{{here}, from=~".* Hz"}}[2m])) > 0',
        "{{instance}} sampled at {{to}} instead of {{from}}",
    )  # fmt: skip


def dashboard_link(title: str, uid: str, **values: str) -> Json:
    """A link of a table's cell to another dashboard, whose variables get the values of fields of the row."""
    chosen = "&".join(f"var-{name}=${{__data.fields.{field}}}" for name, field in values.items())
    return {"title": title, "url": f"/d/{uid}?{chosen}", "targetBlank": False}


def stored_profiles(comm: str) -> list[Json]:
    """Links to what the daemons have pushed of a program, over the time that is shown; see docs/push.md."""
    pyroscope, parca = (
        quote(f'parprof:idleness:nanoseconds:cpu:nanoseconds{delta}{{{label}="') + comm + quote('"}')
        for delta, label in (("", "service_name"), (":delta", "comm"))
    )
    return [
        {"title": "its profiles in Pyroscope", "targetBlank": True,
         "url": f"${{pyroscope}}/?query={pyroscope}&from=${{__from:date:seconds}}&until=${{__to:date:seconds}}"},
        {"title": "its profiles in Parca", "targetBlank": True,
         "url": f"${{parca}}/?expression_a={parca}&time_selection_a=absolute:${{__from}}-${{__to}}"},
    ]  # fmt: skip


def pages_of_daemon(instance: str, pid: str) -> list[Json]:
    """Links to what the daemon has of a process in its memory: of the last minutes, whatever time is shown."""
    base = f"${{scheme}}://{instance}"
    return [
        {"title": "its page, from the daemon", "url": f"{base}/processes/{pid}", "targetBlank": True},
        {
            "title": "its flame graph, from the daemon",
            "url": f"{base}/profiles/{pid}.html?seconds=60",
            "targetBlank": True,
        },
    ]


OF_ROW = [
    *pages_of_daemon("${__data.fields.instance}", "${__data.fields.pid}"),
    *stored_profiles("${__data.fields.comm}"),
]
TO_NODE = dashboard_link("this machine", "parprof-node", instance="instance")
TO_PROCESS = dashboard_link("this process", "parprof-process", instance="instance", comm="comm", pid="pid")
TO_UNIT = dashboard_link("this unit", "parprof-unit", instance="instance", unit="unit")
TO_POD = dashboard_link("this pod", "parprof-unit", instance="instance", namespace="namespace", pod="pod")


def blamed(labels: str, by: str) -> tuple[str, str, str]:
    """Of each row the function while which most cores stood idle: a column with its name, and one with cores."""
    each = idle_by_function(labels, f"{by}, function")
    return (f"topk by ({by}) (1, {each} > 0)", "idle cores of function", CORES)


def machines(board: Board, here: str) -> None:
    """Panels of machines as a whole."""
    idle = rate("parprof_node_idle_seconds_total", here)
    board.graph(
        "what cores were used for", "Rates of the machines' totals, ended processes included. Idle, wanted: programs"
        " with several threads could have had these cores while they worked. What is missing to all cores is what"
        " processes used that are not watched, and the kernel.",
        [
            *split("parprof_node", here),
            (f"clamp_min({idle} - {rate('parprof_node_unused_seconds_total', here)}, 0)", "idle"),
            (f"sum(parprof_node_cores{{{here}}})", "cores"),
        ], CORES, stacked=True, colours=KIND_COLOURS, unstacked=("cores",),
    )  # fmt: skip
    board.graph(
        "parallel efficiency by machine", "Useful work / (work + cores that were really idle) over 5 minutes.",
        [(f"instance:parprof_node_efficiency:ratio_rate5m{{{here}}}", "{{instance}}")], RATIO, whole=True,
    )  # fmt: skip


def machine_cost(board: Board, here: str) -> None:
    """What the daemons' probes and samples take of whole machines."""
    board.graph(
        "cost of profiling", "Probes and samples in all processes together, share of the machine's CPU time: the ten"
        " machines where it is highest, and the budget. ParprofdMachineCostOverBudget fires at 1.5 budgets.",
        [
            (f"topk(10, max by (instance) (parprofd_machine_cost_ratio{{{here}}}))", "{{instance}}"),
            (f"max(parprofd_budget_ratio{{{here}}})", "budget"),
        ], RATIO, 24, unstacked=("budget",),
    )  # fmt: skip


def units(board: Board) -> None:
    """What processes belong to, by idle cores."""
    key = ("instance", "namespace", "pod", "unit")
    by = ", ".join(key)
    board.table(
        "units and pods", "A click on a unit or pod shows what runs in it; on a machine, the machine.",
        [
            (f"topk(50, {rate('parprof_unused_seconds_total', PROGRAMS, by)})", "idle cores", CORES),
            (efficiency_of_several(PROGRAMS, by), "efficiency", RATIO),
            (rate("parprof_work_seconds_total", PROGRAMS, by), "work", CORES),
            (rate("parprof_spin_seconds_total", PROGRAMS, by), "spin", CORES),
            blamed(PROGRAMS, by),
        ], key, links={"instance": [TO_NODE], "unit": [TO_UNIT], "pod": [TO_POD]},
    )  # fmt: skip


def processes(board: Board) -> None:
    """Processes, by idle cores."""
    key = ("instance", "unit", "pod", "comm", "pid")
    by = ", ".join(key)
    board.table(
        "processes",
        "A click on a pid shows its process, its page and flame graph by the daemon, and what was pushed of its program"
        " to Pyroscope or Parca. With metrics.pid = false: groups of processes; a click on the program shows them.",
        [
            (f"topk(50, {rate('parprof_unused_seconds_total', PROGRAMS, by)})", "idle cores", CORES),
            (efficiency_of_several(PROGRAMS, by), "efficiency", RATIO),
            (rate("parprof_work_seconds_total", PROGRAMS, by), "work", CORES),
            (rate("parprof_spin_seconds_total", PROGRAMS, by), "spin", CORES),
            (f"max by ({by}) (parprof_cores{{{PROGRAMS}}})", "n", COUNT),
            (f"max by ({by}) (parprofd_target_cost_ratio{{{PROGRAMS}}})", "cost", RATIO),
            blamed(PROGRAMS, by),
        ], key, links={"comm": [TO_PROCESS], "pid": [TO_PROCESS, *OF_ROW]},
    )  # fmt: skip


def programs(board: Board) -> None:
    """Panels by program and function."""
    board.graph(
        "short processes", "Cores used by processes that are too short to be watched, by who started them.",
        [(f"topk(10, {rate('parprof_short_processes_seconds_total', PROGRAMS, 'comm, unit, pod')})",
          "{{comm}} {{unit}} {{pod}}")], CORES, 24, stacked=True,
    )  # fmt: skip
    board.graph(
        "idle cores by program", "The ten programs beside which most cores were really idle. Those that never had a"
        " second thread are not among them.",
        [(f"topk(10, {rate('parprof_unused_seconds_total', PROGRAMS, 'comm')})", "{{comm}}")], CORES, stacked=True,
    )  # fmt: skip
    board.graph(
        "spinning cores by program", "The ten programs that burn most in wait loops.",
        [(f"topk(10, {rate('parprof_spin_seconds_total', PROGRAMS, 'comm')})", "{{comm}}")], CORES, stacked=True,
    )  # fmt: skip
    board.graph(
        "functions to blame", "The ten functions while which most cores were really idle, over 5 minutes. What is not"
        " among the costliest of its process is not in it.",
        [(
            f"topk(10, sum by (comm, function) (program_function:parprof_unused_cores:rate5m{{{PROGRAMS}}}))",
            "{{comm}}: {{function}}",
        )], CORES, 24,
    )  # fmt: skip


def fleet() -> Board:
    """All machines."""
    here = 'instance=~"$instance"'
    board = Board(
        "parprof-fleet",
        "parprof: fleet",
        "Where parallel programs waste cores, over all machines.",
        choices(),
    )
    board.stat(
        "machines", "Machines whose parprofd answers.", (f"count(parprofd_build_info{{{here}}})", ""), COUNT
    )
    board.stat("processes", "Processes watched.", (f"sum(parprofd_processes{{{here}}})", ""), COUNT)
    board.stat(
        "parallel efficiency", "Useful work / (work + cores that were really idle), all processes.",
        (efficiency("parprof_node", here), ""), RATIO, steps=RISING,
    )  # fmt: skip
    board.stat(
        "idle cores", "Cores that programs could have used and did not.",
        (rate("parprof_node_unused_seconds_total", here), ""), CORES,
    )  # fmt: skip
    board.stat(
        "spinning cores",
        "Cores burnt in wait loops.",
        (rate("parprof_node_spin_seconds_total", here), ""),
        CORES,
    )
    board.stat(
        "samples lost", "Share of samples and events that could not be counted.",
        (f"max(instance:parprofd_lost:ratio_rate5m{{{here}}})", ""), RATIO, steps=((None, GREEN), (0.01, RED)),
    )  # fmt: skip
    mark_events(board, here)
    board.row("Machines")
    machines(board, here)
    machine_cost(board, here)
    board.row("What processes belong to")
    units(board)
    board.row("Programs")
    programs(board)
    board.graph(
        "programs by threads at work", "How many programs had so many threads in user work at once.",
        [(rate("parprof_node_concurrency_seconds_total", here, "n_working"), "{{n_working}}")], COUNT, 24,
        stacked=True,
    )  # fmt: skip
    processes(board)
    return board


def node() -> Board:
    """One machine."""
    here = 'instance="$instance"'
    board = Board(
        "parprof-node", "parprof: one machine", "What the cores of one machine were used for, and by whom.",
        choices(one_machine=True),
    )  # fmt: skip
    board.stat(
        "parallel efficiency", "Useful work / (work + cores that were really idle), all processes.",
        (efficiency("parprof_node", here), ""), RATIO, steps=RISING,
    )  # fmt: skip
    board.stat(
        "idle cores", "Cores that programs could have used and did not.",
        (rate("parprof_node_unused_seconds_total", here), ""), CORES,
    )  # fmt: skip
    board.stat("processes", "Watched.", (f"sum(parprofd_processes{{{here}}})", ""), COUNT)
    board.stat(
        "cost", "In all processes together, share of the machine's CPU time.",
        (f"max(parprofd_machine_cost_ratio{{{here}}})", ""), RATIO, steps=((None, GREEN), (0.01, AMBER), (0.02, RED)),
    )  # fmt: skip
    mark_events(board, here)
    board.row("The machine")
    machines(board, here)
    machine_cost(board, here)
    board.row("What runs on it")
    units(board)
    programs(board)
    processes(board)
    return board


def unit() -> Board:
    """A systemd unit, a pod, a namespace: whatever the variables choose."""
    board = Board(
        "parprof-unit", "parprof: unit or pod",
        "What runs in a systemd unit, a pod or a namespace, on one machine or all.", choices(),
    )  # fmt: skip
    board.stat(
        "parallel efficiency",
        "Useful work / (work + cores that were really idle), of programs that have several threads.",
        (recorded_efficiency(PROGRAMS), ""),
        RATIO,
        steps=RISING,
    )
    board.stat(
        "machines",
        "On so many it runs.",
        (f"count(count by (instance) (parprof_cores{{{PROGRAMS}}}))", ""),
        COUNT,
    )
    board.stat(
        "threads working", "The mean of the last interval, summed up.",
        (f'sum(parprof_threads{{{PROGRAMS}, state="working"}})', ""), COUNT,
    )  # fmt: skip
    mark_events(board, 'instance=~"$instance"')
    board.row("Cores")
    board.graph(
        "what its cores were used for", "Idle, wanted: programs with several threads could have had these cores while"
        " they worked.",
        split("parprof", PROGRAMS), CORES, stacked=True, colours=KIND_COLOURS,
    )  # fmt: skip
    board.graph(
        "parallel efficiency by machine", "Useful work / (work + cores that were really idle), of programs that have"
        " several threads, over 5 minutes.",
        [(recorded_efficiency(PROGRAMS, "instance"), "{{instance}}")], RATIO, whole=True,
    )  # fmt: skip
    board.row("What runs in it")
    programs(board)
    units(board)
    processes(board)
    return board


def process() -> Board:
    """One process."""
    here = 'instance="$instance", comm="$comm", pid="$pid"'
    board = Board(
        "parprof-process", "parprof: one process",
        "Where one process leaves cores idle, and which functions answer for it.",
        [
            variable("instance", "label_values(parprofd_build_info, instance)", "machine", many=False),
            variable("comm", 'label_values(parprof_cores{instance="$instance"}, comm)', "program", many=False),
            variable("pid", 'label_values(parprof_cores{instance="$instance", comm="$comm"}, pid)', "pid", many=False),
            *_addresses(),
        ],
        [
            {"type": "link", "tags": [], "asDropdown": False, "icon": "bolt", "includeVars": False, "keepTime": False,
             "tooltip": "", **link}
            for link in (*pages_of_daemon("${instance}", "${pid}"), *stored_profiles("${comm}"))
        ],
    )  # fmt: skip
    mark_events(board, 'instance="$instance"')
    known = f"parprof_process_info{{{here}}}"
    board.annotate(
        "n_w source of this process", IDLENESS,
        f"{known} unless on (instance, comm, pid, n_w_source) ({known} offset 2m)",
        "n_w of {{comm}} is known by: {{n_w_source}}",
    )  # fmt: skip
    board.stat(
        "parallel efficiency", "Useful work / effort.", (efficiency("parprof", here), ""), RATIO, steps=RISING
    )
    board.stat("cores n", "Cores that it could use.", (f"max(parprof_cores{{{here}}})", ""), COUNT)
    board.stat(
        "threads working",
        "The mean of the last interval.",
        (f'max(parprof_threads{{{here}, state="working"}})', ""),
        COUNT,
    )
    board.stat(
        "n_w source", "How working threads are told from waiting ones.",
        (f"parprof_process_info{{{here}}}", "{{n_w_source}}"), COUNT, name=True,
    )  # fmt: skip
    board.stat(
        "sampled at",
        "The governor may lower it.",
        (f"max(parprof_sampling_frequency_hertz{{{here}}})", ""),
        HERTZ,
    )
    board.stat(
        "cost", "Probes and samples, share of its CPU time.",
        (f"max(parprofd_target_cost_ratio{{{here}}})", ""), RATIO, steps=((None, GREEN), (0.01, AMBER), (0.02, RED)),
    )  # fmt: skip
    board.row("Cores and threads")
    board.graph(
        "what its cores were used for", "Useful work, overhead and idleness add up to n whenever a thread works.",
        [*split("parprof", here, "idleness"), (f"max(parprof_cores{{{here}}})", "n")], CORES, stacked=True,
        colours=KIND_COLOURS, unstacked=("n", "spin"),
    )  # fmt: skip
    board.graph(
        "threads", "By state, the mean of an interval.",
        [(f"max by (state) (parprof_threads{{{here}}})", "{{state}}"), (f"max(parprof_cores{{{here}}})", "n")], COUNT,
        stacked=True, unstacked=("n",), colours={"working": USEFUL, "spinning": SPIN, "blocked": IDLENESS},
    )  # fmt: skip
    board.graph(
        "threads that worked at once",
        "Share of the time in which n_w, the number of threads in user work, was so high.",
        [(rate("parprof_concurrency_seconds_total", here, "n_working"), "{{n_working}}")],
        RATIO,
        stacked=True,
        whole=True,
    )
    board.graph(
        "parallel efficiency", "Useful work / effort: in the last interval, and since it was first watched.",
        [(efficiency("parprof", here), "now"), (f"max(parprof_parallel_efficiency_ratio{{{here}}})", "since watched")],
        RATIO, whole=True,
    )  # fmt: skip
    board.graph(
        "cost", "Against the governor's budget.",
        [
            (f"max(parprofd_target_cost_ratio{{{here}}})", "cost"),
            ('max(parprofd_budget_ratio{instance="$instance"})', "budget"),
        ], RATIO,
    )  # fmt: skip
    board.row("Functions, callees not included")
    for kind, title, text in (
        ("idleness", "idleness", "Cores that stood idle while this ran."),
        ("work", "work", "Cores that this used, runtime overhead included."),
        ("overhead", "overhead", "Cores in the parallel runtime and in synchronization."),
        ("spin", "spin", "Cores in wait loops."),
    ):
        query = rate(f"parprof_function_{kind}_seconds_total", here, "function, module")
        board.graph(f"{title} by function", text, [(query, "{{function}} [{{module}}]")], CORES, stacked=True)
    board.table(
        "functions", "Over the time that is shown.",
        [
            (increase(f"parprof_function_{kind}_seconds_total", here, "$__range", "function, module"), kind, SECONDS)
            for kind in ("idleness", "work", "overhead", "spin")
        ], ("module", "function"), width=14,
    )  # fmt: skip
    board.table(
        "what is known of it", "", [(f"parprof_process_info{{{here}}}", "process", COUNT)],
        ("comm", "pid", "runtime", "n_w_source", "uid", "unit", "container", "namespace", "pod", "pod_uid", "cgroup"),
        width=10,
    )  # fmt: skip
    return board


def health() -> Board:
    """The daemon itself."""
    here = 'instance=~"$instance"'
    board = Board(
        "parprof-daemon", "parprof: daemon health", "Whether parprofd works, what it costs, and what it lost.",
        [variable("instance", "label_values(parprofd_build_info, instance)", "machine", many=True)],
    )  # fmt: skip
    mark_events(board, here)
    words = {0: ("no", RED), 1: ("yes", GREEN)}
    board.stat("healthy", "All of them.", (f"min(parprofd_healthy{{{here}}})", ""), COUNT, words=words)
    board.stat(
        "ready",
        "Programs and events in place, on all.",
        (f"min(parprofd_ready{{{here}}})", ""),
        COUNT,
        words=words,
    )
    board.stat(
        "oldest snapshot", "Time since the daemon's loop last turned.",
        (f"max(time() - parprofd_snapshot_timestamp_seconds{{{here}}})", ""), SECONDS, steps=((None, GREEN), (60, RED)),
    )  # fmt: skip
    board.stat(
        "without series", "Watched processes beyond the limit of series.",
        (f"sum(parprofd_hidden_processes{{{here}}})", ""), COUNT, steps=((None, GREEN), (1, AMBER)),
    )  # fmt: skip
    board.stat(
        "version",
        "",
        (f"count by (version) (parprofd_build_info{{{here}}})", "{{version}}"),
        COUNT,
        name=True,
    )
    board.stat(
        "samples lost", "Share of all.", (f"max(instance:parprofd_lost:ratio_rate5m{{{here}}})", ""), RATIO,
        steps=((None, GREEN), (0.01, RED)),
    )  # fmt: skip
    board.row("What it sees")
    board.graph(
        "samples",
        "Counted, a second.",
        [(rate("parprofd_samples_total", here, "instance"), "{{instance}}")],
        RATE,
    )
    board.graph(
        "lost", "By reason, a second.", [(rate("parprofd_lost_total", here, "reason"), "{{reason}}")], RATE
    )
    board.graph(
        "probe hits", "By runtime, and the same by edge, a second.",
        [
            (rate("parprofd_probe_hits_total", here, "runtime"), "{{runtime}}"),
            (rate("parprofd_edge_hits_total", here, "edge"), "edge: {{edge}}"),
        ], RATE,
    )  # fmt: skip
    board.graph(
        "processes",
        "Watched.",
        [(f"sum by (instance) (parprofd_processes{{{here}}})", "{{instance}}")],
        COUNT,
    )
    board.graph(
        "attach failures", "Runtimes that could not be probed, in the last hour.",
        [(increase("parprofd_attach_failures_total", here, "1h", "runtime, reason"), "{{runtime}}: {{reason}}")],
        COUNT,
    )  # fmt: skip
    board.graph(
        "folded call paths", "A second, to bound memory.",
        [(rate("parprof_folded_call_paths_total", here, "instance"), "{{instance}}")], RATE,
    )  # fmt: skip
    board.row("What it costs")
    board.graph(
        "cost in targets", "The costliest process, all together as a share of the machine, and the budget.",
        [
            (f"max by (instance) (parprofd_target_cost_ratio{{{here}}})", "{{instance}}: costliest process"),
            (f"max by (instance) (parprofd_machine_cost_ratio{{{here}}})", "{{instance}}: machine"),
            (f"max(parprofd_budget_ratio{{{here}}})", "budget"),
        ], RATIO,
    )  # fmt: skip
    board.graph(
        "governor", "Its decisions in the last hour.",
        [(increase("parprofd_governor_transitions_total", here, "1h", "from, to"), "{{from}} to {{to}}")], COUNT,
    )  # fmt: skip
    daemon = f"and on (job, instance) parprofd_build_info{{{here}}}"
    board.graph(
        "daemon CPU", "Of one core.",
        [
            (f"rate(process_cpu_seconds_total[$__rate_interval]) {daemon}", "{{instance}}"),
            (f"rate(parprofd_children_cpu_seconds_total{{{here}}}[$__rate_interval])", "{{instance}}: children"),
        ], RATIO,
    )  # fmt: skip
    board.graph(
        "daemon memory",
        "Resident.",
        [
            (f"process_resident_memory_bytes {daemon}", "{{instance}}"),
            (f"parprofd_children_resident_memory_bytes{{{here}}}", "{{instance}}: children"),
            (f"parprofd_profiles_bytes{{{here}}}", "{{instance}}: recent profiles"),
        ],
        BYTES,
    )
    board.graph(
        "drain",
        "Duration of the last drain.",
        [(f"parprofd_drain_seconds{{{here}}}", "{{instance}}")],
        SECONDS,
    )
    board.graph("open files", "Of the daemon.", [(f"process_open_fds {daemon}", "{{instance}}")], COUNT)
    board.row("What it sends")
    board.graph(
        "HTTP answers", "By route and status, a second.",
        [(rate("parprofd_http_requests_total", here, "route, code"), "{{route}} {{code}}")], RATE,
    )  # fmt: skip
    board.graph(
        "pushed profiles", "By backend and outcome, a second.",
        [(rate("parprofd_pushed_profiles_total", here, "backend, outcome"), "{{backend}} {{outcome}}")], RATE,
    )  # fmt: skip
    return board


def documents() -> dict[str, str]:
    """File names and contents."""
    boards = {
        "fleet.json": fleet(), "node.json": node(), "unit.json": unit(), "process.json": process(),
        "daemon.json": health(),
    }  # fmt: skip
    return {name: json.dumps(board.json(), indent=1) + "\n" for name, board in boards.items()}


if __name__ == "__main__":
    DASHBOARDS.mkdir(exist_ok=True)
    for file_name, text in documents().items():
        (DASHBOARDS / file_name).write_text(text)
