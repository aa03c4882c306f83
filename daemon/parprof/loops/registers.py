"""The names of x86-64's general registers."""

from __future__ import annotations


def _names() -> dict[str, str]:
    out: dict[str, str] = {}
    for name in ("ax", "bx", "cx", "dx", "si", "di", "sp", "bp"):
        low = name[0] if name.endswith("x") else name
        out |= dict.fromkeys((f"r{name}", f"e{name}", name, f"{low}l", f"{low}h"), f"r{name}")
    for number in range(8, 16):
        out |= dict.fromkeys((f"r{number}", f"r{number}d", f"r{number}w", f"r{number}b"), f"r{number}")
    return out


WHOLE_REGISTER = _names()
"""All names of general registers, and the whole register that each is a part of."""
DWARF_REGISTERS = (
    "rax",
    "rdx",
    "rcx",
    "rbx",
    "rsi",
    "rdi",
    "rbp",
    "rsp",
    *(f"r{number}" for number in range(8, 16)),
)
"""By their numbers in call frame information (System V ABI for x86-64, figure 3.36)."""
