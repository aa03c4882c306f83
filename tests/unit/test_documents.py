# SPDX-License-Identifier: Apache-2.0
"""The documents for readers: complete, and what they show is true of the sources."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from parprof.attribution.waiting import WaitKind
from parprof.causes.diagnosis import Kind
from parprof.exporters.views import RECURSION, VIEWS
from parprof.metrics import METRICS

REPO = Path(__file__).resolve().parents[2]
PACKAGE = REPO / "daemon/parprof"
READING = (REPO / "docs/reading.md").read_text()


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Calls of functions, or methods, of these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names and node.args:
                yield node


def constants(node: ast.AST) -> list[str]:
    """The constant parts of texts."""
    return [
        one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def bracketed_words() -> set[str]:
    """How names of pseudo-frames begin: all of it, or up to what differs."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for call in calls(ast.parse(path.read_text()), "Frame", "Procedure", "_word", "word"):
            found |= {text for text in constants(call.args[0]) if text.startswith("[")}
    return found


def test_all_words_in_brackets_are_explained() -> None:
    words = bracketed_words()
    assert {"[truncated]", "[kernel: ", "[import ", "[folded]"} <= words
    assert not {word for word in words if f"`{word}" not in READING}
    assert all(kind.frame_name.startswith("[waits: ") for kind in WaitKind)
    assert "`[waits: " in READING
    assert all(kind.value in READING for kind in WaitKind)


def test_all_columns_and_metrics_are_explained() -> None:
    table = ast.parse((PACKAGE / "exporters/table_columns.py").read_text())
    headings = {(constants(call.args[0]) or [""])[0].split("\n")[0] for call in calls(table, "Column")}
    headings -= {"", "\n"}
    assert {"idle", "use", "ovhd", "samples", "verdict"} <= headings
    assert not {word for word in headings if f"`{word}" not in READING}
    words = {"idleness": "idle incl%", "overhead": "ovhd"}
    assert not [metric.name for metric in METRICS if f"`{words.get(metric.name, metric.name)}" not in READING]


def test_all_views_and_kinds_of_causes_are_explained() -> None:
    assert all(f"--view {view}`" in READING for view in VIEWS)
    assert all(word in READING for word in RECURSION)
    kinds = READING.partition("## Verdicts")[0]
    assert all(kind.words in kinds for kind in Kind)


def test_all_lines_of_the_head_are_explained() -> None:
    summary = ast.parse((PACKAGE / "exporters/summary.py").read_text())
    labels = {
        one.value
        for call in calls(summary, "Fact")
        for one in ([call.args[0]] if isinstance(call.args[0], ast.Constant) else ast.walk(call.args[0]))
        if isinstance(one, ast.Constant)
    }
    assert {"sampled", "cost", "lost", "process", "processes"} <= labels
    assert not {label for label in labels | {"advice", "also"} if f"`{label}:`" not in READING}


def test_all_notes_of_a_measurement_are_explained() -> None:
    """By the beginning of the longest part of each that is always the same."""
    module = ast.parse((PACKAGE / "profile/assemble.py").read_text())
    (function,) = (
        node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "measurement_notes"
    )
    notes = [max(constants(call.args[0]), key=len) for call in calls(function, "append")]
    assert len(notes) > 8
    assert not [note for note in notes if note.lstrip(" %")[:40] not in READING]


@pytest.mark.parametrize(
    "document", ["docs/tutorial.md", "docs/which-tool.md", "docs/reading.md", "README.md"]
)
def test_links_lead_somewhere(document: str) -> None:
    place = REPO / document
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", place.read_text())
    assert links and not [link for link in links if not (place.parent / link).exists()]


def test_pictures_are_shown_and_small() -> None:
    """On the README's first screen and in the tutorial; links are checked above."""
    pictures = {path.name for path in (REPO / "docs/pictures").iterdir()}
    shown = {
        document: re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (REPO / document).read_text())
        for document in ("README.md", "docs/tutorial.md")
    }
    assert all(shown.values())
    assert {Path(link).name for links in shown.values() for link in links} == pictures
    for name in pictures:
        data = (REPO / "docs/pictures" / name).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < 100_000, name
    assert (REPO / "README.md").read_text().index("![") < (REPO / "README.md").read_text().index(
        "## Two commands"
    )


def test_make_help_lists_what_contributors_are_told_to_make() -> None:
    listed = subprocess.run(["make", "-s", "-C", REPO, "help"], capture_output=True, text=True, check=True)
    told = set(re.findall(r"^\| `make ([a-z0-9]+)`", (REPO / "CONTRIBUTING.md").read_text(), re.M))
    assert {"e2e", "unit"} <= told <= {line.split()[0] for line in listed.stdout.splitlines()}


def test_the_changes_of_the_tutorial_fit_its_program(tmp_path: Path) -> None:
    source = (REPO / "examples/heat.c").read_text()
    patches = re.findall(r"```diff\n(.*?)```", (REPO / "docs/tutorial.md").read_text(), re.DOTALL)
    assert len(patches) == 2
    for patch in patches:
        lines = [line for line in patch.splitlines() if not line.startswith(("---", "+++", "@@"))]
        before, after = ("\n".join(line[1:] for line in lines if line[:1] != other) for other in ("+", "-"))
        assert source.count(before) == 1
        source = source.replace(before, after)
    fixed = tmp_path / "heat.c"
    fixed.write_text(source)
    gcc = shutil.which("gcc")
    assert gcc
    subprocess.run(
        [gcc, "-O2", "-Wall", "-Werror", "-fopenmp", "-fsyntax-only", fixed], check=True, timeout=60
    )


def test_the_lines_that_the_tutorial_names_are_those_of_the_program() -> None:
    lines = (REPO / "examples/heat.c").read_text().splitlines()
    assert "for (int i = 0" in lines[77 - 1]
    assert "relax_row(to, from, row)" in lines[68 - 1]


def test_the_guide_to_adding_a_runtime_shows_the_example() -> None:
    example = {
        name: (REPO / "examples/crew" / name).read_text() for name in ("parprof_crew.py", "pyproject.toml")
    }
    guide = (REPO / "docs/runtimes.md").read_text().partition("## Adding a runtime")[2]
    shown = re.findall(r"```(python|toml)\n(.*?)```", guide, re.DOTALL)
    assert [language for language, _ in shown] == ["python", "python", "toml"]
    for language, text in shown:
        assert text in example["parprof_crew.py" if language == "python" else "pyproject.toml"]
