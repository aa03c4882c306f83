# SPDX-License-Identifier: Apache-2.0
"""parprof.symbols against llvm-symbolizer, on stripped and damaged files, and with a worker that dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.files.maps_line import MapsLine
from parprof.model import Frame
from parprof.symbols import debugfiles, symcache
from parprof.symbols.entry import main_function
from parprof.symbols.names import readable
from parprof.symbols.symbolizer import Symbolizer
from parprof.symbols.worker import DebugFile
from parprof.workers import protocol
from stopwatch import Stopwatch
from symbol_programs import address_of, compile_program, line_of, need_symbolic, open_dso

pytestmark = pytest.mark.usefixtures("new_cache_directory")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("symbols") / "program")


@pytest.fixture(scope="module")
def fixed_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("symbols") / "fixed", "-no-pie")


@pytest.fixture(scope="module")
def cache() -> Iterator[DsoCache]:
    with DsoCache() as out:
        yield out


def sample_addresses(dso: Dso, number: int = 300) -> list[int]:
    assert dso.elf is not None
    every = sorted({at for s in dso.elf.symbols() for at in range(s.value, s.value + s.size)})
    return every[:: max(1, len(every) // number)]


def llvm_symbolizer(path: Path, addresses: list[int]) -> list[list[tuple[str, str, int]]]:
    tool = next((t for t in ("llvm-symbolizer", "llvm-symbolizer-14") if shutil.which(t)), None)
    if tool is None:
        pytest.skip("llvm-symbolizer is not installed (Debian package llvm)")
    command = [
        tool,
        f"--obj={path}",
        "--no-demangle",
        "--functions=linkage",
        "--inlines",
        "--output-style=LLVM",
    ]
    text = subprocess.run(
        command, input="\n".join(map(hex, addresses)), capture_output=True, text=True, check=True
    )
    out = []
    for block in text.stdout.strip().split("\n\n"):
        lines = block.split("\n")
        frames = []
        for name, where in zip(lines[::2], lines[1::2], strict=True):
            file, line, _ = where.rsplit(":", 2)
            # constructors and destructors exist in variants: any will do
            name = readable(re.sub(r"([CD])[0-9]E", r"\g<1>1E", name))
            frames.append((name, "" if file == "??" else os.path.basename(file), int(line)))
        out.append(frames)
    return out


@pytest.mark.parametrize("kind", ["program", "fixed_program"])
def test_against_llvm_symbolizer(
    kind: str, cache: DsoCache, symbolizer: Symbolizer, request: pytest.FixtureRequest
) -> None:
    need_symbolic()
    path: Path = request.getfixturevalue(kind)
    dso = open_dso(cache, path)
    addresses = sample_addresses(dso)
    assert len(addresses) > 250
    theirs = llvm_symbolizer(path, addresses)
    ours = symbolizer.resolve((dso, address, False) for address in addresses)
    wrong_lines = wrong_names = inlined = 0
    for address, expected in zip(addresses, theirs, strict=True):
        frames = ours[dso, address, False]
        assert [frame.inlined for frame in frames] == [True] * (len(frames) - 1) + [False]
        inlined += len(frames) > 1
        found = [(frame.name, os.path.basename(frame.file), frame.line) for frame in frames]
        wrong_lines += [row[1:] for row in found] != [row[1:] for row in expected]
        wrong_names += [row[0] for row in found] != [row[0] for row in expected]
    assert inlined > 20
    assert wrong_lines == 0
    assert wrong_names <= len(addresses) // 100


def test_frames(program: Path, cache: DsoCache, symbolizer: Symbolizer) -> None:
    need_symbolic()
    dso = open_dso(cache, program)
    main = address_of(dso, "main")
    (frame,) = symbolizer.frames(dso, main, False)
    assert frame == Frame(
        "main",
        str(program.with_suffix(".cpp")),
        line_of("int main"),
        line_of("int main"),
        "program",
        dso.build_id,
        main,
    )
    frames = symbolizer.frames(dso, address_of(dso, "_ZNK2ns1SclEi"), False)
    assert [frame.name for frame in frames] == ["ns::middle(int)", "ns::S::operator()(int) const"]
    assert frames[0].address == frames[1].address
    assert frames[1].start_line == line_of("S::operator()")
    best = symbolizer.frames(dso, address_of(dso, "_ZN2ns4bestIdEEdRSt6vectorIT_SaIS2_EE"), False)
    assert best[-1].name == "ns::best<double>(std::vector<double, std::allocator<double> >&)"


def test_outlined_and_cold(program: Path, cache: DsoCache, symbolizer: Symbolizer) -> None:
    need_symbolic()
    dso = open_dso(cache, program)
    assert dso.elf is not None
    symbols = {symbol.name: symbol for symbol in dso.elf.symbols()}
    (outlined,) = symbolizer.frames(dso, symbols["main._omp_fn.0"].value, False)[-1:]
    assert outlined.name == "main._omp_fn.0"
    assert outlined.start_line == line_of("#pragma omp")
    for cold, hot in (("main.cold", "main"), ("spill.cold", "spill")):
        if cold in symbols:
            frame = symbolizer.frames(dso, symbols[cold].value, False)[-1]
            assert frame.name == hot
            assert frame.start_line == symbolizer.frames(dso, symbols[hot].value, False)[-1].start_line


def test_return_addresses_are_looked_up_in_the_call(
    program: Path, cache: DsoCache, symbolizer: Symbolizer
) -> None:
    dso = open_dso(cache, program)
    assert dso.elf is not None
    functions = sorted(symbol.value for symbol in dso.elf.symbols() if symbol.name == "main._omp_fn.0")
    found = symbolizer.resolve([(dso, functions[0], True), (dso, functions[0], False)])
    assert found[dso, functions[0], True][-1].name != "main._omp_fn.0"
    assert found[dso, functions[0], False][-1].name == "main._omp_fn.0"
    assert found[dso, functions[0], True][-1].address == functions[0]


def test_stripped(program: Path, cache: DsoCache, symbolizer: Symbolizer, tmp_path: Path) -> None:
    dso = open_dso(cache, program)
    subprocess.run(["strip", "-o", tmp_path / "bare", program], check=True)
    bare = open_dso(cache, tmp_path / "bare")
    start = address_of(dso, "spill")
    (frame,) = symbolizer.frames(bare, start, False)
    assert frame == Frame(f"bare+{start:#x}", module="bare", build_id=dso.build_id, address=start)
    assert dso.elf is not None
    end = next(symbol.value + symbol.size for symbol in dso.elf.symbols() if symbol.name == "spill")
    names = {symbolizer.frames(bare, address, False)[-1].name for address in range(start, end)}
    assert names == {frame.name}  # one function, wherever in it a sample was
    subprocess.run(
        ["objcopy", "-R", ".eh_frame", "-R", ".eh_frame_hdr", tmp_path / "bare", tmp_path / "frameless"],
        check=True,
    )
    frameless = open_dso(cache, tmp_path / "frameless")
    assert symbolizer.frames(frameless, start + 1, False)[-1].name == f"frameless+{start + 1:#x}"


@pytest.mark.parametrize("how", [(), ("-no-pie",), ("-static-pie",), ("-static",), ("-fcf-protection=none",)])
def test_main_of_a_stripped_program(
    how: tuple[str, ...], cache: DsoCache, symbolizer: Symbolizer, tmp_path: Path
) -> None:
    """What starts it hands over where it is."""
    whole, bare = tmp_path / "whole", tmp_path / "bare"
    code = "int f(int x) { return x ? f(x / 2) + 1 : 0; } int main(int c, char **v) { return f(c) == 9; }"
    compiler = ["gcc", "-O1", "-fno-inline", *how, "-x", "c", "-", "-o", whole]
    subprocess.run(compiler, input=code, text=True, check=True)
    subprocess.run(["strip", "-s", "-o", bare, whole], check=True)
    dso, stripped = open_dso(cache, whole), open_dso(cache, bare)
    main, other = address_of(dso, "main"), address_of(dso, "f")
    assert symbolizer.frames(stripped, main + 1, False)[-1].name == "main"
    for address in (other, other + 3):
        assert symbolizer.frames(stripped, address, False)[-1].name == f"bare+{other:#x}"


def test_no_main_where_the_entry_is_no_known_code(tmp_path: Path) -> None:
    library = tmp_path / "libempty.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", library], check=True)
    with ElfFile.open(str(library)) as elf:
        assert main_function(elf) is None


WRAPPERS = """
extern int wait_in_common(int *, int);
__attribute__((visibility("hidden"), noinline)) int wait_in_common(int *p, int how)
{
    int buffer[64];
    for (int i = 0; i < 64; i++) buffer[i] = p[i & how];
    __asm__ volatile("" :: "r"(buffer) : "memory");
    return buffer[how & 63];
}
int pthread_join(int *p) { return wait_in_common(p, 1); }
int pthread_timedjoin_np(int *p) { return wait_in_common(p, 3); }
int others(int *p) { return wait_in_common(p, 7) + 1; }
extern void ends_it(int *, int), begins_it(int *);
__attribute__((visibility("hidden"), noinline)) void ends_it(int *p, int how)
{
    int buffer[64];
    for (int i = 0; i < 64; i++) buffer[i] = p[i & how] + 1;
    __asm__ volatile("" :: "r"(buffer) : "memory");
}
__attribute__((visibility("hidden"), noinline)) void begins_it(int *p) { p[0]++; ends_it(p, 3); }
void GOMP_barrier(int *p) { p[1]++; begins_it(p); }
"""


def test_what_waiting_functions_end_in_goes_by_their_name(
    cache: DsoCache, symbolizer: Symbolizer, tmp_path: Path
) -> None:
    """As in a stripped C library: only the exported functions have names there."""
    library, whole = tmp_path / "libwrap.so", tmp_path / "whole.so"
    (tmp_path / "wrap.c").write_text(WRAPPERS)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", tmp_path / "wrap.c", "-o", whole], check=True)
    subprocess.run(["strip", "-s", whole, "-o", library], check=True)
    with ElfFile.open(str(whole)) as elf:
        inner, second, third = (
            elf.lookup([name])[name][0].value for name in ("wait_in_common", "begins_it", "ends_it")
        )
    dso = open_dso(cache, library)
    assert symbolizer.frames(dso, second, False)[-1].name == "gomp_team_barrier_wait"
    assert symbolizer.frames(dso, third + 4, False)[-1].name == "gomp_team_barrier_wait_end"
    assert symbolizer.frames(dso, inner + 4, False)[-1].name == "pthread_join"
    (tmp_path / "wrap.c").write_text(WRAPPERS.replace("int pthread_", "int other_"))
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", tmp_path / "wrap.c", "-o", whole], check=True)
    subprocess.run(["strip", "-s", whole, "-o", tmp_path / "libother.so"], check=True)
    dso = open_dso(cache, tmp_path / "libother.so")
    assert symbolizer.frames(dso, inner + 4, False)[-1].name == f"libother.so+{inner:#x}"


@pytest.mark.parametrize("how", ["build-id", "debuglink"])
def test_separate_debug_file(
    how: str, program: Path, cache: DsoCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_symbolic()
    dso = open_dso(cache, program)
    root = tmp_path / "debug"
    bare = tmp_path / "bare"
    if how == "build-id":
        target = root / ".build-id" / dso.build_id[:2] / f"{dso.build_id[2:]}.debug"
    else:
        target = root / str(tmp_path)[1:] / "bare.debug"
    target.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, target], check=True)
    subprocess.run(["strip", "-o", bare, program], check=True)
    if how == "debuglink":
        subprocess.run(["objcopy", f"--add-gnu-debuglink={target}", bare], check=True)
    stripped = open_dso(cache, bare)
    found = debugfiles.find_debug_file(stripped, root)
    assert found is not None
    found.close()
    assert debugfiles.find_debug_file(dso, root) is None  # has its own
    monkeypatch.setattr(
        "parprof.symbols.reader.find_debug_file", lambda dso: debugfiles.find_debug_file(dso, root)
    )
    with Symbolizer() as symbolizer:
        (frame,) = symbolizer.frames(stripped, address_of(dso, "main"), False)
    assert (frame.name, frame.start_line, frame.module) == ("main", line_of("int main"), "bare")
    with open(target, "r+b") as file:  # another build's
        text = file.read()
        file.seek(text.index(bytes.fromhex(dso.build_id)))
        file.write(b"\xaa" * 4)
    assert debugfiles.find_debug_file(stripped, root) is None


def test_symbol_table_alone(program: Path, cache: DsoCache, tmp_path: Path) -> None:
    subprocess.run(["strip", "-g", "-o", tmp_path / "names", program], check=True)
    dso = open_dso(cache, tmp_path / "names")
    with Symbolizer() as symbolizer:
        (frame,) = symbolizer.frames(dso, address_of(dso, "_ZNK2ns1SclEi") + 3, False)
        assert (frame.name, frame.line) == ("ns::S::operator()(int) const", 0)
        assert symbolizer.problems == {}


def test_pseudo_files(cache: DsoCache, symbolizer: Symbolizer) -> None:
    anonymous = cache.get(1, MapsLine(0x1000, 0x2000, True, 0, 0, 0, b""))
    (frame,) = symbolizer.frames(anonymous, 0x1234, True)
    assert (frame.name, frame.address) == ("[anon]", 0x1234)
    for vaddr in (0, -1, 1 << 64):
        assert symbolizer.frames(anonymous, vaddr, True)


def test_strange_addresses(program: Path, cache: DsoCache, symbolizer: Symbolizer) -> None:
    dso = open_dso(cache, program)
    for vaddr in (0, 1, 1 << 32, (1 << 64) - 1, 1 << 70):
        assert symbolizer.frames(dso, vaddr, True)[0].name == f"program+{vaddr:#x}"


def test_damaged_files_fall_back(
    program: Path, cache: DsoCache, symbolizer: Symbolizer, tmp_path: Path
) -> None:
    dso = open_dso(cache, program)
    main = address_of(dso, "main")
    assert dso.elf is not None
    data = bytearray(program.read_bytes())
    for section in dso.elf.sections:
        if not section.address and section.type == 1 and section.size > 200:  # .debug_*
            data[section.offset : section.offset + section.size] = os.urandom(section.size)
    (tmp_path / "noise").write_bytes(data)
    frames = symbolizer.frames(open_dso(cache, tmp_path / "noise"), main, False)
    assert frames[-1].name == "main"
    (tmp_path / "short").write_bytes(data[:3000])
    frames = symbolizer.frames(open_dso(cache, tmp_path / "short"), main, False)
    assert frames[-1].name == f"short+{main:#x}"


def test_worker_killed_between_requests(program: Path, cache: DsoCache) -> None:
    dso = open_dso(cache, program)
    with Symbolizer() as symbolizer:
        symbolizer.frames(dso, address_of(dso, "main"), False)
        os.kill(symbolizer.worker_pid, signal.SIGKILL)
        os.waitid(os.P_PID, symbolizer.worker_pid, os.WEXITED | os.WNOWAIT)
        frames = symbolizer.frames(dso, address_of(dso, "spill"), False)
        assert frames[-1].name == "spill"
        assert symbolizer.problems == {}


FAKE_WORKER = """
import os, socket, sys, time
sys.path.insert(0, {package!r})
from parprof.workers import protocol
connection = socket.socket(fileno=int(sys.argv[1]))
while (received := protocol.receive(connection)) is not None:
    request, fds = received
    how = {how!r} if request["symbolic"] or {always!r} else "answer"
    if how == "hang":
        time.sleep(600)
    if how == "crash":
        os.abort()
    if how == "garbage":
        connection.sendall(b"\\xff" * 64)
        time.sleep(600)
    if how == "lies":
        rows = [[["x" * 9999, 7, -1, "y"], 5, ["\\x1b[31m", "a", 1 << 80, 2.5], ["", "", 0, 0]]]
        protocol.send(connection, {{"frames": rows * 300, "problem": ["?"]}})
    else:
        protocol.send(connection, {{"frames": [[["from the table", "", 0, 0]]] * len(request["addresses"])}})
"""


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("how", ["hang", "crash", "garbage"])
def test_worker_failures(
    how: str, always: bool, program: Path, cache: DsoCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that hangs costs as long as it may take for a file. The next one, from its start to its answer, may take
    no longer, which on a busy machine it does: then both may take longer."""
    fake_worker(how, always, tmp_path, monkeypatch)
    dso = open_dso(cache, program)
    for file_seconds in (0.6, 1.5, 4.0) if how == "hang" else (10.0,):
        watch = Stopwatch()
        with Symbolizer(file_seconds=file_seconds) as symbolizer:
            frames = symbolizer.frames(dso, 0x1234, False)
            assert symbolizer.problems.keys() == {str(program)}
            again = symbolizer.frames(dso, 0x1235, False)  # the file is known to be bad: no second wait
            pid = symbolizer.worker_pid
        assert watch.seconds < (2 * file_seconds + 2.8 if how == "hang" else 4)
        assert not pid or not Path(f"/proc/{pid}").exists()
        expected = ["program+0x1234", "program+0x1235"] if always else ["from the table"] * 2
        found = [frames[-1].name, again[-1].name]
        if found == expected:
            break
    assert found == expected


def fake_worker(how: str, always: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = str(Path(protocol.__file__).resolve().parents[2])
    (tmp_path / "fake.py").write_text(FAKE_WORKER.format(package=package, how=how, always=always))
    real_popen = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return real_popen([sys.executable, str(tmp_path / "fake.py"), command[-1]], **options)

    monkeypatch.setattr("parprof.workers.client.subprocess.Popen", popen)


def test_answers_are_checked(
    program: Path, cache: DsoCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_worker("lies", True, tmp_path, monkeypatch)
    dso = open_dso(cache, program)
    with Symbolizer(file_seconds=5.0) as symbolizer:
        monkeypatch.setattr("parprof.symbols.symbolizer._MAX_REMEMBERED_TEXT", 20_000)
        frames = symbolizer.frames(dso, 0x1234, False)
        symbolizer.resolve((dso, vaddr, False) for vaddr in range(64))
        assert len(symbolizer._remembered) < 6
    assert len(frames) == 2
    assert all(frame.name.isprintable() and len(frame.name) < 5000 for frame in frames)
    assert all(frame.line == 0 and frame.start_line == 0 for frame in frames)


def test_worker_gives_up_privileges_and_ends(program: Path, cache: DsoCache) -> None:
    dso = open_dso(cache, program)
    with Symbolizer() as symbolizer:
        symbolizer.frames(dso, address_of(dso, "main"), False)
        pid = symbolizer.worker_pid
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE) or "NoNewPrivs" not in status
        if os.geteuid() == 0:
            assert "Uid:\t65534\t65534" in status
        symbolizer.trim(idle_seconds=60)
        assert symbolizer.worker_pid == pid
        symbolizer.trim(idle_seconds=0)
        assert symbolizer.worker_pid == 0
    assert not Path(f"/proc/{pid}").exists()


def test_parent_stays_small(program: Path, cache: DsoCache) -> None:
    """The readers run in the child: what they load must not show up here."""
    dso = open_dso(cache, program)
    script = (
        "import os, sys\nfrom parprof.symbols.symbolizer import Symbolizer\n"
        "from parprof.files.dso_cache import DsoCache\n"
        "from parprof.process.loadmap import LoadMap\n"
        "with DsoCache() as cache, Symbolizer() as symbolizer:\n"
        "    loaded = LoadMap.read(os.getpid(), None, cache)\n"
        "    symbolizer.resolve(found + (False,) for m in loaded.mappings\n"
        "        for a in range(m.start, m.end, 1 << 10) if (found := loaded.find(a)))\n"
        "    assert 'symbolic' not in sys.modules\n"
        "    print(open('/proc/self/status').read())\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(protocol.__file__).resolve().parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert int(re.findall(r"VmHWM:\s+(\d+)", done.stdout)[0]) < 60_000  # KiB
    assert dso.elf is not None


def test_protocol_bounds() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<I", 1 << 31))
        with pytest.raises(ValueError, match="bytes"):
            protocol.receive(theirs)
        ours.sendall(struct.pack("<I", 2) + b"[]")
        with pytest.raises(ValueError, match="object"):
            protocol.receive(theirs)
        protocol.send(ours, {"a": "\ud800"}, [ours.fileno()])
        received = protocol.receive(theirs)
        assert received is not None and received[0] == {"a": "\ud800"} and len(received[1]) == 1
        protocol.close_all(received[1])
        ours.sendall(b"\1")
        ours.close()
        assert protocol.receive(theirs) is None
        assert protocol.receive(theirs) is None


def test_what_is_needed_most_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no time for all files, those with few addresses go without names."""
    files = [Dso(("file", 1, number, 0, 0), f"/lib{number}.so", problem="not there") for number in range(4)]
    asked = [(dso, 8 * place, False) for dso, places in zip(files, (1, 2, 9, 3), strict=True)
             for place in range(places)]  # fmt: skip
    read: list[str] = []
    with Symbolizer() as symbolizer:
        monkeypatch.setattr(symbolizer._reader, "prepare", list)
        monkeypatch.setattr(symbolizer._reader, "read", lambda dso, _: read.append(dso.name) or {})
        found = symbolizer.resolve(asked)
    assert read == ["lib2.so", "lib3.so", "lib1.so", "lib0.so"]
    assert found.keys() == set(asked)


@pytest.mark.parametrize("is_stripped", [False, True])
def test_of_a_file_without_debug_information_its_symbols_alone_are_read(
    program: Path, tmp_path: Path, is_stripped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of 200,000 functions takes symbolic 100 MB before it says that there are no lines."""
    need_symbolic()
    asked: list[int] = []
    monkeypatch.setattr(symcache, "build", asked.append)
    copy = tmp_path / "copy"
    shutil.copy(program, copy)
    if is_stripped:
        subprocess.run(["strip", "--strip-debug", copy], check=True)
    with ElfFile.open(str(copy)) as elf:
        (main,) = (symbol for symbol in elf.symbols() if symbol.name == "main")
    known = DebugFile(os.open(copy, os.O_RDONLY), True, None)
    try:
        assert [frame[0] for frame in known.resolve([main.value])[0]] == ["main"]
    finally:
        known.close()
    assert bool(asked) is not is_stripped
