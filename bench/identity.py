"""n x time = work + ready + stolen + idleness + stall, each term against what the program and the kernel say of it.

    .venv/bin/python bench/identity.py [--repeat 3] [MODE ...]

A row a term: what the program told, what the report found, and the error in percent of n x time (a percent is wanted,
and half a percent of the sum); then idleness counted at each change of n_w against sampled. Time without a CPU is a
term, so a busy machine makes nothing wrong but sampling noise; a quiet one has less of that. Needs root.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from identity import MODES, Run, record_mode, record_pool, record_quota  # noqa: E402
from quota import NoQuota, quota_group  # noqa: E402

POOL, QUOTA = "Pool(2)", "under a quota"


def run(mode: str) -> Run:
    """One recording."""
    with tempfile.TemporaryDirectory(prefix="parprof-identity-") as name:
        folder = Path(name)
        if mode == POOL:
            return record_pool(folder)
        if mode == QUOTA:
            with quota_group(1.0) as procs:
                return record_quota(procs, folder)
        return record_mode(mode, folder)


def show(mode: str, found: Run) -> None:
    """The rows of one."""
    totals, whole_s = found.report["totals"], found.available_s
    for term in found.terms():
        error = 100 * (term.found_s - term.told_s) / whole_s
        print(f"{mode:<22} {term.name:<23} {term.told_s:>9.3f} {term.found_s:>9.3f} {error:>+7.2f} %")
    print(f"{mode:<22} {'sum':<23} {whole_s:>9.3f} {whole_s * totals['accounted']:>9.3f} "
          f"{100 * (totals['accounted'] - 1):>+7.2f} %{'' if found.is_exact else ' (fitted)'}")  # fmt: skip
    if found.is_exact:
        counted_s, sampled_s = totals["counted_idleness_s"], totals["idleness_s"]
        print(f"{mode:<22} {'idleness, counted':<23} {counted_s:>9.3f} {sampled_s:>9.3f} sampled, and"
              f" {totals['stolen_s']:.3f} stolen{'; ' + found.parted[0] if found.parted else ''}")  # fmt: skip


def main() -> None:
    """All of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"of {', '.join([*MODES, POOL, QUOTA])}")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(describe())
    print(f"{'program':<22} {'term':<23} {'told s':>9} {'found s':>9} {'of n x time':>9}")
    for mode in args.modes or [*MODES, POOL, QUOTA]:
        for _ in range(args.repeat):
            try:
                show(mode, run(mode))
            except NoQuota as error:
                print(f"{mode:<22} {error}")


if __name__ == "__main__":
    main()
