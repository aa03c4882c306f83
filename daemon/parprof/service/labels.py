"""Where a process belongs: user, cgroup, container, systemd unit, Kubernetes pod. Read once for each process."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import islice

from parprof.patterns import regex
from parprof.service.model import Labels
from parprof.untrusted import visible

_MAX_TEXT = 1 << 16
_CONTAINER = regex(r"(?:^|[-/:])([0-9a-f]{64})(?:\.scope)?(?=/|$)")
_POD = regex(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_OTHER_CONTAINER = regex(r"/(?:machine\.slice|lxc\.payload[^/]*|lxc|docker|garden|kubepods[^/]*)(?=/|$)")
"""Where those are whose names have no such id: systemd-nspawn and machinectl, LXC and Incus, and more."""
_UNIT = regex(r"/([^/]+\.(?:service|scope|socket|slice))(?=/|$)")
_POD_LOGS = "/var/log/pods"
"""The kubelet keeps a directory here for each pod of the node: NAMESPACE_NAME_UID."""
_POD_NAME = regex(r"([a-z0-9-]{1,63})_([a-z0-9.-]{1,253})_([0-9a-f-]{36})")
_MAX_PODS = 4096


def read_labels(pid: int, comm: str) -> Labels:
    """The labels of a process; what cannot be read is empty. ``comm`` is safe to show."""
    cgroup, uid = cgroup_path(_read(f"/proc/{pid}/cgroup")), uid_of(_read(f"/proc/{pid}/status"))
    pod = pod_of(cgroup)
    namespace, pod_name = PODS.find(pod) if pod else ("", "")
    return Labels(comm, uid, cgroup, container_of(cgroup), unit_of(cgroup), pod, pod_name, namespace)


class PodNames:
    """Namespaces and names of the pods of this node, which no cgroup tells: from the kubelet's directories of logs.

    Nothing is asked for over the network. For any thread.
    """

    def __init__(self, directory: str = _POD_LOGS) -> None:
        """Nothing is read yet."""
        self._directory = directory
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}

    def find(self, uid: str) -> tuple[str, str]:
        """Namespace and name of a pod; empty where they are not known.

        The directory is read again for each pod that is new: at most so many of its entries are looked at.
        """
        with self._lock:
            if uid not in self._known:
                self._known = self._read()
                self._known.setdefault(uid, ("", ""))
            return self._known[uid]

    def _read(self) -> dict[str, tuple[str, str]]:
        out = {}
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in islice(entries, _MAX_PODS):
                if match := _POD_NAME.fullmatch(entry.name):
                    out[match[3]] = match[1], match[2]
        return out


PODS = PodNames()


def cgroup_path(text: str) -> str:
    """The path in the text of ``/proc/PID/cgroup``: that of version 2, else that of systemd's own hierarchy.

    >>> cgroup_path("1:name=systemd:/a" + chr(10) + "0::/b" + chr(10))
    '/b'
    """
    found = ""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            return path
        if controllers == "name=systemd" or not found:
            found = path
    return found


def container_of(cgroup: str) -> str:
    """The container id that a container runtime puts into the cgroup's name; empty without one.

    >>> container_of("/system.slice/docker-" + "ab" * 32 + ".scope")[:4]
    'abab'
    """
    found = _CONTAINER.findall(cgroup)
    return str(found[-1]) if found else ""


def is_contained(cgroup: str) -> bool:
    """Whether a cgroup is of a container, of whatever runtime.

    >>> [is_contained(path) for path in ("/machine.slice/machine-x.scope", "/lxc.payload.x", "/lxc/x", "/user.slice")]
    [True, True, True, False]
    """
    return bool(container_of(cgroup) or pod_of(cgroup) or _OTHER_CONTAINER.match(cgroup))


def pod_of(cgroup: str) -> str:
    """The uid of the Kubernetes pod; empty without one.

    >>> pod_of("/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/x")
    '01234567-89ab-cdef-0123-456789abcdef'
    """
    found = _POD.search(cgroup)
    return found[1].replace("_", "-") if found else ""


def unit_of(cgroup: str) -> str:
    """The innermost systemd unit that is neither a slice nor made for one container; empty without one.

    >>> unit_of("/user.slice/user-0.slice/session-3.scope"), unit_of(f"/system.slice/docker-{'ab' * 32}.scope")
    ('session-3.scope', '')
    """
    units = (str(unit) for unit in reversed(_UNIT.findall(cgroup)))
    return next((one for one in units if not one.endswith(".slice") and not _CONTAINER.search(one)), "")


def uid_of(status: str) -> int:
    """The real user id in the text of ``/proc/PID/status``; 0 if there is none.

    >>> uid_of("Name:" + chr(9) + "heat" + chr(10) + "Uid:" + chr(9) + "42" + chr(9) + "7" + chr(9) + "7")
    42
    """
    for line in status.split("\n"):
        if line.startswith("Uid:"):
            with suppress(ValueError, IndexError):
                return int(line.split()[1])
    return 0


def _read(path: str) -> str:
    with suppress(OSError), open(path, "rb") as file:
        # Tabs stand between fields; all else that is no letter may do harm.
        return "\n".join(
            "\t".join(visible(field, 4096) for field in line.split(b"\t"))
            for line in file.read(_MAX_TEXT).split(b"\n")
        )
    return ""
