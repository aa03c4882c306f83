#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures for the documents, made from a real profile: the terminal report as text, the web page as PNG.

    scripts/pictures.py PROFILE DIRECTORY

writes report.txt, as the README shows it, and page-light.png and page-dark.png (with Chromium, where it is there).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PARPROF = REPO / ".venv/bin/parprof"
COLUMNS, ROWS = 80, 4
PIXELS = "1000,670"


def report(profile: Path) -> str:
    """The report on a narrow terminal, its first rows."""
    options = ("--width", str(COLUMNS), "--limit", str(ROWS))
    return subprocess.check_output([PARPROF, "report", profile, *options], text=True)


def photograph(page: Path, picture: Path, *, dark: bool) -> None:
    """The upper part of a web page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("pictures of the page need Chromium; the text is written")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={PIXELS}"]
    if dark:
        options.append("--blink-settings=preferredColorScheme=0")
    command = [browser, *options, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)


def main() -> None:
    """Make all of them."""
    profile, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(report(profile))
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "page.html")
        subprocess.run([PARPROF, "report", profile, "--html", page], check=True)
        for name, dark in (("light", False), ("dark", True)):
            photograph(page, folder / f"page-{name}.png", dark=dark)


if __name__ == "__main__":
    main()
