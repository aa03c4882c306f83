"""instrument/span_library.c: the library's files as one translation unit."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

from compiled import compile_once
from parprof.instruments.span import LIBRARY
from parprof.instruments.toolchain import source_directory

WHOLE = "span_library.c"


def parts() -> list[str]:
    """The files that it includes."""
    return re.findall(r'^#include "(\w+\.c)"$', (source_directory() / WHOLE).read_text(), re.MULTILINE)


def test_it_is_made_of_all_files() -> None:
    files = {path.name for path in source_directory().glob("span*.[ch]")} | {"parprof_span.h"}
    assert sorted(parts()) == sorted(name for name in files if name.endswith(".c") and name != WHOLE)
    assert set(LIBRARY.sources) | set(LIBRARY.headers) == files


def test_no_two_files_have_a_variable_of_one_name(tmp_path: Path) -> None:
    """In one translation unit they would be the same variable, without a word from the compiler."""
    owners = defaultdict(list)
    for part in parts():
        output = tmp_path / f"{part}.o"
        source = str(source_directory() / part)
        compile_once(["gcc", "-std=gnu11", "-O0", "-fPIC", "-c", source, "-o", output])
        listed = subprocess.run(["nm", str(output)], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"^\w+ [bdrBDR] (\w+)$", listed, re.MULTILINE):
            owners[name].append(part)
    headers = "".join(path.read_text() for path in source_directory().glob("span*.h"))
    shared = {name for name in owners if re.search(rf"^static .*\b{name}\b.*;$", headers, re.MULTILINE)}
    assert {name: where for name, where in owners.items() if len(where) > 1 and name not in shared} == {}
