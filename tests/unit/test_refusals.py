# SPDX-License-Identifier: Apache-2.0
"""What is said when the kernel does not permit BPF, by what stands in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.errors import KernelUnsupported, ParprofError, PrivilegeError
from parprof.kernel.refusals import bpf_not_permitted, missing_capabilities

ALL, NONE, PERFMON = (1 << 41) - 1, 0, 1 << 38


@pytest.mark.parametrize(
    ("lockdown", "capabilities", "seccomp", "kind", "words"),
    [
        ("none integrity [confidentiality]", ALL, 0, KernelUnsupported, "lockdown=integrity"),
        ("none [integrity] confidentiality", NONE, 0, PrivilegeError, "CAP_BPF, CAP_PERFMON missing"),
        ("", PERFMON, 0, PrivilegeError, "(CAP_BPF missing)"),
        ("[none] integrity confidentiality", ALL, 2, PrivilegeError, "seccomp=unconfined"),
        ("", ALL, 0, KernelUnsupported, "Linux 5.15 or later"),
    ],
)
def test_each_reason_is_named(
    lockdown: str, capabilities: int, seccomp: int, kind: type[ParprofError], words: str, tmp_path: Path
) -> None:
    (tmp_path / "lockdown").write_text(lockdown + "\n")
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\nSeccomp:\t{seccomp}\n")
    error = bpf_not_permitted(tmp_path / "lockdown", tmp_path / "status")
    assert type(error) is kind and words in str(error)


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert missing_capabilities((39,), tmp_path / "no") == ["CAP_BPF"]
    assert isinstance(bpf_not_permitted(tmp_path / "no", tmp_path / "no"), PrivilegeError)
