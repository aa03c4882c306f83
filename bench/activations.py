"""What telling calls apart adds to a sample: pairs of measurements with and without it, by the kernel's BPF statistics.

    .venv/bin/python bench/activations.py [PAIRS]

The recursion's stack is the same at nearly every sample; perl's is another each time. Needs root.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "bench")]

from machine import describe  # noqa: E402
from unwind import BUILD, measure_command  # noqa: E402

COMMANDS = {
    "recursion, 10": [str(BUILD / "stacks"), "recursion", "10", "30"],
    "recursion, 100": [str(BUILD / "stacks"), "recursion", "100", "30"],
    "recursion, 490": [str(BUILD / "stacks"), "recursion", "490", "30"],
    "perl": ["perl", "-e", "sub f{my $n=shift; $n<2?$n:f($n-1)+f($n-2)} f(40)"],
}
_HZ = 999


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(describe())
    print(
        f"{'program':<15} {'frames':>6} {'without ns':>10} {'with ns':>8} {'more ns':>8} {'% of a core at 999 Hz':>22}"
    )
    for name, command in COMMANDS.items():
        found = [
            (measure_command(command, False), measure_command(command, False, activations=True))
            for _ in range(pairs)
        ]
        without = statistics.median(one[0] for one, _ in found)
        with_it = statistics.median(one[0] for _, one in found)
        more = statistics.median(b[0] - a[0] for a, b in found)
        frames = statistics.median(one[1] for one, _ in found)
        print(
            f"{name:<15} {frames:>6.0f} {without:>10.0f} {with_it:>8.0f} {more:>8.0f} {more * _HZ / 1e9:>22.4%}"
        )


if __name__ == "__main__":
    main()
