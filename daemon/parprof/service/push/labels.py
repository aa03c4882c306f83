"""Labels of what is pushed: fixed ones, and those of the process, which its user made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from parprof.model import Profile
from parprof.patterns import regex
from parprof.service.model import Labels
from parprof.untrusted import visible

SERVICE_NAME = "service_name"
"""The label that all stores want."""
MAX_VALUE = 200

_SOURCES: Mapping[str, Callable[[Profile, Labels], str]] = {
    "comm": lambda profile, labels: labels.comm or profile.process.comm,
    "pid": lambda profile, labels: str(profile.process.pid),
    "uid": lambda profile, labels: str(labels.uid),
    "runtime": lambda profile, labels: profile.process.runtime,
    "n_w_source": lambda profile, labels: profile.process.n_w_source,
    "cgroup": lambda profile, labels: labels.cgroup,
    "container": lambda profile, labels: labels.container,
    "unit": lambda profile, labels: labels.unit,
    "pod": lambda profile, labels: labels.pod,
    "pod_name": lambda profile, labels: labels.pod_name,
    "namespace": lambda profile, labels: labels.namespace,
}
PROCESS_LABELS = tuple(_SOURCES)
"""What `process_labels` can give."""
DEFAULT_LABELS = ("comm", "runtime", "container", "unit", "pod")
"""PIDs are not among them: stores keep a series for each set of labels, for as long as they keep anything."""

_NAME = regex("[a-zA-Z_][a-zA-Z0-9_]{0,63}")


def is_label_name(name: str) -> bool:
    """Whether all stores take a label of this name from us. Theirs begin with two underscores."""
    return _NAME.fullmatch(name) is not None and not name.startswith("__")


def process_labels(
    profile: Profile, labels: Labels, names: Iterable[str], fixed: Mapping[str, str], service: str = "comm"
) -> dict[str, str]:
    """The labels of a profile: those of the process, then the fixed ones, then the service's name.

    The service is named by the fixed label ``service_name``, else by the process label ``service``, else
    ``unknown``. Values are on one line and not long; empty ones are left out.
    """
    out = {name: clean(_SOURCES[name](profile, labels)) for name in names}
    out |= {name: clean(value) for name, value in fixed.items()}
    out = {name: value for name, value in out.items() if value}
    if SERVICE_NAME not in out:
        out[SERVICE_NAME] = clean(_SOURCES[service](profile, labels)) or "unknown"
    return out


def clean(value: str) -> str:
    """A label value without controls or undecodable bytes, and not long."""
    return visible(value.strip(), MAX_VALUE)
