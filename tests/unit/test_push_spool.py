# SPDX-License-Identifier: Apache-2.0
"""The queue on disk: bounded, in turn, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.errors import UsageError
from parprof.service.push.backend import PushRequest
from parprof.service.push.spool import Spool, SpooledRequest

HOUR_S = 3600.0
Open = Callable[..., Spool]


def request(text: str, size: int = 10) -> PushRequest:
    return PushRequest(f"/ingest?{text}", "application/x", text.encode().ljust(size, b"."), "gzip")


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def spool_at(tmp_path: Path, counts: Counter[str]) -> Iterator[Open]:
    made: list[Spool] = []

    def make(max_bytes: int = 1 << 20, max_age_s: float = HOUR_S, directory: Path = tmp_path / "q") -> Spool:
        spool = Spool(directory, max_bytes, max_age_s, lambda outcome: counts.update([outcome]))
        made.append(spool)
        return spool

    yield make
    for spool in made:
        spool.close()


def drain(spool: Spool) -> list[SpooledRequest]:
    out = []
    while (entry := spool.oldest()) is not None:
        out.append(entry)
        spool.done(entry.name)
    return out


def texts(entries: list[SpooledRequest]) -> list[str]:
    return [entry.request.path.partition("?")[2] for entry in entries]


def test_first_in_first_out(spool_at: Open) -> None:
    spool = spool_at()
    assert spool.oldest() is None
    for text in "abc":
        assert spool.put(request(text))
    assert (len(spool), spool.size_bytes) == (3, 3 * 4096)
    entries = drain(spool)
    assert [entry.request for entry in entries] == [request(text) for text in "abc"]
    assert (len(spool), spool.size_bytes) == (0, 0)


def test_outlives_the_process(spool_at: Open, counts: Counter[str]) -> None:
    spool = spool_at()
    spool.put(request("a"))
    spool.put(request("b"))
    assert spool.oldest() is not None  # being sent
    spool.close()
    spool = spool_at()
    spool.put(request("c"))
    assert texts(drain(spool)) == ["a", "b", "c"]
    assert not counts


def test_oldest_go_to_make_room(spool_at: Open, counts: Counter[str]) -> None:
    spool = spool_at(max_bytes=3 * 4096)
    for text in "abcde":
        assert spool.put(request(text))
    assert (texts(drain(spool)), counts) == (["c", "d", "e"], {"dropped_full": 2})


def test_what_is_being_sent_stays(spool_at: Open, counts: Counter[str]) -> None:
    spool = spool_at(max_bytes=2 * 4096)
    spool.put(request("a"))
    entry = spool.oldest()
    assert entry is not None
    spool.put(request("b"))
    spool.put(request("c"))
    assert counts == {"dropped_full": 1}
    assert not spool.put(request("d", 8000))
    assert counts["dropped_full"] == 3  # c, and d itself
    spool.release()
    spool.put(request("e", 8000))
    assert texts(drain(spool)) == ["e"]


def test_too_large(spool_at: Open, counts: Counter[str]) -> None:
    spool = spool_at(max_bytes=8192)
    spool.put(request("a"))
    assert not spool.put(request("b", 8192))
    assert (texts(drain(spool)), counts) == (["a"], {"dropped_large": 1})


def test_smaller_after_a_restart(spool_at: Open, counts: Counter[str]) -> None:
    spool = spool_at()
    for text in "abc":
        spool.put(request(text))
    spool.close()
    assert texts(drain(spool_at(max_bytes=4096))) == ["c"]
    assert counts == {"dropped_full": 2}


def test_too_old(spool_at: Open, counts: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spool = spool_at(max_age_s=100.0)
    for text, age_s in (("old", 101.0), ("new", 99.0), ("future", -1e6)):
        monkeypatch.setattr("time.time", lambda age_s=age_s: 5e6 - age_s)
        spool.put(request(text))
    monkeypatch.setattr("time.time", lambda: 5e6)
    assert (texts(drain(spool)), counts) == (["new", "future"], {"dropped_old": 1})


def test_torn_files_are_skipped_and_counted(spool_at: Open, tmp_path: Path, counts: Counter[str]) -> None:
    spool = spool_at()
    for text in ("cut", "flipped", "empty", "huge", "gone", "fine"):
        spool.put(request(text, 6000))
    spool.close()
    cut, flipped, empty, huge, gone, fine = sorted((tmp_path / "q").glob("0*"))
    os.truncate(cut, 3000)
    data = bytearray(flipped.read_bytes())
    data[5000] ^= 1
    flipped.write_bytes(data)
    empty.write_bytes(b"")
    with huge.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    (tmp_path / "q" / ".new-1-x").write_bytes(b"half a file of a process that was killed")
    (tmp_path / "q" / "README").write_text("none of ours")
    spool = spool_at()
    gone.unlink()
    assert (texts(drain(spool)), counts) == (["fine"], {"dropped_damaged": 5})
    assert not (tmp_path / "q" / ".new-1-x").exists()
    assert (tmp_path / "q" / "README").exists()
    assert not fine.exists()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_cut_or_flip_goes_unnoticed(data: st.DataObject) -> None:
    from parprof.service.push.spool import _pack, _unpack

    whole = _pack(PushRequest("/p", "t", data.draw(st.binary(max_size=60)), ""), 1.5)
    assert _unpack(whole) is not None
    position = data.draw(st.integers(0, len(whole) - 1))
    assert _unpack(whole[:position]) is None
    bit = data.draw(st.integers(0, 7))
    assert _unpack(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :]) is None


def test_links_are_not_followed(spool_at: Open, tmp_path: Path, counts: Counter[str]) -> None:
    spool = spool_at()
    spool.put(request("a"))
    spool.close()
    (file,) = (tmp_path / "q").glob("0*")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert drain(spool_at()) == []
    assert (tmp_path / "elsewhere").exists()


def test_one_process_at_a_time(spool_at: Open) -> None:
    spool_at()
    with pytest.raises(UsageError, match="another process"):
        spool_at()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_directory_of_others(spool_at: Open, tmp_path: Path, mode: int) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q").chmod(mode)
    with pytest.raises(UsageError, match="others can write"):
        spool_at()


def test_no_directory(spool_at: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set push.spool"):
        spool_at(directory=tmp_path / "file" / "q")


def test_threads(spool_at: Open, counts: Counter[str]) -> None:
    """GIVEN writers and a reader at once THEN all arrives once, each writer's in turn."""
    spool = spool_at()
    writers = [
        threading.Thread(target=lambda w=w: [spool.put(request(f"{w}{n:03d}")) for n in range(50)])
        for w in "ab"
    ]
    for writer in writers:
        writer.start()
    found: list[str] = []
    while any(writer.is_alive() for writer in writers) or len(spool):
        found += texts(drain(spool))
    assert [text for text in found if text[0] == "a"] == [f"a{n:03d}" for n in range(50)]
    assert [text for text in found if text[0] == "b"] == [f"b{n:03d}" for n in range(50)]
    assert not counts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid():
        pytest.skip("needs root to mount a tmpfs")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", place], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_full_disk(small_disk: Path, spool_at: Open, counts: Counter[str]) -> None:
    """GIVEN a disk smaller than the queue may be THEN the oldest go, and all is counted."""
    spool = spool_at(directory=small_disk / "q")
    put = sum(spool.put(request(f"{number}", 7000)) for number in range(30))
    assert put == 30
    left = texts(drain(spool))
    assert 0 < len(left) < 10
    assert left == [f"{number}" for number in range(30)][-len(left) :]
    assert counts == {"dropped_full": 30 - len(left)}


def test_disk_full_of_other_things(small_disk: Path, spool_at: Open, counts: Counter[str]) -> None:
    spool = spool_at(directory=small_disk / "q")
    filler = small_disk / "filler"
    with pytest.raises(OSError), filler.open("wb", buffering=0) as file:  # noqa: PT011
        while True:
            file.write(b"x" * 4096)
    assert not spool.put(request("lost", 7000))
    assert (counts, len(spool), spool.size_bytes) == ({"dropped_disk": 1}, 0, 0)
    filler.unlink()
    assert spool.put(request("kept", 7000))
    assert texts(drain(spool)) == ["kept"]
    assert not list((small_disk / "q").glob(".new*"))


_WRITER = """
import sys
from pathlib import Path
from parprof.service.push.backend import Request
from parprof.service.push.spool import Spool
spool = Spool(Path(sys.argv[1]), 1 << 28, 3600.0, lambda outcome: None)
number = 0
while True:
    number += 1
    assert spool.put(Request(f"/{number}", "t", b"%d " % number * 20000))
    print(number, flush=True)
"""


def test_killed_in_the_middle(spool_at: Open, tmp_path: Path, counts: Counter[str]) -> None:
    """GIVEN a process that is killed while it writes THEN all that it had put is there, and nothing half."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    for turn in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", _WRITER, tmp_path / "q"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert child.stdout is not None
        last = 0
        for line in child.stdout:
            last = int(line)
            if last == 5 + turn:
                child.kill()
                break
        last = max([last, *map(int, child.stdout.read().split())])
        child.stdout.close()
        child.wait()
        spool = spool_at(max_bytes=1 << 28)
        numbers = [int(entry.request.path[1:]) for entry in drain(spool)]
        assert numbers[:last] == list(range(1, last + 1))
        assert len(numbers) in (last, last + 1)  # it may have been put but not said
        assert not counts
        spool.close()
