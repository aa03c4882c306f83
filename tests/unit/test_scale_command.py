"""`parprof scale` on real programs: no root, no timing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from parprof.__main__ import main
from parprof.commands import scale as command
from parprof.instruments import preload
from parprof.instruments.preload import obstacle, runtime_inside
from scale_programs import WORKLOADS, program

pytestmark = pytest.mark.usefixtures("span_test_clock")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


def test_json_names_lines_and_functions(directory: Path, tmp_path: Path) -> None:
    output, page, profile = tmp_path / "out.json", tmp_path / "out.html", tmp_path / "out.pb.gz"
    words = ["--threads", "64,2", "--json", "-o", str(output), "--html", str(page), "--pprof", str(profile)]
    code = main(["scale", "-q", *words, "--", str(program("span_forms", directory)), "triangle", "1024"])
    assert code == 0
    found = json.loads(output.read_text())
    assert [one["n"] for one in found["threads"]] == [2, 64]
    assert found["threads"][1]["speedup"] == pytest.approx(14.84, rel=0.01)
    serial = next(
        one for one in found["sites"] if one["label"].startswith("serial code before span_forms.c:")
    )
    assert serial["work_s"] if "work_s" in serial else serial["on_work"]["local"]["work_s"] > 0
    assert any("triangle" in one["caller"] for one in found["sites"])
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert profile.stat().st_size > 100


def test_the_exit_code_is_the_commands(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["scale", "--threads", "4", "--", str(program("span_forms", directory)), "exits", "1000"]
    assert main(words) == 3
    captured = capfd.readouterr()
    assert "note: partial: with 4 threads the program ended inside a region" in captured.out
    assert "4 threads: " in captured.err


def test_the_program_is_told_of_as_many_processors(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["scale", "-q", "--threads", "48", "--", str(program("span_forms", directory)), "procs", "1"])
        == 0
    )
    assert capfd.readouterr().out.startswith("48 1\n")
    nproc = shutil.which("nproc")
    assert nproc is not None
    main(["scale", "-q", "--threads", "48", "--", "env", "-u", "OMP_NUM_THREADS", nproc])
    assert capfd.readouterr().out.startswith("48\n")


def test_a_program_without_a_runtime_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "-q", "--threads", "2", "--", "true"]) == 0
    assert "scale: " in capfd.readouterr().out.splitlines()[0]


def test_a_static_program_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-static", str(source), "-o", str(tmp_path / "static")], check=True)
    assert main(["scale", "--", str(tmp_path / "static")]) == 1
    assert "linked statically" in capsys.readouterr().err
    assert obstacle("/bin/sh") == "" and obstacle("/nonexistent") == ""


def test_a_runtime_that_is_linked_into_the_program_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = subprocess.run(
        ["gcc", "-print-file-name=libgomp.a"], check=True, capture_output=True, text=True
    ).stdout.strip()
    source, program_path = tmp_path / "own.c", tmp_path / "own"
    source.write_text("int main(void) {\n#pragma omp parallel\n{ }\nreturn 0; }\n")
    subprocess.run(["gcc", "-fopenmp", "-c", str(source), "-o", str(tmp_path / "own.o")], check=True)
    subprocess.run(["gcc", str(tmp_path / "own.o"), archive, "-ldl", "-o", str(program_path)], check=True)
    assert main(["scale", "--", str(program_path)]) == 1
    assert "has its parallel runtime (libgomp) linked into it" in capsys.readouterr().err
    assert runtime_inside("/bin/sh") == "" and runtime_inside("/nonexistent") == ""
    assert runtime_inside(str(source)) == ""


def test_a_setuid_program_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "su"
    shutil.copy("/bin/true", copy)
    copy.chmod(0o4755)
    monkeypatch.setattr(preload.os, "getuid", lambda: os.stat(copy).st_uid + 1)
    assert "is setuid or setgid" in obstacle(str(copy))


def test_a_program_of_musl_is_refused_with_a_remedy(tmp_path: Path) -> None:
    data = Path("/bin/true").read_bytes()
    interpreter = b"/lib64/ld-linux-x86-64.so.2"
    assert interpreter in data
    program = tmp_path / "musl"
    program.write_bytes(data.replace(interpreter, b"/lib/ld-musl-x86_64.so.1".ljust(len(interpreter), b"\0")))
    assert obstacle(str(program)).endswith(
        "is a program of musl, whose loader takes no library of glibc: build it for glibc"
    )


def test_a_program_of_32_bits_is_refused_with_a_remedy(tmp_path: Path) -> None:
    data = bytearray(Path("/bin/true").read_bytes())
    data[4] = 1  # ELFCLASS32
    (tmp_path / "small").write_bytes(data)
    assert obstacle(str(tmp_path / "small")).endswith("is a 32-bit program: build it for 64 bits")


@pytest.mark.parametrize(
    "header", [b"", b"\x7fELF", b"\x7fELF\2\1" + b"\xff" * 58, b"\x7fELF\1\1" + b"\0" * 58]
)
def test_damaged_programs_are_no_error_here(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "program"
    path.write_bytes(header)
    path.chmod(0o755)
    assert isinstance(obstacle(str(path)), str)


@pytest.mark.parametrize(
    "words", [[], ["--threads", "0", "true"], ["--threads", "2,x", "true"], ["--limit", "0", "true"]]
)
def test_wrong_arguments_are_usage_errors(words: list[str]) -> None:
    try:
        code: object = main(["scale", *words])
    except SystemExit as end:
        code = end.code
    assert code == 2


def test_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--", "/nonexistent/program"]) == 127
    assert "/nonexistent/program was not found" in capsys.readouterr().err


def test_no_records_are_left_behind(
    directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    class Noted(tempfile.TemporaryDirectory):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(Path(self.name))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Noted)
    main(["scale", "-q", "--threads", "2", "--", str(program("span_forms", directory)), "sections", "10"])
    assert made and not any(one.exists() for one in made)
    assert command.best_record("/nonexistent") is None


def test_a_serial_run_is_about_any_number_of_cores(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARPROF_SPAN_CLOCK", "test")
    page = tmp_path / "page.html"
    words = ["scale", "-q", "--serial", "--html", str(page), "--", str(program("span_forms", directory))]
    assert main([*words, "wavefront", "20"]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("scale: parallelism 10.26: no number of cores gives more than x10.3; task at ")
    assert "span 3.90 ms executed serially" in printed and "at best  work/span" not in printed
    assert " 100.0   3.90 ms   40.0 ms       400    no limit  task at span_forms.c:" in printed
    assert "note: serial: with one thread" in printed
    assert "Speed-up by cores" not in page.read_text()
    assert main([*words[:3], "--json", *words[5:], "wavefront", "20"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["serial"] is True and found["parallelism"] == pytest.approx(400 / 39)
    assert found["advice"]["speedup_if_fixed"] is None


def test_what_cpps_library_calls_is_told_at_the_programs_lines(directory: Path, tmp_path: Path) -> None:
    """Calls of libstdc++ in libstdc++.so, and of what is inlined from its headers."""
    source = (WORKLOADS / "span_names.cpp").read_text().splitlines()
    lock, threads, end = (
        next(f"span_names.cpp:{at}" for at, line in enumerate(source, 1) if line.endswith(f"// the {mark}"))
        for mark in ("lock", "threads", "end")
    )
    output = tmp_path / "out.json"
    words = ["--threads", "4", "--json", "-o", str(output), "--", str(program("span_names", directory))]
    assert main(["scale", "-q", *words]) == 0
    found = json.loads(output.read_text())
    assert {one["label"] for one in found["sites"]} >= {
        f"serial code before {threads}",
        f"thread at {threads}",
        f"critical section at {lock}",
        f"serial code between {threads} and {end}",
    }


POOL = """
#include <pthread.h>

extern void parprof_span_work(unsigned long units) __attribute__((weak));

static void *worker(void *left)
{
	pthread_t next;

	if (left)
		pthread_create(&next, 0, worker, (char *)left - 1);
	if (parprof_span_work)
		parprof_span_work(1000);
	if (left)
		pthread_join(next, 0);
	return 0;
}

void *pool(void *count)
{
	return worker(count);
}
"""
USES_POOL = """
#include <string>
extern "C" void *pool(void *count);
int main(int count, char **)
{
	pool((void *)3l);
	return std::string(count, 'x').size() > 5;
}
"""


def test_threads_that_a_librarys_threads_make_are_told_at_the_library(tmp_path: Path) -> None:
    """As oneTBB's do: that was "thread at span_threads.c:414 in thread_body", which is our own code around theirs."""
    (tmp_path / "pool.c").write_text(POOL)
    (tmp_path / "uses.cpp").write_text(USES_POOL)
    library, uses = tmp_path / "libtbb.so.12", tmp_path / "uses"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(library), str(tmp_path / "pool.c")]
    subprocess.run(command, check=True)
    rpath = f"-Wl,-rpath,{tmp_path}"
    subprocess.run(
        ["g++", "-g", "-o", str(uses), str(tmp_path / "uses.cpp"), str(library), rpath], check=True
    )
    output = tmp_path / "out.json"
    assert main(["scale", "-q", "--threads", "4", "--json", "-o", str(output), "--", str(uses)]) == 0
    found = json.loads(output.read_text())
    labels = [one["label"] for one in found["sites"]]
    assert not [label for label in labels if "span_threads" in label], labels
    assert any(note.startswith("oneTBB: its tasks are not followed") for note in found["notes"])
    assert "thread at worker" in labels, labels


def test_most_time_in_other_processes_is_no_answer(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of `make -j2`, or Python's multiprocessing: one of three that do as much says nothing of the whole."""
    one = f"{program('span_forms', directory)} triangle 20000000"
    assert main(["scale", "-q", "--threads", "2", "--", "sh", "-c", f"{one} & {one} & {one}; wait"]) == 0
    assert "nothing can be said of how it scales: most of its CPU time was in other" in capfd.readouterr().out
    assert main(["scale", "-q", "--threads", "2", "--", "sh", "-c", f"{one}; true"]) == 0
    assert "at best x" in capfd.readouterr().out


KILLED = """
#include <signal.h>
#include <unistd.h>

extern void parprof_span_work(unsigned long units) __attribute__((weak));

int main(void)
{
	if (parprof_span_work)
		parprof_span_work(1000);
	#pragma omp parallel
	kill(getpid(), SIGKILL);
}
"""


@pytest.mark.parametrize("form", ["{}", "{}; true"])
def test_a_program_that_is_killed_is_told_as_that(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    """Also below a shell, which has more to do itself."""
    output = tmp_path / "killed"
    command = ["gcc", "-fopenmp", "-x", "c", "-", "-o", str(output)]
    subprocess.run(command, input=KILLED.encode(), check=True, timeout=120)
    main(["scale", "-q", "--threads", "2", "--", "sh", "-c", form.format(output)])
    said = capfd.readouterr().out
    assert "scale: nothing can be said of how it scales: it was killed" in said and "note: partial: " in said


def test_a_shell_that_becomes_the_program_is_no_program_that_was_killed(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor is a program that becomes a shell."""
    one = f"{program('span_forms', directory)} triangle 1024"
    main(["scale", "-q", "--threads", "2", "--", "sh", "-c", f"exec {one}"])
    said = capfd.readouterr().out
    assert "at best x1.66" in said and "partial" not in said


def test_a_runtime_that_is_not_there_is_told(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loader says which; the exit code is its own."""
    broken = tmp_path / "broken"
    broken.write_bytes(
        program("span_forms", directory).read_bytes().replace(b"libgomp.so.1", b"libgomp.so.9")
    )
    broken.chmod(0o755)
    assert main(["scale", "-q", "--threads", "2", "--", str(broken)]) == 1
    said = capfd.readouterr().err
    assert "libgomp.so.9: cannot open shared object file" in said
    assert f"parprof: {broken} did not start (exit code 127): a library that it needs is not there" in said
