"""Metrics on the wire: those that have a field in control.proto, and all further ones by name."""

from __future__ import annotations

from parprof.metrics import METRICS, Metric, Metrics
from parprof.service.control import control_pb2 as pb
from parprof.units import COUNT

_MOST = 2**64 - 1


def to_wire(metrics: Metrics) -> pb.Metrics:
    """All values, in the units that readers see."""
    out = pb.Metrics()
    fields = pb.Metrics.DESCRIPTOR.fields_by_name
    for metric in METRICS:
        value = metric.unit.amount(metrics[metric])
        if metric.report_key in fields:
            # a count as the wire can hold it: the kernel's may dip below zero for an instant
            whole = min(max(int(value), 0), _MOST) if metric.unit is COUNT else value
            setattr(out, metric.report_key, whole)
        elif value:
            out.more.add(name=metric.report_key, value=value)
    return out


def amount(metrics: pb.Metrics, metric: Metric) -> float:
    """One value, in the unit that readers see; 0 where the other side knows nothing of it."""
    if metric.report_key in pb.Metrics.DESCRIPTOR.fields_by_name:
        value: float = getattr(metrics, metric.report_key)
        return value
    return next((one.value for one in metrics.more if one.name == metric.report_key), 0.0)
