"""Python functions in the stacks of real interpreters: the chain of names and lines that the script has."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.files.dso_cache import DsoCache
from parprof.kernel import objects
from parprof.kernel.engine import BpfKernel
from parprof.kernel.stacks import PYTHON_ENDS, RawStack, StackTable
from parprof.languages.cpython.instance import CPythonInstance
from parprof.languages.cpython.loader import CPythonLoader
from parprof.languages.cpython.merge import CUT
from parprof.metrics import WAIT, WORK
from parprof.model import Metrics, PathSample, Profile
from parprof.process.loadmap import LoadMap
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.session.session import Session
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside

SCRIPT = profiling.ROOT / "tests/workloads/chains.py"
PYENV = Path.home() / ".pyenv/versions"
INTERPRETERS = {
    "debian": Path("/usr/bin/python3"),
    **{
        version: PYENV / version / "bin/python3"
        for version in ("3.9.18", "3.10.13", "3.11.7", "3.12.1", "3.13.0")
    },
}
SHARE = 0.99


SOME = ("debian", "3.9.18", "3.13.0")
"""For what has little to do with how a version keeps its frames."""


def installed(version: str) -> str:
    path = INTERPRETERS[version]
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    return str(path)


@pytest.fixture(params=INTERPRETERS)
def interpreter(request: pytest.FixtureRequest) -> str:
    return installed(request.param)


@pytest.fixture(params=SOME)
def some_interpreter(request: pytest.FixtureRequest) -> str:
    return installed(request.param)


def minor_version(interpreter: str) -> int:
    code = "import sys; print(sys.version_info[1])"
    return int(subprocess.run([interpreter, "-c", code], capture_output=True, check=True).stdout)


def marked_lines() -> dict[str, set[int]]:
    out: dict[str, set[int]] = {}
    for number, line in enumerate(SCRIPT.read_text().splitlines(), 1):
        if match := re.search(r"#: (\w+)$", line):
            out.setdefault(match[1], set()).add(number)
    return out


Step = tuple[str, str]
"""Function and mark of the line that executes in it."""


def chains(minor: int) -> list[list[Step]]:
    """What the script does, root first; function names are qualified from 3.11 on."""
    root = [("<module>", "module"), ("start", "start")]
    spin = ("spin", "spin")
    q = "" if minor < 11 else "Worker."
    run = [(q + "run", "comprehension")]
    if minor < 12:
        run.append(("<listcomp>" if minor < 11 else "Worker.run.<locals>.<listcomp>", "comprehension"))
    reducer = "<lambda>" if minor < 11 else "Worker.value.<locals>.<lambda>"
    bodies = [
        [("main", "main_recurse"), *[("recurse", "recurse")] * 5, ("recurse", "bottom"), spin],
        [("main", "main_generate"), ("delegate", "delegate"), ("generate", "generate"), spin],
        [("main", "main_init"), (q + "__init__", "init"), spin],
        [("main", "main_run"), *run, spin],
        [("main", "main_value"), (q + "value", "reduce"), (reducer, "reduce"), spin],
        [("main", "main_sort"), ("key", "key"), spin],
        [("main", "main_raise" if minor < 10 else "main_exit"), (q + "__exit__", "exit"), spin],
        [("main", "main_crc"), ("without_gil", "crc")],
    ]
    return [root + body for body in bodies]


def profile(session: Session, pid: int) -> Profile:
    session.finish()
    main = next(target for target in session.targets.values() if target.pid == pid)
    with Symbolizer() as symbolizer, FileNamer(symbolizer) as namer:
        return make_profile(session.measurement(main), namer)


def attach(interpreter: str, mode: str, seconds: float) -> Profile:
    process = subprocess.Popen([interpreter, "-S", str(SCRIPT), mode], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline().startswith(b"ready")
        with profiling.traced_session() as session:
            session.watch(process.pid)
            profiling.run_while_it_works(session, process.pid, seconds)
            return profile(session, process.pid)
    finally:
        process.kill()
        process.communicate()


def python_path(sample: PathSample) -> tuple[tuple[str, int], ...]:
    return tuple((frame.name, frame.line) for frame in sample.path if frame.module == "python")


def matches(path: tuple[tuple[str, int], ...], chain: list[Step], lines: dict[str, set[int]]) -> bool:
    return len(path) == len(chain) and all(
        name == wanted and line in lines[mark]
        for (name, line), (wanted, mark) in zip(path, chain, strict=True)
    )


def judge(samples: list[PathSample], expected: list[list[Step]]) -> tuple[Counter[int], Counter[str]]:
    """Samples by index of the chain that they show, and those that show none."""
    lines = marked_lines()
    right: Counter[int] = Counter()
    wrong: Counter[str] = Counter()
    for sample in samples:
        path = python_path(sample)
        index = next((i for i, chain in enumerate(expected) if matches(path, chain, lines)), -1)
        if index >= 0:
            right[index] += sample.metrics.samples
        else:
            wrong[" ".join(f"{f.name}:{f.line}" for f in sample.path)] += sample.metrics.samples
    return right, wrong


def check_share(right: Counter[int], wrong: Counter[str], minimum: int) -> None:
    total = right.total() + wrong.total()
    print(f"{right.total()} of {total} stacks are complete: {right.total() / max(1, total):.2%}")
    assert total >= minimum
    assert right.total() / total >= SHARE, wrong.most_common(8)


def test_every_chain_of_a_running_script(interpreter: str) -> None:
    result = attach(interpreter, "main", 1.5)
    expected = chains(minor_version(interpreter))
    right, wrong = judge(result.samples, expected)
    check_share(right, wrong, 500)
    assert right.keys() == set(range(len(expected))), "a chain was never seen"
    assert not result.lost
    assert int(result.extra["python_unnamed"]) == 0
    assert int(result.extra["python_mismatched"]) <= 0.01 * sum(s.metrics.samples for s in result.samples)
    frames = {frame.name: frame for sample in result.samples for frame in sample.path}
    assert frames["spin"].file == str(SCRIPT)
    assert SCRIPT.read_text().splitlines()[frames["spin"].start_line - 1] == "def spin(seconds):"
    crc = [s.path for s in result.samples if any(frame.module.startswith("libz.") for frame in s.path)]
    assert crc
    for path in crc:
        assert [frame for frame in path if frame.module == "python"][-1].name == "without_gil"


def test_two_threads_and_one_that_sleeps(some_interpreter: str) -> None:
    result = attach(some_interpreter, "threads", 2)
    q = "" if minor_version(some_interpreter) < 11 else "Thread."
    expected = chains(minor_version(some_interpreter))
    lines = marked_lines()
    right, wrong = judge(result.samples, expected)
    count = 0
    for sample in result.samples:  # the lines in threading.py are the standard library's business
        names = [name for name, _ in python_path(sample)]
        if names == [q + "_bootstrap", q + "_bootstrap_inner", q + "run", "background", "spin"]:
            inside = python_path(sample)[3:]
            if inside[0][1] in lines["background"] and inside[1][1] in lines["spin"]:
                count += sample.metrics.samples
                wrong[" ".join(f"{f.name}:{f.line}" for f in sample.path)] -= sample.metrics.samples
    assert count > 150
    check_share(right + Counter({-1: count}), +wrong, 600)


def test_more_frames_than_are_read(interpreter: str) -> None:
    result = attach(interpreter, "deep", 1)
    right = total = 0
    for sample in result.samples:
        names = [frame.name for frame in sample.path if frame.module == "python"]
        total += sample.metrics.samples
        right += sample.metrics.samples * (names[-2:] == ["deep", "spin"] and names.count("deep") > 100)
        if sample.metrics.samples and "start" not in names:
            assert CUT.name in names or "[truncated]" in [frame.name for frame in sample.path]
    assert total > 300 and right / total >= SHARE


def test_forked_children(some_interpreter: str) -> None:
    with profiling.traced_session() as session:
        child = Child([some_interpreter, "-S", str(SCRIPT), "fork"])
        session.watch(child.pid, follow=True, stop=True)
        child.release()

        def forked() -> set[int]:
            return {target.pid for target in session.targets.values()} - {child.pid}

        try:
            profiling.run_until(session, lambda: any(profiling.cpu_seconds(pid) >= 2.2 for pid in forked()))
            pids = forked()
            result = profile(session, child.pid)
        finally:  # whatever has failed: nothing that burns is left behind
            for pid in forked():
                subprocess.run(["kill", "-9", str(pid)], check=True)
            child.send(signal.SIGKILL)  # it waits for its own child, which may not have been seen in time
            while child.poll() is None:
                time.sleep(0.01)
    expected = chains(minor_version(some_interpreter))
    assert len(pids) == 1
    right, wrong = judge([s for s in result.samples if s.origin.pid in pids], expected)
    assert right.total() > 600
    early = 0.35 * 999  # before we looked at its load map
    assert wrong.total() - early <= 0.01 * right.total(), wrong.most_common(8)


def test_a_process_that_ends_at_once(some_interpreter: str) -> None:
    for code in ("pass", "import os; os._exit(3)"):
        with profiling.traced_session() as session:
            child = Child([some_interpreter, "-c", code])
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda child=child: child.poll() is not None)  # type: ignore[misc]
            result = profile(session, child.pid)
            assert sum(s.metrics.samples for s in result.samples) == int(result.extra["samples"])
            assert any(frame.module == "python" for s in result.samples for frame in s.path)


def parts_of(samples: list[PathSample], value: Callable[[Metrics], float]) -> tuple[float, dict[str, float]]:
    """Of what the parts of run_once.py did: how much is at its function and line, and what is elsewhere, by path."""
    right, wrong = 0.0, dict[str, float]()
    for sample in samples:
        *_, outer, inner = [None, None, *(frame for frame in sample.path if frame.module == "python")]
        if outer is None or inner is None or not outer.file.startswith("part_"):
            continue
        number = outer.file.removeprefix("part_").removesuffix(".py")
        is_right = outer.line == 2 and inner.name == f"Part{number}" and inner.line in (4, 5)
        if is_right and outer.file == inner.file:
            right += value(sample.metrics)
        else:
            wrong[" ".join(f"{f.name}:{f.line}" for f in sample.path)] = value(sample.metrics)
    return right, wrong


def run_once(interpreter: str, what: str) -> tuple[Profile, float]:
    """Of a script whose functions are gone, as it is itself, before anybody looks; and how many seconds it waited."""
    script = profiling.ROOT / "tests/workloads/run_once.py"
    command = [interpreter, "-S", str(script), what]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        BpfKernel(["cpu-clock"], 999, waits=True, budget=profiling.UNLIMITED) as kernel,
        closing(Session(kernel)) as session,
    ):
        assert process.stdout and process.stdout.readline().startswith(b"ready")
        session.watch(process.pid)
        told, _ = process.communicate(b"\n")  # nothing is drained until it is gone
        return profile(session, process.pid), float(told)


def test_code_that_ran_once_and_was_freed(interpreter: str) -> None:
    result, _ = run_once(interpreter, "work")
    right, wrong = parts_of(result.samples, lambda metrics: metrics.samples)
    assert right > 700
    assert right / (right + sum(wrong.values())) >= SHARE, wrong
    assert int(result.extra["python_unnamed"]) <= 2


def test_code_that_slept_once_and_was_freed(some_interpreter: str) -> None:
    result, waited_s = run_once(some_interpreter, "wait")
    right, wrong = parts_of(result.samples, lambda metrics: metrics[WAIT] / 1e9)
    assert waited_s > 0.1 and right >= 0.99 * waited_s  # a sleep is no shorter than asked for
    assert right / (right + sum(wrong.values())) >= SHARE, wrong


NAPS = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)"


def test_a_process_that_nobody_waits_for_has_its_functions_from_the_first_wait_on(
    some_interpreter: str,
) -> None:
    """As the daemon meets its first interpreter: what walks those frames is yet to be loaded."""
    with (
        subprocess.Popen([some_interpreter, "-S", "-c", NAPS], stdout=subprocess.PIPE) as process,
        BpfKernel(["cpu-clock"], 99, waits=True, budget=profiling.UNLIMITED) as kernel,
        closing(Session(kernel)) as session,
    ):
        try:
            assert process.stdout and process.stdout.readline().startswith(b"ready")
            profiling.watch_in_time(session, process.pid)
            begun = time.monotonic()
            while time.monotonic() < begun + 1:
                session.step(0.05)
            session.drain()
            stacks = {key.user: kernel.stacks.get(key.user) for key in session.facts if key.user}
        finally:
            process.kill()
    assert len(stacks) >= 1 and all(stack.python for stack in stacks.values()), stacks


WAYS = """
import random
print('ready', flush=True)
def step(depth):
    sum(range(2000))
    return depth and (step(depth - 1) if random.random() < 0.5 else
        step(depth - 1))
while True: step(14)
"""


@pytest.mark.parametrize("version", SOME)
def test_a_thread_that_starts_at_once_is_below_who_started_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the kernel takes for the programs that walk where threads wait and are created."""
    load = objects.LoadedObject._load_interpreters_of_waits

    def load_late(loaded: objects.LoadedObject) -> None:
        time.sleep(1)
        load(loaded)

    monkeypatch.setattr(objects.LoadedObject, "_load_interpreters_of_waits", load_late)
    code = """
import threading, time
def burn():
    end = time.thread_time() + 0.3
    while time.thread_time() < end: pass
def starts():
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
starts()
"""
    with BpfKernel(["cpu-clock"], 499, waits=True) as kernel, closing(Session(kernel)) as session:
        child = Child([installed(version), "-S", "-c", code])
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        samples = profile(session, child.pid).samples
    burnt = [one for one in samples if any(frame.name == "burn" for frame in one.path)]
    assert sum(one.metrics[WORK] for one in burnt) > 0.2e9
    assert all(any(frame.name == "starts" for frame in one.path) for one in burnt)


def test_stacks_that_do_not_come_again_are_forgotten(some_interpreter: str) -> None:
    """As the daemon does it each minute: a service takes other ways through its functions as long as it runs."""
    with (
        subprocess.Popen([some_interpreter, "-S", "-c", WAYS], stdout=subprocess.PIPE) as process,
        BpfKernel(["cpu-clock"], 499, budget=profiling.UNLIMITED) as kernel,
        closing(Session(kernel)) as session,
    ):
        try:
            assert process.stdout and process.stdout.readline().startswith(b"ready")
            target = profiling.watch_in_time(session, process.pid)

            def python_stacks() -> set[int]:
                profiling.run_while_it_works(session, process.pid, 0.3)
                session.drain()
                return {key.user for key in session.take().facts if kernel.stacks.get(key.user).python}

            assert target.language
            first = python_stacks()
            assert len(first) > 10 and all(target.language.stacks.stack(one) for one in first)
            for _ in range(2):  # those that one call forgets are gone after the next
                kernel.trim_stacks(-1, 0)
                session.trim()
            assert not any(target.language.stacks.stack(one) for one in first)
            later = python_stacks()
            assert len(later) > 10 and all(target.language.stacks.stack(one) for one in later)
            assert target.language.stacks.unresolved == 0
        finally:
            process.kill()


def test_other_processes_pay_nothing(tmp_path: Path) -> None:
    run = profiling.record("pthread_truth", ["balanced", "--repeat", "3"], tmp_path / "log")
    assert run.target.language is None
    assert run.statistics["samples"] > 20
    assert not any(count for name, count in run.statistics.items() if name.startswith("python_"))


def test_the_tests_own_interpreter_is_recognised() -> None:
    program = [sys.executable, "-c", "input(print('ready', flush=True))"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"  # all of its files are mapped
        with profiling.traced_session() as session:
            target = session.watch(process.pid)
            if sys.version_info < (3, 14):
                assert target.language and target.language.stacks.python.layout.minor == sys.version_info[1]
            session.finish()
        process.communicate(b"\n")


def test_who_sleeps_is_walked_from_outside(interpreter: str) -> None:
    """Nothing happens in a program that hangs: its frames are read from its memory, and its functions likewise."""
    with subprocess.Popen(
        [interpreter, profiling.ROOT / "tests/workloads/hangs.py", "deadlock"],
        stdout=subprocess.PIPE,
        text=True,
    ) as hangs:
        try:
            assert hangs.stdout is not None and hangs.stdout.readline() == "ready\n"
            until = time.monotonic() + 30
            while len(os.listdir(f"/proc/{hangs.pid}/task")) > 3 and time.monotonic() < until:
                time.sleep(0.01)  # who said so ends
            load_map = LoadMap.read(hangs.pid, None, DsoCache())
            loader = CPythonLoader()
            known = (
                (dso, loader.load(dso))
                for dso in load_map.dsos()
                if loader.may_be(dso, dso.name == "python3")
            )
            language = next(data.attach(load_map, dso) for dso, data in known if data is not None)
            assert isinstance(language, CPythonInstance)
            found = {}
            for tid in sorted(int(name) for name in os.listdir(f"/proc/{hangs.pid}/task")):
                words, end = language.asleep(tid)
                stacks = StackTable()
                stacks.put(tid, RawStack(b"", 0, words, end, 0))
                language.resolve([(tid, stacks.get(tid).python)])
                frames = [frame for frame, _ in language.stacks.stack(tid) or () if frame is not None]
                found[tid] = [(frame.name.rpartition(".")[2], frame.line) for frame in frames]
                assert PYTHON_ENDS[end] == "complete"
                assert language.awaits_end(tid) == (tid == hangs.pid)
            first, *others = (found[tid] for tid in sorted(found))
            assert [name for name, _ in first if name in ("join", "deadlock", "<module>")] == [
                "join", "deadlock", "<module>"
            ]  # fmt: skip
            assert len(others) == 2
            for stack in others:
                assert stack[0] == ("take_both", 14)
                assert "run" in [name for name, _ in stack]
            assert language.asleep(1 << 22) == (b"", PYTHON_ENDS.index("no_state"))
        finally:
            hangs.kill()
