"""What `parprof scale` makes of a record: bounds, the sentence, table, JSON, page and pprof file."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from parprof import pprof_pb2 as pb
from parprof.errors import ProfileFormatError
from parprof.exporters import pprof_reader, scale_flame, scale_json, scale_page, scale_pprof, scale_table
from parprof.model import Frame
from parprof.scale.answer import bottleneck, factor, sentence
from parprof.scale.model import Lost, Scale, notes_of, predict, reached
from parprof.scale.record import Address, Flag, SiteKind, SiteRecord, SpanRecord

NOWHERE = Address("", "", 0)
HOSTILE = '<script>"&\x1b[31m'


def address(line: int) -> Address:
    return Address("/bin/solve", "ab", line)


def resolve(where: Address) -> tuple[Frame, ...]:
    """The line is the address; line 99 is in a hostile file."""
    name = HOSTILE if where.vaddr == 99 else "solve._omp_fn.0"
    return (
        Frame(name, f"/src/{HOSTILE if where.vaddr == 99 else 'solve.c'}", where.vaddr, 1, "solve", "ab"),
    )


def site(kind: SiteKind, line: int, work: float, bound: float, **more: float) -> SiteRecord:
    return SiteRecord(
        line, kind, address(line), NOWHERE, work, 1, bound, 1, bound, more.get("uneven", 0.0),
        more.get("critical", 0.0), more.get("hold", 0.0), more.get("chained", 0.0), int(more.get("at_once", 0)),
    )  # fmt: skip


def tasks(count: int, on_path: int) -> SiteRecord:
    """Two seconds of them, half of which are on the longest path."""
    return replace(site(SiteKind.TASK, 5, 2.0, 1.0, uneven=0.9), count=count, span_count=on_path)


def record(*sites: SiteRecord, threads: int = 10, flags: Flag = Flag.CLOSED, widest: int = 10) -> SpanRecord:
    work = sum(one.work_s for one in sites)
    return SpanRecord(1, "./solve in.dat", flags, threads, widest, 3, 0, work * 1.25, work, False, sites)


def scale_of(*records: SpanRecord) -> Scale:
    predictions = tuple(predict(one, resolve) for one in records)
    return Scale("./solve in.dat", predictions, tuple(notes_of(predictions)))


SERIAL = site(SiteKind.SERIAL, 10, 1.0, 1.0)
EVEN = site(SiteKind.REGION, 20, 9.0, 0.9)
UNEVEN = site(SiteKind.PHASE, 30, 10.0, 3.0, uneven=2.0)


def test_amdahl() -> None:
    """One second in ten is serial: 10 / (1 + 0.9) on ten cores; without it, 10."""
    main = scale_of(record(SERIAL, EVEN)).main
    assert main.speedup == pytest.approx(10 / 1.9)
    (serial, even) = main.sites
    assert serial.speedup_if_fixed == pytest.approx(10)
    assert even.speedup_if_fixed == pytest.approx(main.speedup)
    assert main.lost.serial == pytest.approx(0.9 / 1.9)
    assert main.lost.uneven == pytest.approx(0, abs=1e-9)
    assert main.lost.runtime == pytest.approx(0.2)


def test_without_a_lock_there_are_as_many_cores_as_before() -> None:
    """Ten threads whose work is half under a lock: x2. Without it x10 at best, however little is done outside."""
    locked = site(SiteKind.CRITICAL, 20, 5.0, 5.0, critical=4.0)
    main = scale_of(record(locked, site(SiteKind.REGION, 10, 5.0, 0.0))).main
    assert main.speedup == pytest.approx(2)
    assert [one.speedup_if_fixed for one in main.sites] == pytest.approx([10, 2])


def test_calls_of_one_line_are_one_site() -> None:
    """A compiler that unrolls a loop makes several of one."""
    calls = [
        replace(site(SiteKind.TASK, line, 2.0, 0.5, uneven=0.1), address=address(line))
        for line in (20, 21, 30)
    ]

    def unrolled(where: Address) -> tuple[Frame, ...]:
        return (Frame("solve", "/src/solve.c", where.vaddr // 10, 1, "solve", "ab", address=where.vaddr),)

    (one, other) = predict(record(*calls), unrolled).sites
    assert (one.label, one.work_s, one.bound_s, one.uneven_s, one.count) == (
        "task at solve.c:2",
        4.0,
        1.0,
        0.2,
        2,
    )
    assert (other.label, other.work_s) == ("task at solve.c:3", 2.0)
    unnamed = predict(record(*calls), lambda where: ()).sites
    assert len(unnamed) == 3


def test_what_is_used_and_what_is_lost_is_all() -> None:
    main = scale_of(record(SERIAL, EVEN, UNEVEN)).main
    used = main.work_s / (main.threads * main.bound_s)
    assert used + main.lost.serial + main.lost.uneven + main.lost.critical == pytest.approx(1)
    assert main.lost.uneven == pytest.approx(2 / main.bound_s)


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ((SERIAL, EVEN), "on 10 cores at best x5.26: serial code before solve.c:10 in solve runs on one core"),
        ((UNEVEN, EVEN), "code before the barrier at solve.c:30 in solve ends unevenly, its longest part 3.0 times"),
        (
            (site(SiteKind.CRITICAL, 5, 2.0, 2.0, critical=1.5), EVEN),
            "critical section at solve.c:5 in solve holds a lock",
        ),
        ((site(SiteKind.TASK, 5, 2.0, 1.0, uneven=0.9), EVEN), "makes 1 task for 10 cores and is 53 % of the time"),
        ((tasks(4, 1), EVEN), "makes 4 tasks for 10 cores and is 53 % of the time that is left; more, shorter tasks"),
        ((tasks(40, 10), EVEN), "has 10 of its 40 tasks one after the other on the longest path and is 53 %"),
        ((tasks(40, 40), EVEN), "left; shorter tasks, or more of them side by side, would give x10.0"),
        ((tasks(40, 1), EVEN), "has one task on the longest path, 20.0 times as long as the mean of its 40, and is"),
        ((tasks(40, 1), EVEN), "left; splitting that one would give x10.0"),
        ((site(SiteKind.SECTIONS, 5, 2.0, 1.0, uneven=0.8), EVEN), "as many sections as cores, with even shares"),
        ((site(SiteKind.CRITICAL, 5, 9.0, 2.0, uneven=1.1), EVEN), "2.2 times the mean, and is 69 % of the time"),
        ((site(SiteKind.CRITICAL, 5, 9.0, 2.0, uneven=1.1), EVEN), "left; even shares would give x10.0"),
        ((site(SiteKind.DOACROSS, 5, 2.0, 1.0, uneven=0.9), EVEN), "a shorter chain (less code between"),
        ((EVEN,), "on 10 cores at best x10.0: no single site stands in the way"),
        ((), "nothing was measured"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_site_and_the_reason(sites: tuple[SiteRecord, ...], words: str) -> None:
    assert words in sentence(scale_of(record(*sites)))


def test_what_cannot_be_followed_is_not_called_serial() -> None:
    blind = SpanRecord(1, "xz", Flag.CLOSED, 4, 0, 0, 0, 10.0, 3.0, False, (SERIAL,))
    assert "nothing can be said of how it scales: 90% of its CPU time" in sentence(scale_of(blind))
    assert any("than OpenMP's" in note for note in scale_of(blind).notes)
    began_threads = replace(blind, widest_team=4)  # which a runtime inside of it did, and works in
    assert "nothing can be said" in sentence(scale_of(began_threads))
    fine = replace(blind, regions=3, widest_team=4, sites=(SERIAL, site(SiteKind.TASK, 7, 1.0, 0.5)))
    assert "nothing can be said" not in sentence(scale_of(fine))


def test_a_killed_program_is_marked() -> None:
    found = scale_of(record(SERIAL, flags=Flag(0)))
    assert found.main.is_partial and any(note.startswith("partial: with 10 threads") for note in found.notes)
    assert not scale_of(record(SERIAL)).notes


def test_a_program_that_chooses_its_threads_itself_is_told_of() -> None:
    assert any("at most 4 at once" in note for note in scale_of(record(SERIAL, EVEN, widest=4)).notes)


def test_threads_of_posix_that_are_fewer_than_the_cores_are_not_called_uneven() -> None:
    """Two threads that are as long as each other, on ten cores: `even shares` of two would change nothing."""
    two = site(SiteKind.THREAD, 40, 9.0, 4.6, uneven=3.7, at_once=3)
    narrow = scale_of(record(SERIAL, two, widest=3))
    assert "at most 3 threads at once, whose number the program chooses" in sentence(narrow)
    assert "10 threads with even shares would give x5.26" in sentence(narrow)
    assert any("had at most 3 at once" in note for note in narrow.notes)
    wide = scale_of(record(SERIAL, replace(two, at_once=11), widest=11))
    assert "ends unevenly" in sentence(wide) and not any("at once" in note for note in wide.notes)


@pytest.mark.parametrize("kind", [SiteKind.REGION, SiteKind.PHASE, SiteKind.LOOP, SiteKind.TASK])
def test_a_small_team_is_told_also_where_others_are_large(kind: SiteKind) -> None:
    """A region with num_threads(4) on ten cores: no schedule makes its equal shares more even."""
    four = site(kind, 40, 4.0, 1.0, at_once=4)
    found = sentence(scale_of(record(replace(EVEN, at_once=10), four)))
    assert "with at most 4 threads at once, whose number the program chooses; 10 threads with even" in found


def test_a_chain_in_a_small_team_is_a_chain() -> None:
    chain = replace(site(SiteKind.TASK, 40, 4.0, 4.0, uneven=3.0, at_once=4), count=8, span_count=8)
    assert "has 8 of its 8 tasks one after the other" in sentence(scale_of(record(EVEN, chain)))


def test_threads_that_take_turns_are_not_called_uneven() -> None:
    """Each starts the next: all do the same, one after the other."""
    chain = site(SiteKind.THREAD, 40, 9.0, 9.0, uneven=8.1, chained=8.0, at_once=10)
    found = sentence(scale_of(record(SERIAL, chain)))
    assert "wait for each other, one after the other" in found and "side by side would give" in found
    assert "uneven" not in found and "shares" not in found


def test_the_table_ends_with_what_is_not_modelled() -> None:
    lines = scale_table.text(scale_of(record(SERIAL, EVEN, threads=2), record(SERIAL, EVEN))).splitlines()
    assert lines[0].startswith("scale: on 10 cores at best x5.26")
    assert [line.split()[0] for line in lines[5:7]] == ["2", "10"]
    assert lines[-1] == f"note: {scale_table.NOT_MODELLED}"


def test_the_burdened_bound_is_of_runs_with_a_core_for_each_thread() -> None:
    """Of 10 s one is serial; in the regions the busiest of 2 threads had 7 s, with the runtime's code."""
    measured = replace(record(SERIAL, EVEN, threads=2), scheduled_s=7.0)
    assert predict(measured, resolve, cores=2).burdened == pytest.approx(10 / 8)
    assert predict(measured, resolve, cores=1).burdened == 0
    assert predict(record(SERIAL, EVEN, threads=2), resolve, cores=2).burdened == 0, "of a running process"
    scale = Scale("./solve", (predict(measured, resolve, cores=2), predict(measured, resolve, cores=1)), ())
    rows = scale_table.text(scale).splitlines()[5:7]
    assert [row.split()[2] for row in rows] == ["1.25", "-"]
    assert [one["burdened_speedup"] for one in json.loads(scale_json.to_json(scale))["threads"]] == [
        1.25,
        None,
    ]


def test_the_json_keeps_its_contract() -> None:
    found = json.loads(scale_json.to_json(scale_of(record(SERIAL, EVEN))))
    assert {"work_s", "span_s", "parallelism", "threads", "advice", "sites"} <= found.keys()
    (only,) = found["threads"]
    assert only["n"] == 10 and only["lost"].keys() == {"serial", "uneven", "critical", "runtime"}
    assert found["advice"]["site"] == "solve.c:10"
    assert found["advice"]["speedup_if_fixed"] == pytest.approx(10)
    first = found["sites"][0]
    assert {"site", "caller", "callee", "count", "on_work", "on_span"} <= first.keys()
    assert sum(one["on_span"]["local"]["span_s"] for one in found["sites"]) == pytest.approx(found["span_s"])
    assert sum(one["on_work"]["local"]["work_s"] for one in found["sites"]) == pytest.approx(found["work_s"])


def test_the_csv_has_a_line_for_each_site_of_each_run() -> None:
    rows = list(
        csv.DictReader(io.StringIO(scale_table.to_csv(scale_of(record(SERIAL, EVEN), record(SERIAL)))))
    )
    assert [row["kind"] for row in rows] == ["serial", "region", "serial"]


def test_the_page_has_every_column_of_the_table() -> None:
    page = scale_page.page(scale_of(record(SERIAL, EVEN))).html()
    assert '<th class="number">runtime</th>' in page and '<td class="number">20 %</td></tr>' in page


def test_of_code_within_a_region_the_part_beside_which_others_wait_is_uneven() -> None:
    """Two members of a team of two, one with 8 s of its own; then each has 16 s for a nested team of two."""
    own = site(SiteKind.REGION, 20, 8.0, 8.0, uneven=15.0)
    nested = site(SiteKind.REGION, 40, 32.0, 8.0)
    found = scale_of(record(own, nested, threads=64, widest=2))
    (first, *_) = (one for one in found.main.sites if one.label == "region at solve.c:20")
    assert first.uneven_factor == pytest.approx(64)
    assert "its longest part 64.0 times the mean" in sentence(found)
    page = scale_page.page(found).html()
    assert page.count('class="part uneven"') == 2 and 'class="part even"' not in page


@pytest.mark.parametrize("kind", [SiteKind.REGION, SiteKind.TASKLOOP, SiteKind.THREAD, SiteKind.LOOP])
def test_shares_that_are_even_but_for_chance_stand_in_nobodys_way(kind: SiteKind) -> None:
    """64 equal shares, the longest by chance 6 % longer: "ends unevenly, 1.1 times the mean" is no advice."""
    even = site(kind, 20, 64.0, 1.06, uneven=0.06)
    found = scale_of(record(even, threads=64, widest=64))
    assert bottleneck(found.main) is None
    assert sentence(found) == "on 64 cores at best x60.4: no single site stands in the way"
    longer = site(kind, 20, 64.0, 1.3, uneven=0.3)
    assert bottleneck(scale_of(record(longer, threads=64, widest=64)).main) is not None


def test_hostile_names_are_harmless_everywhere() -> None:
    found = scale_of(record(site(SiteKind.LOOP, 99, 1.0, 1.0, uneven=0.5), EVEN))
    page = scale_page.page(found).html()
    assert "<script" not in page and "\x1b" not in page
    assert "\x1b" not in scale_table.text(found)


def test_the_page_has_a_line_for_each_fix_that_helps() -> None:
    of_two = replace(EVEN, bound_s=4.5, span_s=4.5)
    found = scale_of(record(SERIAL, of_two, threads=2), record(SERIAL, EVEN))
    ((label, values),) = scale_page.fixed_lines(found.predictions)
    assert label == "serial code before solve.c:10"
    assert values == [(2.0, pytest.approx(2)), (10.0, pytest.approx(10))]
    page = scale_page.page(found).html()
    assert page.count("<polyline") == 3 and "style=" not in page


def test_the_page_has_what_was_measured_beside_what_is_predicted() -> None:
    """Only where there was a core for each thread."""
    ran = [
        replace(record(SERIAL, EVEN, threads=threads), scheduled_s=9.0, elapsed_s=elapsed_s)
        for threads, elapsed_s in ((1, 12.0), (2, 8.0), (10, 7.0))
    ]
    runs = tuple(predict(one, resolve, cores=2) for one in ran)
    assert reached(runs) == [(1, 1.0), (2, pytest.approx(1.5))]
    assert reached(runs[1:]) == [(2, pytest.approx(runs[1].work_s / 8))], "against the work"
    page = scale_page.page(Scale("./solve", runs, ())).html()
    assert page.count('<rect class="measured"') == 2 and page.count('<circle class="point"') == 3
    assert f"2 threads on 2 cores: {factor(1.5)}, measured" in page
    assert "measured" not in scale_page.page(Scale("./solve", runs[2:], ())).html().partition("<body")[2]


def test_the_flame_graph_is_the_whole_span() -> None:
    """Each block is as wide as what is in it, and the rows of sites add up."""
    found = scale_of(record(SERIAL, EVEN, UNEVEN)).main
    root = scale_flame.tree_of(found.sites)
    assert root.span_s == pytest.approx(found.span_s) == pytest.approx(4.9)
    (code,) = root.inner.values()
    assert (code.name, code.is_site) == ("solve._omp_fn.0", False)
    assert {block.name: block.span_s for block in code.inner.values()} == {
        site.label: pytest.approx(site.span_s) for site in found.sites
    }
    drawn = scale_flame.flame(found)
    assert drawn.count("<rect") == 5 and 'width="1000.0"' in drawn and "style=" not in drawn
    assert "code before the barrier at solve.c:30: 3.00 s, 61.2 % of the span" in drawn


def test_a_flame_graph_of_nothing_is_none() -> None:
    assert not scale_flame.flame(scale_of(record()).main)


def test_the_pprof_columns_add_up() -> None:
    found = scale_of(record(SERIAL, EVEN, UNEVEN))
    message = scale_pprof.encode(found)
    names = [message.string_table[one.type] for one in message.sample_type]
    assert names == ["count", "work", "span", "bound"]
    totals = [sum(one.value[at] for one in message.sample) for at in range(4)]
    assert totals[1] == 20 * 10**9 and totals[2] == round(found.main.span_s * 1e9)
    again = pb.Profile.FromString(message.SerializeToString())
    with pytest.raises(ProfileFormatError, match="work and span"):
        pprof_reader.decode(again.SerializeToString())
    assert scale_pprof.decode(again.SerializeToString()) == found


def test_nothing_is_not_divided_by() -> None:
    empty = scale_of(record())
    assert empty.main.speedup == 1 and empty.main.lost == Lost(0, 0, 0, 0)
    assert bottleneck(empty.main) is None
    assert scale_page.page(empty).html() and scale_table.text(empty)


def test_whether_uneven_threads_chose_their_shares_is_not_known() -> None:
    """Threads of 10 s of work with a longest path of 3: x3.3 as it is, x10 if their shares are chance."""
    threads = site(SiteKind.THREAD, 40, 10.0, 3.0, uneven=2.0)
    (note,) = [one for one in scale_of(record(threads)).notes if "unequal" in one]
    assert note.startswith("thread at solve.c:40: ") and note.endswith("up to x10")
    even = site(SiteKind.THREAD, 40, 10.0, 1.0, uneven=0.01)
    assert not [one for one in scale_of(record(even)).notes if "unequal" in one]


@pytest.mark.parametrize("kind", [SiteKind.CRITICAL, SiteKind.SERIAL])
def test_what_a_thread_took_is_chance_whatever_its_path_is_called(kind: SiteKind) -> None:
    """The first thread takes part, or one has a lock meanwhile: that had no note, and x3.3 was the answer."""
    threads = site(SiteKind.THREAD, 40, 7.0, 0.0)
    longest = site(kind, 50, 3.0, 3.0, uneven=2.0)
    (note,) = [one for one in scale_of(record(threads, longest)).notes if "unequal" in one]
    assert note.endswith("up to x10")
    assert not [one for one in scale_of(record(EVEN, longest)).notes if "unequal" in one], (
        "OpenMP's are known"
    )


def test_locks_that_are_known_in_part_have_a_note() -> None:
    """Held for half of the work they were x7.6 on 64 cores, without a word."""
    notes = scale_of(record(UNEVEN, flags=Flag.CLOSED | Flag.FUTEX_LOCKS)).notes
    assert [one for one in notes if "at best may be too high" in one]


def test_the_first_threads_share_is_no_serial_code() -> None:
    """Others worked beside it. That was "runs on one core; running it in parallel would give ..."."""
    beside = scale_of(
        record(site(SiteKind.THREAD, 40, 7.0, 0.0), site(SiteKind.SERIAL, 50, 3.0, 3.0, uneven=2.0))
    )
    assert "first thread's own share beside other threads, ends last, 3.0 times the mean" in sentence(beside)
    assert "even shares would give x10" in sentence(beside)
    assert "runs on one core" in sentence(
        scale_of(record(EVEN, site(SiteKind.SERIAL, 50, 3.0, 3.0, uneven=0.5)))
    )


def test_work_that_grows_with_the_threads_is_told() -> None:
    """Each thread does the same again, or spins: x8 of four times the work is a gain of two."""
    few, main = (
        record(site(SiteKind.REGION, 20, work, work / threads), threads=threads)
        for threads, work in ((2, 10.0), (8, 40.0))
    )
    (note,) = [one for one in scale_of(few, main).notes if "times the work" in one]
    assert note.startswith("with 8 threads the program did 4.0 times the work that it did with 2: ")
    assert note.endswith("against the smaller it is x2")
    same = record(site(SiteKind.REGION, 20, 11.0, 11.0 / 8), threads=8)
    assert not [one for one in scale_of(few, same).notes if "times the work" in one]
