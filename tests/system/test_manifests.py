"""The container recipe and the Kubernetes manifest agree with the unit file, and with what the cluster accepts."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from booted import REPO
from parprof.service.config.load import load
from parprof.service.config.schema import KEYS, Config

pytestmark = pytest.mark.beside

UNIT = (REPO / "systemd/parprofd.service").read_text()
CONTAINERFILE = (REPO / "packaging/container/Containerfile").read_text()
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((REPO / "packaging/kubernetes/parprofd.yaml").read_text())
)


def manifest(kind: str) -> dict[str, Any]:
    return next(one for one in MANIFESTS if one["kind"] == kind)


def pod() -> dict[str, Any]:
    spec = manifest("DaemonSet")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def capabilities_of_unit() -> set[str]:
    lines = re.findall(r"(?m)^CapabilityBoundingSet=(.*)", UNIT)
    return {name.removeprefix("CAP_") for line in lines for name in line.split()}


@pytest.mark.parametrize("one", MANIFESTS, ids=lambda one: one["kind"])
def test_the_cluster_accepts_it(one: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validator.validate(one, "1.30", strict=True)


def test_all_ways_give_the_same_capabilities() -> None:
    security = pod()["containers"][0]["securityContext"]
    assert set(security["capabilities"]["add"]) == capabilities_of_unit()
    assert security["capabilities"]["drop"] == ["ALL"]
    added = re.search(r"--cap-add=(\S+)", CONTAINERFILE)
    assert added and set(added[1].split(",")) == capabilities_of_unit()


def test_the_pod_sees_the_node() -> None:
    spec, container = pod(), pod()["containers"][0]
    assert spec["hostPID"] and not spec["enableServiceLinks"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    for path in ("/sys/kernel/btf", "/sys/fs/cgroup", "/run/parprofd"):
        assert volumes[mounts[path]]["hostPath"]["path"] == path
    directory = re.search(r"(?m)^RuntimeDirectory=(.*)", UNIT)
    assert directory and Config().control.socket.startswith(f"/run/{directory[1]}/")
    assert container["resources"]["limits"]["memory"] == "1Gi"


def test_probes_ask_where_it_listens() -> None:
    http = pods_configuration().http
    host, port = http.listen.split(":")
    assert host == "0.0.0.0" and not pod().get("hostNetwork"), "each pod has an address that is scraped"
    assert http.metrics_for_all and not http.token_file, "without a secret that nobody has made yet"
    container = pod()["containers"][0]
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        asked = container[probe]["httpGet"]
        assert (asked.get("host"), str(asked["port"]), asked["path"]) == (None, port, path)
    annotations = manifest("DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == port and annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/scheme"] == "http"
    (rule,) = manifest("NetworkPolicy")["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": int(port)}]
    labels = manifest("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert f"EXPOSE {port}" in CONTAINERFILE


def pods_configuration(text: str = "") -> Config:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text or manifest("ConfigMap")["data"]["parprofd.toml"])
        file.flush()
        return load(file.name, environment={}).config


def test_its_configuration_is_right() -> None:
    assert "select.deny.comm" in KEYS
    config = pods_configuration()
    assert config.select.deny.comm and not config.metrics.pid


def test_the_secret_is_where_the_comments_look_for_it(tmp_path: Path) -> None:
    """With the lines that are to be uncommented, and files where the secret puts them."""
    files = {name: tmp_path / name for name in ("token", "tls.crt", "tls.key")}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-days", "2",
         "-out", files["tls.crt"], "-keyout", files["tls.key"]], check=True, capture_output=True,
    )  # fmt: skip
    files["token"].write_text("0123456789abcdef")
    files["token"].chmod(0o400)
    text = manifest("ConfigMap")["data"]["parprofd.toml"]
    mounted = next(
        one["mountPath"] for one in pod()["containers"][0]["volumeMounts"] if one["name"] == "http"
    )
    text = re.sub(r"(?m)^# (\w+ = \")" + mounted, rf"\1{tmp_path}", text)
    http = pods_configuration(text).http
    assert [http.token_file, http.certificate, http.key] == [str(path) for path in files.values()]


def test_the_recipe_copies_what_the_script_needs() -> None:
    script = (REPO / "scripts/install.sh").read_text()
    used = set(re.findall(r'(?<!echo )"?\$source/([\w.]+)', script))
    copied = {
        word.partition("/")[0]
        for line in re.findall(r"(?m)^COPY (?!--)(.*)", CONTAINERFILE)
        for word in line.split()
    }
    assert used <= copied, used - copied
    packages = re.search(r"for package in (.*); do", script)
    assert packages
    for name in set(packages[1].split()) - {"python3-venv"}:
        assert name in CONTAINERFILE and name in (REPO / "packaging/deb/build.sh").read_text()


def test_python_packages_are_all_listed() -> None:
    import tomllib

    listed = set(tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {
        ".".join(path.parent.relative_to(REPO / "daemon").parts)
        for path in REPO.glob("daemon/**/__init__.py")
    }
    assert listed == there | {"parprof.bpf", "parprof.instrument"}
