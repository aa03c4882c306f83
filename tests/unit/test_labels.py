# SPDX-License-Identifier: Apache-2.0
"""Where a process belongs, by the text of its /proc/PID/cgroup and the kubelet's directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.service.labels import PodNames, cgroup_path, container_of, pod_of, unit_of
from parprof.service.model import Labels

ID = "3f" * 32
UID = "01234567-89ab-cdef-0123-456789abcdef"
_UID = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "unit", "container", "pod"),
    [
        ("/", "", "", ""),
        ("/system.slice/sshd.service", "sshd.service", "", ""),
        (
            "/user.slice/user-0.slice/user@0.service/app.slice/app-x.scope",
            "app-x.scope",
            "",
            "",
        ),
        (f"/system.slice/docker-{ID}.scope", "", ID, ""),
        (f"/docker/{ID}", "", ID, ""),
        (f"/machine.slice/libpod-{ID}.scope/container", "", ID, ""),
        # podman in a service of systemd's
        (f"/system.slice/web.service/libpod-payload-{ID}", "web.service", ID, ""),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_UID}.slice/cri-containerd-{ID}.scope",
            "",
            ID,
            UID,
        ),
        (f"/kubepods/besteffort/pod{UID}/{ID}", "", ID, UID),
        # seen from a pod with a cgroup namespace of its own
        (f"/../../kubepods-burstable-pod{_UID}.slice/crio-{ID}.scope", "", ID, UID),
        ("/../../../../system.slice/sshd.service", "sshd.service", "", ""),
    ],
)
def test_of_a_cgroup(cgroup: str, unit: str, container: str, pod: str) -> None:
    assert (unit_of(cgroup), container_of(cgroup), pod_of(cgroup)) == (unit, container, pod)


@given(st.text(max_size=300))
def test_whatever_a_cgroup_is_called(text: str) -> None:
    path = cgroup_path(text)
    assert isinstance(unit_of(path) + container_of(path) + pod_of(path), str)


def test_names_of_pods(tmp_path: Path) -> None:
    pods = PodNames(str(tmp_path))
    assert pods.find(UID) == ("", "")
    later = "11" + UID[2:]
    for name in (f"shop_cart-7d9f_{later}", "no pod", f"a_b_c_{UID}", f"{'x' * 64}_y_{UID}", f"A_b_{UID}"):
        (tmp_path / name).mkdir()
    assert pods.find(later) == ("shop", "cart-7d9f")
    assert pods.find(UID) == ("", "")  # none of the others is what the kubelet writes
    assert PodNames(str(tmp_path / "missing")).find(UID) == ("", "")


def test_groups() -> None:
    named = Labels("cart", container=ID, pod=UID, pod_name="cart-7d9f", namespace="shop")
    assert (named.group.namespace, named.group.pod, named.group.container) == ("shop", "cart-7d9f", ID)
    assert Labels("cart", pod=UID).group.pod == UID
    assert Labels("a", 1, "/x").group == Labels("a", 2, "/y").group
