"""Record files: the same layout on both sides, and whatever a target writes, a clean error or a bounded record."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.errors import ProfileFormatError
from parprof.scale import record as format
from parprof.scale.record import Flag, SiteKind, SpanRecord, parse_record, read_record
from scale_programs import WORKLOADS, program, run, variables

HEADER = WORKLOADS.parents[1] / "instrument" / "span_record.h"


def test_the_layout_is_that_of_the_header(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "span_record.h"\n'
        'int main(void) { printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %d %d %d", sizeof(struct span_record),'
        " offsetof(struct span_record, sites), sizeof(struct span_site), sizeof(struct span_module),"
        " offsetof(struct span_record, modules), sizeof(struct span_call), offsetof(struct span_record, calls),"
        " sizeof(struct span_chain), offsetof(struct span_record, chains),"
        " SPAN_KINDS, SPAN_DOACROSS, SPAN_TBB); }\n"
    )
    subprocess.run(["gcc", f"-I{HEADER.parent}", str(source), "-o", str(tmp_path / "layout")], check=True)
    done = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True)
    sites_at = format.HEADER.size
    assert [int(word) for word in done.stdout.split()] == [
        format.SIZE,
        sites_at,
        format.SITE.size,
        format.MODULE.size,
        sites_at + format.MAX_SITES * format.SITE.size,
        format.CALL.size,
        format.SIZE - format.MAX_CHAINS * format.CHAIN.size - format.MAX_CALLS * format.CALL.size,
        format.CHAIN.size,
        format.SIZE - format.MAX_CHAINS * format.CHAIN.size,
        len(SiteKind),
        max(SiteKind),
        max(Flag),
    ]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("scale")
    records = directory / "records"
    records.mkdir()
    subprocess.run(
        [str(program("span_forms", directory)), "critical", "64"],
        env=variables(records, 4), check=True, timeout=60,
    )  # fmt: skip
    (found,) = records.glob("*.span")
    return found.read_bytes()


def check(record: SpanRecord) -> None:
    assert len(record.sites) <= format.MAX_SITES
    assert all(site.kind in SiteKind and site.work_s >= 0 for site in record.sites)
    assert len(record.command) < 2000
    assert len(record.calls) <= format.MAX_CALLS
    assert all(len(site.address.chain) <= 16 >= len(site.origin.chain) for site in record.sites)
    assert all(call.on_work.local_work_s >= 0 and call.on_span.count >= 0 for call in record.calls)


def test_a_record_names_its_program(good: bytes) -> None:
    record = parse_record(good)
    assert record.flags & Flag.CLOSED and not record.is_torn
    assert record.threads == record.widest_team == 4
    assert record.command.endswith("span_forms critical 64")
    assert any(site.address.module.endswith("/span_forms") and site.address.build_id for site in record.sites)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 1200), st.integers(0, format.SIZE - 1)),
            st.one_of(st.just(b"\xff" * 8), st.binary(min_size=1, max_size=24)),
        ),
        max_size=12,
    )
)
def test_a_hostile_record_is_an_error_or_a_bounded_record(
    good: bytes, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(good)
    for at, value in changes:
        data[at : at + len(value)] = value
    data = data[: format.SIZE]
    try:
        record = parse_record(bytes(data))
    except ProfileFormatError:
        return
    check(record)


@settings(max_examples=100, deadline=None)
@given(
    count=st.one_of(
        st.sampled_from([0, 3, format.MAX_CALLS, format.MAX_CALLS + 1]), st.integers(0, (1 << 32) - 1)
    ),
    calls=st.lists(st.binary(min_size=format.CALL.size, max_size=format.CALL.size), max_size=4),
)
def test_hostile_call_sites_are_an_error_or_bounded(good: bytes, count: int, calls: list[bytes]) -> None:
    data = bytearray(good)
    at = format.HEADER.size - 256 - 8  # call_count, before the command
    data[at : at + 4] = count.to_bytes(4, "little")
    at = format.SIZE - format.MAX_CALLS * format.CALL.size
    for number, call in enumerate(calls):
        data[at + number * format.CALL.size : at + (number + 1) * format.CALL.size] = call
    if count > format.MAX_CALLS:
        with pytest.raises(ProfileFormatError, match="call sites"):
            parse_record(bytes(data))
        return
    record = parse_record(bytes(data))
    check(record)
    assert len(record.calls) <= min(count, len(calls))


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=2000))
def test_other_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ProfileFormatError):
        parse_record(data)
    with pytest.raises(ProfileFormatError):
        parse_record(data.ljust(format.SIZE, b"\0"))


def test_no_device_is_read() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_record("/dev/zero")


def test_a_target_that_is_killed_leaves_what_it_had_done(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    with subprocess.Popen(
        [str(program("span_forms", tmp_path)), "waits", "1000"],
        env=variables(records, 4), stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    (found,) = records.glob("*.span")
    record = read_record(str(found))
    assert not record.flags & Flag.CLOSED and not record.is_torn
    assert round(record.work_s * 1e9) == 65_000
    assert round(record.bound_s * 1e9) == 17_000


def test_each_process_has_its_own_file(tmp_path: Path) -> None:
    """A fork that execs, and one that does not."""
    records = tmp_path / "records"
    records.mkdir()
    script = f"{program('span_forms', tmp_path)} critical 64; ({program('span_forms', tmp_path)} sections 10)"
    subprocess.run(["bash", "-c", script], env=variables(records, 4), check=True, timeout=60)
    found = [read_record(os.fspath(path)) for path in records.glob("*.span")]
    assert sum("critical 64" in record.command and record.regions == 1 for record in found) == 1
    assert sum("sections 10" in record.command and record.regions == 1 for record in found) == 1


@pytest.mark.parametrize("clock", ["syscall", "auto"])
def test_the_clocks_of_real_runs_agree_with_the_formula(tmp_path: Path, clock: str) -> None:
    """Real time, but only coarsely: four in five iterations' time is spent outside of the lock, so it is no bound."""
    record = run(tmp_path, 2, "span_forms", "sections", "20000000", clock=clock)
    assert bool(record.flags & Flag.NO_RSEQ) or clock == "auto"
    assert record.work_s / record.span_s == pytest.approx(2, rel=0.2)


def test_without_rseq_time_is_by_system_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc can be told to do without; so can a kernel."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
    record = run(tmp_path, 2, "span_forms", "sections", "2000000", clock="auto")
    assert record.flags & Flag.NO_RSEQ and record.work_s > 0
    monkeypatch.delenv("GLIBC_TUNABLES")
    assert not run(tmp_path, 2, "span_forms", "sections", "2000000", clock="auto").flags & Flag.NO_RSEQ
