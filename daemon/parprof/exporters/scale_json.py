"""`parprof scale --json`: the contract is in docs/scale.md."""

from __future__ import annotations

import json

from parprof.exporters.scale_table import NO_LIMIT, NOT_MODELLED
from parprof.scale.answer import bottleneck, sentence
from parprof.scale.calls import CallSite
from parprof.scale.model import Lost, Prediction, Scale, ScaleSite, context_of
from parprof.scale.record import CallSums, Measure


def to_json(scale: Scale) -> str:
    """The whole answer."""
    return json.dumps(document(scale), indent=1) + "\n"


def document(scale: Scale) -> dict[str, object]:
    """The whole answer, as JSON has it. Sites are those of the run with the most threads."""
    main = scale.main
    site = bottleneck(main)
    return {
        "schema": 1,
        "kind": "scale",
        "command": scale.command,
        "serial": scale.is_serial,
        "work_s": main.work_s,
        "span_s": main.span_s,
        "parallelism": main.parallelism,
        "threads": [_prediction(one) for one in scale.predictions],
        "advice": {
            "site": site.place if site else "",
            "text": sentence(scale),
            "speedup_if_fixed": _if_fixed(site.speedup_if_fixed if site else main.speedup),
        },
        "sites": [*(_site(one) for one in main.sites), *(_call(one) for one in main.calls)],
        "notes": [NOT_MODELLED, *scale.notes],
    }


def _if_fixed(speedup: float) -> float | None:
    """None: without limit."""
    return speedup if speedup < NO_LIMIT else None


def _prediction(one: Prediction) -> dict[str, object]:
    return {
        "n": one.threads,
        "speedup": one.speedup,
        "burdened_speedup": one.burdened or None,
        "lost": _lost(one.lost),
        "work_s": one.work_s,
        "span_s": one.span_s,
        "bound_s": one.bound_s,
        "parallelism": one.parallelism,
        "elapsed_s": one.elapsed_s,
        "widest_team": one.widest_team,
        "partial": one.is_partial,
    }


def _lost(lost: Lost) -> dict[str, float]:
    return {"serial": lost.serial, "uneven": lost.uneven, "critical": lost.critical, "runtime": lost.runtime}


def _site(site: ScaleSite) -> dict[str, object]:
    return {
        "site": site.place,
        "label": site.label,
        "kind": site.kind.name.lower(),
        "caller": context_of(site),
        "callee": "",
        "count": site.count,
        "bound_s": site.bound_s,
        "share": site.share,
        "speedup_if_fixed": _if_fixed(site.speedup_if_fixed),
        "on_work": {"local": {"work_s": site.work_s}},
        "on_span": {"count": site.span_count, "local": {"span_s": site.span_s}},
    }


def _call(call: CallSite) -> dict[str, object]:
    on_work, on_span = _profile(call.on_work), _profile(call.on_span)
    return {
        "site": call.place,
        "label": call.label,
        "kind": "call",
        "caller": call.caller,
        "callee": call.callee,
        "count": call.on_work.count,
        "on_work": {**on_work, "local": {"work_s": call.on_work.local_work_s}},
        "on_span": {
            "count": call.on_span.count,
            **on_span,
            "local": {"work_s": call.on_span.local_work_s, "span_s": call.on_span.local_span_s},
        },
    }


def _profile(profile: CallSums) -> dict[str, object]:
    return {"top_call_site": _measure(profile.top_call_site), "top_caller": _measure(profile.top_caller)}


def _measure(measure: Measure) -> dict[str, float]:
    return {
        "count": measure.count,
        "work_s": measure.work_s,
        "span_s": measure.span_s,
        "parallelism": measure.parallelism,
    }
