#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks dashboards/*.json against Grafana's own types, with TypeScript: needs npm and a registry.

    python3 grafana/check_types.py

Installs npm's @grafana/schema and typescript into a temporary directory. Panel options and field options are
checked against each panel type's, as the dashboard's own type leaves them open.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
DASHBOARDS = Path(__file__).parent / "dashboards"
OF_PROMETHEUS = ("expr", "step", "titleFormat", "textFormat", "tagKeys", "useValueForTime")
"""What annotations have for their data source, of which the dashboard's types know nothing."""
PANELS = ("stat", "table", "timeseries")
HEAD = """
import {Dashboard, Panel, RowPanel} from "./node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen";
type Loose<T> = unknown extends T ? unknown : T extends string ? `${T}` : T extends (infer U)[] ? Loose<U>[]
  : T extends object ? {[K in keyof T]: Loose<T[K]>} : T extends number ? number : T;
"""
COMPOSABLE = "./node_modules/@grafana/schema/dist/types/raw/composable"


def program() -> str:
    """All dashboards as typed constants: literals, so that unknown fields are errors too."""
    lines = [HEAD]
    lines += [f'import * as {kind} from "{COMPOSABLE}/{kind}/panelcfg/x/types.gen";' for kind in PANELS]

    def constant(kind: str, value: object) -> None:
        lines.append(f"export const c{len(lines)}: Loose<{kind}> = {json.dumps(value)};")

    for file in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(file.read_text())
        for annotation in board["annotations"]["list"]:
            for name in OF_PROMETHEUS:
                del annotation[name]
        for panel in board.pop("panels"):
            if panel["type"] == "row":
                constant("RowPanel", panel)
                continue
            constant(f"{panel['type']}.Options", panel.pop("options"))
            custom = panel["fieldConfig"]["defaults"].pop("custom", None)
            if custom is not None:
                constant(f"Partial<{panel['type']}.FieldConfig>", custom)
            constant("Panel", panel)
        constant('Omit<Dashboard, "panels">', board)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Returns the exit code: 0 when all fits."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "package.json").write_text("{}")
        Path(directory, "dashboards.ts").write_text(program())
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES]
        subprocess.run(install, cwd=directory, check=True)
        options = ["--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler"]
        options += ["--module", "esnext", "--target", "es2022"]
        return subprocess.run(["npx", "tsc", *options, "dashboards.ts"], cwd=directory).returncode


if __name__ == "__main__":
    sys.exit(main())
