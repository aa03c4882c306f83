# SPDX-License-Identifier: Apache-2.0
"""Load maps that do not stand still: libraries loaded one after another, code mapped for a moment, JIT code."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.errors import TargetError
from parprof.kernel.engine import BpfKernel
from parprof.model import PathSample
from parprof.profile.rows import RowMaker
from parprof.session.session import Session
from profiling import recorded

pytestmark = pytest.mark.beside

MAPPINGS = str(profiling.BUILD / "mappings")


def by_path(samples: Iterable[PathSample]) -> dict[tuple[str, ...], int]:
    """Samples by call path, the names of functions."""
    out: dict[tuple[str, ...], int] = {}
    for sample in samples:
        path = tuple(frame.name for frame in sample.path)
        out[path] = out.get(path, 0) + sample.metrics.samples
    return out


def rows(session: Session) -> tuple[dict[tuple[str, ...], int], RowMaker]:
    """The same, of what was sampled in a session."""
    samples, maker = profiling.rows_of(session)
    return by_path(samples), maker


def through(paths: dict[tuple[str, ...], int], *names: str) -> int:
    """Samples whose path has these functions one below the other."""
    wanted = len(names)
    return sum(
        samples
        for path, samples in paths.items()
        if any(path[at : at + wanted] == names for at in range(len(path)))
    )


@pytest.fixture(scope="module")
def met_before() -> None:
    """What is known of the libraries is kept on disk: to find it takes longer than they stay."""
    with recorded([MAPPINGS, "libraries", "200", "10"]):
        pass


@pytest.mark.alone  # how soon a table is there depends on what else runs
@pytest.mark.usefixtures("met_before")
@pytest.mark.parametrize(
    ("count", "stay_ms", "cut"), [(40, 100.0, 0.1), (200, 10.0, 1.0)], ids=["slow", "fast"]
)
def test_libraries_one_after_another(count: int, stay_ms: float, cut: float) -> None:
    """Each runs as soon as it is loaded. Until its table is there stacks are cut in it, but no name is lost."""
    with recorded([MAPPINGS, "libraries", str(count), str(stay_ms)]) as (session, target):
        samples, maker = profiling.rows_of(session)
        named = {frame.module for one in samples for frame in one.path if frame.name == "plug_run"}
        assert len(named) >= 0.9 * count, sorted(named)
        paths = by_path(samples)
        assert maker.samples > 500
        assert through(paths, "plug_spin") > 0.4 * maker.samples
        assert through(paths, "called_back") > 0.4 * maker.samples
        assert sum(n for path, n in paths.items() if "[unknown]" in path[-1]) <= 0.01 * maker.samples
        assert maker.cut["no_mapping"] <= 0.01 * maker.samples, maker.cut
        assert maker.cut_short <= cut * maker.samples, maker.cut


def test_libraries_that_nobody_looked_at_while_they_were_there() -> None:
    """However late we are: samples come with the place of the file in its file system."""
    with profiling.traced_session(997) as session:
        child = Child([MAPPINGS, "libraries", "20", "20"])
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        maps = Path(f"/proc/{child.pid}/maps")
        profiling.run_until(session, lambda: "plug_" in maps.read_text())  # it was held until here
        assert child.wait() == 0
        session.finish()
        samples, maker = profiling.rows_of(session)
    named = {frame.module for one in samples for frame in one.path if frame.name == "plug_run"}
    assert len(named) >= 18, sorted(named)
    leaves = Counter(one.path[-1].name for one in samples for _ in range(one.metrics.samples))
    assert sum(n for name, n in leaves.items() if "[unknown]" in name) <= 0.05 * maker.samples, leaves


class Placings:
    """When the tables of a file were given to the kernel, by how many stacks it had cut for want of one."""

    def __init__(self, file: Path, kernel: BpfKernel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cut_before: list[int] = []
        put = kernel.file_tables.put

        def noting(device: int, inode: int, *table: int) -> None:
            put(device, inode, *table)
            if inode == file.stat().st_ino:
                self.cut_before.append(kernel.statistics()["stacks_no_table"])

        monkeypatch.setattr(kernel.file_tables, "put", noting)


@pytest.mark.parametrize("how", ["churn", "jit"])
def test_code_that_is_mapped_for_a_moment(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand times a second, and never long enough for anybody to read the load map.

    It is a sample that tells of the file. Until we have had a CPU to find its table stacks are cut, none after that.
    """
    with profiling.traced_session(997) as session:
        placings = Placings(Path(MAPPINGS).parent / "plugs/plug_000.so", session.kernel, monkeypatch)
        child = Child([MAPPINGS, how, "3"])
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        paths, maker = rows(session)
        late = placings.cut_before[0] if how == "churn" else 0
        judged = maker.samples - late
        assert judged > 300
        assert maker.cut_short - late <= 0.01 * judged, (late, maker.cut)
        if how == "churn":
            assert through(paths, "main", "churn", "plug_run", "plug_spin") > 0.5 * judged
        else:
            assert through(paths, "main", "jit", "[anon]") > 0.5 * judged


def test_jit_code_has_the_name_that_its_compiler_told() -> None:
    with recorded([MAPPINGS, "jit_map", "1.5"]) as (session, target):
        try:
            paths, maker = rows(session)
        finally:
            Path(f"/tmp/perf-{target.pid}.map").unlink(missing_ok=True)
        assert through(paths, "main", "jit", "made_by_hand") > 0.9 * maker.samples


ENDS = """
_start: xor %ebp, %ebp
        sub $16, %rsp
        movq $0, (%rsp)         /* nobody called it: no table says so */
        jmp work
        .globl work
        .type work, @function
        .cfi_startproc
work:   mov $1500000000, %rcx
1:      dec %rcx
        jnz 1b
        mov $60, %eax
        xor %edi, %edi
        syscall
        .cfi_endproc
        .size work, . - work
"""


def assemble(source: str, folder: Path, *options: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    (folder / "program.s").write_text(f".globl _start\n{source}")
    command = ["gcc", *options, "-nostdlib", "-static", "-o", folder / "program", folder / "program.s"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"gcc {' '.join(options)} does not work here")
    return folder / "program"


def test_a_return_address_of_zero_is_the_end(tmp_path: Path) -> None:
    """As Go's goroutines have it."""
    with recorded([str(assemble(ENDS, tmp_path))]) as (session, _):
        paths, maker = rows(session)
        assert session.kernel.statistics()["stacks_zero"] > 0.9 * maker.samples > 90
        assert maker.cut_short <= 0.01 * maker.samples + 2, maker.cut
        assert paths.get(("work",), 0) > 0.9 * maker.samples, paths


def test_32_bit_programs_are_refused(tmp_path: Path) -> None:
    spin = "_start: jmp _start"
    program = assemble(spin, tmp_path, "-m32")
    with profiling.traced_session(99) as session, subprocess.Popen([program]) as child:
        try:
            with pytest.raises(TargetError, match="32-bit"):
                session.watch(child.pid)
        finally:
            child.kill()
