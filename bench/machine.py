"""One line that says on what machine a benchmark ran."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> str:
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    virtual = "virtual machine" if "hypervisor" in Path("/proc/cpuinfo").read_text() else "bare metal"
    load = os.getloadavg()[0]
    return f"machine: {os.cpu_count()} x {model}, {virtual}, Linux {platform.release()}, load {load:.1f}"
