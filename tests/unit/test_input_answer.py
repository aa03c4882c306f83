"""Profiles of inputs: merged, saved, read again, put into words, plotted and shown as a page."""

from __future__ import annotations

import functools
import io
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.errors import ProfileFormatError, UsageError
from parprof.input import page, saved, terminal
from parprof.input.answer import advice, coverage, forecast, hurts_first, lines
from parprof.input.model import BLOCKS, NANOSECONDS, InputProfile, Point, RoutineName
from test_input_fit import JOINS, STATEMENTS

SIZES = (10, 20, 40, 80, 160, 320, 640)


def make(**laws: tuple[float, float]) -> InputProfile:
    """Routines that cost factor * n ** power at each of SIZES."""
    profile = InputProfile("./book in", "valgrind", BLOCKS, first=700, induced=200, external=100, threads=2)
    for name, (factor, power) in laws.items():
        routine = profile.routine(RoutineName(name, "book", "/src/book.c", 90))
        for n in SIZES:
            cost = round(factor * n**power)
            routine.add(Point(n, n // 2, 3, 3 * n, 3 * (n // 2), n, 0, 3 * cost, cost + 1, 3 * cost))
        routine.by_thread[0] = 3 * len(SIZES)
    return profile


def test_the_advice_names_the_steep_one_not_the_dear_one() -> None:
    profile = make(scan=(500, 1), pairs=(1, 2))
    found = lines(profile)
    assert found[0].routine.identity.name == "scan"
    text = advice(found)
    assert text.startswith(
        "pairs (book.c:90) grows as n^2 (7 sizes, 10 to 640): 10 x the input will take 100 x as long"
    )
    assert text.endswith("33 % of its input came from other threads")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("python3.11", "python3.11"),
        ("libpython3.11.so.1.0", "libpython3.11.so.1.0"),
        ("perl", "perl"),
        ("mawk", "mawk"),
        ("libtcl8.6.so", "libtcl8.6.so"),
        ("luajit-2.1.0", "luajit-2.1.0"),
        ("libguile-3.0.so.1.5.0", "libguile-3.0.so.1.5.0"),
        ("book", ""),
        ("_speedups.cpython-311-x86_64-linux-gnu.so", ""),
    ],
)
@pytest.mark.parametrize("power", [0, 1, 2])
def test_a_routine_of_an_interpreter_is_no_function_of_the_script(
    module: str, name: str, power: float
) -> None:
    profile = InputProfile("python3 book.py", "valgrind", BLOCKS)
    routine = profile.routine(RoutineName("list_extend", module))
    for n in SIZES if power else (10, 11):
        routine.add(
            Point(n, n, 3, 3 * n, 3 * n, 0, 0, 3 * round(n**power), round(n**power), 3 * round(n**power))
        )
    text = advice(lines(profile))
    own = f"; {name} runs a script, whose functions are not told apart: this is a routine of its own"
    assert "list_extend" in text and text.endswith(own) == bool(name)


def test_a_steep_one_that_will_be_small_beside_another_one_is_not_the_first() -> None:
    """A sort's leaves: n log n, up to where merges begin, which cost 20 times as much."""
    found = lines(make(merge=(3000, 1), leaves=(4, 1.6)))
    by_name = {one.routine.identity.name: one for one in found}
    assert by_name["leaves"].law.tenfold > 20 and by_name["leaves"].cost_percent > 1
    text = advice(found)
    assert text.startswith(
        "merge (book.c:90) grows as n (7 sizes, 10 to 640): 10 x the input will take 10 x as long"
    )


def test_a_steep_law_whose_slope_is_not_known_is_no_advice() -> None:
    """As of SQLite's that begins a transaction: 1,501 calls of one size, and six others (n^3.9, "7783 x as long")."""
    profile = make(scan=(500, 1))
    begins = profile.routine(RoutineName("begins", "book", "/src/book.c", 90))
    sizes = (6, 3, 19), (9, 1, 20), (14, 1, 24), (40, 1, 103), (45, 1501, 129), (48, 1, 301), (73, 1, 917)
    for n, calls, cost in sizes:
        cost *= 100
        begins.add(Point(n, n, calls, calls * n, calls * n, 0, 0, calls * cost, cost, calls * cost))
    found = lines(profile)
    (line,) = (one for one in found if one.routine.identity.name == "begins")
    assert line.law.is_found and line.law.r2 > 0.95 and line.law.tenfold > 500 and line.cost_percent > 10
    text = advice(found)
    assert "scan (book.c:90) grows as n " in text
    assert "how begins grows" in text and "how steeply it grows at its larger inputs is uncertain" in text
    assert [one.line.routine.identity.name for one in forecast(found, 5)] == ["scan"]


def test_what_costs_most_at_ten_times_the_input() -> None:
    """scan costs most today, pairs then: (1 * 640**2 * 100) against (500 * 640 * 10), over all sizes."""
    first, second = forecast(lines(make(scan=(500, 1), pairs=(1, 2))), 5)
    assert [one.line.routine.identity.name for one in (first, second)] == ["pairs", "scan"]
    assert first.share_percent + second.share_percent == pytest.approx(100)
    now = first.line.cost_percent / second.line.cost_percent
    assert first.share_percent / second.share_percent == pytest.approx(10 * now, rel=1e-3)
    assert now < 1 < 10 * now


def test_where_nothing_is_steep_it_says_so() -> None:
    text = advice(lines(make(scan=(5, 1), small=(1, 0))))
    assert text.startswith("nothing grows worse than its input; scan (book.c:90) grows as n ")


def test_what_is_dear_and_not_known_is_said() -> None:
    """A sentence about the rest alone would make people sure of what nobody knows."""
    profile = make(scan=(5, 1))
    profile.routine(RoutineName("once")).add(Point(9, 9, 1, 9, 9, 0, 0, 90_000, 90_000, 90_000))
    text = advice(lines(profile))
    assert text.startswith(
        "no routine whose growth is known grows worse than its input; scan (book.c:90) grows"
    )
    reason = "its calls had 1 size: add runs with others (--with)"
    assert text.endswith(f"; how once grows (83 % of the cost) is not known: {reason}")
    small = make(scan=(500, 1))
    small.routine(RoutineName("once")).add(Point(9, 9, 1, 9, 9, 0, 0, 90_000, 90_000, 90_000))
    assert "once" not in advice(lines(small))


def joins(copies: int) -> InputProfile:
    """A text put together piece by piece: n calls of a copy of up to 2 n cells; and as many ``copies`` elsewhere."""
    profile = InputProfile("a", "valgrind", BLOCKS)
    for n in (10, 20, 40, 80, 160, 320):
        for size in range(2, 2 * n + 1, 2):
            cost = 3 * size
            calls = 1 + copies
            point = Point(
                size, size, calls, calls * size, calls * size, 0, 0, calls * cost, cost, calls * cost
            )
            profile.routine(RoutineName("copy")).add(point)
        inclusive = 3 * n * (n + 1) + 20 * n
        profile.routine(RoutineName("join")).add(Point(n, n, 1, n, n, 0, 0, inclusive, inclusive, 20 * n))
    return profile


def test_who_calls_a_linear_routine_ever_more_often_is_named() -> None:
    found = lines(joins(0))
    join = next(line for line in found if line.routine.identity.name == "join")
    assert join.law.model == "n^2" and 1 < join.cost_percent < 15 < 50 < join.inclusive_percent
    told = f"with what it calls it takes {join.inclusive_percent:.0f} % of the cost"
    assert advice(found).startswith("join grows as n^2 ") and advice(found).endswith(f" x as long; {told}")
    assert (
        f"{join.cost_percent:.1f} % of the cost ({join.inclusive_percent:.1f} % with what"
        in page.make(joins(0), found).html()
    )


def test_nor_is_it_left_out_for_a_small_one_that_is_as_steep() -> None:
    """Unique words by a search of all before each: 60 % in the search, and a text put together of 4 % was named."""
    profile = joins(0)
    for n in (10, 20, 40, 80, 160, 320):
        inclusive = 3 * n * (n + 1) + 21 * n
        profile.routine(RoutineName("outer")).add(Point(n, n, 1, n, n, 0, 0, inclusive, inclusive, n))
        cost = n * n
        profile.routine(RoutineName("small")).add(Point(n, n, 1, n, n, 0, 0, cost, cost, cost))
    assert advice(lines(profile)).startswith("join grows as n^2")
    for n in (10, 20, 40, 80, 160, 320):
        cost = 5 * n * n
        profile.routine(RoutineName("large")).add(Point(n, n, 1, n, n, 0, 0, cost, cost, cost))
    assert advice(lines(profile)).startswith("large grows as n^2")


def test_who_spends_all_in_what_it_calls_may_be_linear() -> None:
    """Expat's parser works on pieces of one size: `main` is n over two decades, and had "less than 10 times"."""
    profile = InputProfile("elements", "valgrind", BLOCKS)
    for n in (350, 700, 1500, 3000, 6000, 12_000, 24_000):
        profile.routine(RoutineName("main")).add(Point(n, n, 1, n, n, 0, 0, 200 * n, 200 * n, n // 50))
        steps = n // 2
        profile.routine(RoutineName("step")).add(
            Point(4, 4, steps, 0, 0, 0, 0, 400 * steps, 450, 400 * steps)
        )
    for pattern in ("", "main"):
        text = advice(lines(profile, pattern))
        assert text.startswith(
            "nothing grows worse than its input; main grows as n (7 sizes, 350 to 24000)"
        ), text


def test_not_if_it_is_a_minor_matter() -> None:
    assert advice(lines(joins(400))).startswith("nothing grows worse than its input; copy grows as n ")


def of_sizes(sizes: Iterable[int], name: str = "f", power: int = 2) -> InputProfile:
    """A routine that costs n ** power."""
    profile = InputProfile("a", "valgrind", BLOCKS)
    for n in sizes:
        cost = n**power
        profile.routine(RoutineName(name)).add(Point(n, n, 1, n, n, 0, 0, cost, cost, cost))
    return profile


def test_less_than_a_decade_is_not_extended_by_one() -> None:
    profile = of_sizes(range(3, 15))
    (line,) = lines(profile)
    assert line.law.model == "n^2" and hurts_first([line]) is None and forecast([line], 5) == []
    assert advice([line]).startswith(
        "no law is sure: f costs most (100 %), and its points fit n^2, but its largest input was less than 10 times "
        "its smallest; run with inputs of several sizes"
    )


@pytest.mark.parametrize("largest", [40, 90, 99, 100, 101, 400])
def test_all_parts_of_a_report_extend_the_same_laws(largest: int) -> None:
    """The sentence, the table, the card, its dashed lines and JSON; of a range just below a decade as well."""
    sizes = sorted({10 + step * (largest - 10) // 12 for step in range(13)})
    profile = of_sizes(sizes)
    (line,) = found = lines(profile)
    assert line.law.model == "n^2"
    is_wide = largest >= 100
    assert ("10 x the input will take" in advice(found)) == is_wide
    html = page.make(profile, found).html()
    assert ("When the input is ten times as large" in html) == is_wide
    assert ("ten times the input, 100 x the cost" in html) == is_wide
    assert html.count('class="law" d=') == (2 if is_wide else 0)  # over trms and rms
    assert html.count("card first") == is_wide
    assert ("its largest input was less than 10 times its smallest" in html) != is_wide
    (routine,) = saved.as_json(profile)["routines"]
    assert routine["fit"]["sure"] is routine["fit_rms"]["sure"] is is_wide


def test_a_routine_too_cheap_for_advice_has_its_law_on_its_card() -> None:
    profile = of_sizes(SIZES, "dear")
    for n in SIZES:
        profile.routine(RoutineName("cheap")).add(Point(n, n, 1, n, n, 0, 0, n, n, n))
    found = lines(profile)
    assert [round(line.inclusive_percent, 1) < 1 for line in found] == [False, True]
    html = page.make(profile, found).html()
    assert "<b>grows as n: ten times the input, 10 x the cost</b>" in html


def test_a_steep_one_that_costs_nothing_is_no_advice() -> None:
    found = lines(make(scan=(50_000, 1), pairs=(0.1, 2)))
    first = hurts_first(found)
    assert first is not None and first.routine.identity.name == "scan"


def test_without_a_law_it_says_what_to_do() -> None:
    profile = InputProfile("a", "tsan", BLOCKS)
    profile.routine(RoutineName("f")).add(Point(8, 8, 2, 16, 16, 0, 0, 20, 10, 20))
    assert advice(lines(profile)).startswith(
        "no law: f costs most (100 %), but its inputs tell no growth (1 size)"
    )
    assert "(--with FILE)" in advice(lines(profile))
    assert advice([]).startswith("no routine was seen")


def test_where_something_else_decides_no_other_inputs_are_asked_for() -> None:
    """A sieve: it reads one cell that it did not write itself, however many numbers it is told to look at."""
    profile = InputProfile("a", "tsan", BLOCKS)
    sieve = profile.routine(RoutineName("sieve"))
    for cost in (1000, 2000, 4000, 8000, 16000, 32000):
        sieve.add(Point(1, 1, 1, 1, 1, 0, 0, cost, cost, cost))
    text = advice(lines(profile))
    assert "--with" not in text
    assert text.startswith("no law: sieve costs most (100 %)") and "cost up to 3 x their mean" in text
    assert "something else decides, such as a number that they are given" in text
    for n in SIZES:
        profile.routine(RoutineName("scan")).add(Point(n, n, 1, n, n, 0, 0, 5 * n, 5 * n, 5 * n))
    assert (
        "how sieve grows (91 % of the cost) is not known: calls with inputs of one size cost up to"
        in advice(lines(profile))
    )


def statements() -> InputProfile:
    """sqlite3's, as under Valgrind: what ends the making of each statement has a steep law of its own."""
    profile = InputProfile("sqlite3", "valgrind", BLOCKS)
    for n, cost, calls in STATEMENTS:
        profile.routine(RoutineName("sqlite3VdbeExec")).add(
            Point(n, n, calls, n * calls, n * calls, 0, 0, cost * calls, cost, cost * calls)
        )
    ends = (
        (1, 3),
        (5, 22),
        (28, 60),
        (33, 90),
        (45, 180),
        (58, 300),
        (64, 420),
        (70, 520),
        (77, 650),
        (83, 800),
    )
    for n, cost in ends:
        cost *= 60
        profile.routine(RoutineName("sqlite3FinishCoding")).add(
            Point(n, n, 1, n, n, 0, 0, cost, cost, cost // 9)
        )
    for n, cost, _ in STATEMENTS:  # all in what it calls
        profile.routine(RoutineName("sqlite3_step")).add(Point(n, n, 1, n, n, 0, 0, cost, cost, 10))
    return profile


def test_the_interpreters_loop_is_named_for_the_join_that_it_does() -> None:
    """It was what ends the making of statements, 1 % of the cost with all that it calls: "n^2, 89 x as long"."""
    profile = statements()
    found = lines(profile)
    text = advice(found)
    assert re.match(
        r"sqlite3VdbeExec grows at worst as n\^2 beyond the (1[89]|20)\d cells that each call reads \(6", text
    )
    assert "10 x the input will take 100 x as long" in text
    assert [one.line.routine.identity.name for one in forecast(found, 1)] == ["sqlite3VdbeExec"]
    html = page.make(profile, found).html()
    assert "<td>n^2, at worst</td>" in html and "<td>0.0 %</td></tr>" not in html
    assert "grows at worst as n^2" in html and html.index("sqlite3VdbeExec</h2>") < html.index("Coding</h2>")
    assert "n^2 at worst" in "\n".join(terminal.table(found))
    assert terminal.plot(found[0], BLOCKS)[0].startswith("sqlite3VdbeExec: at worst n^2 beyond")
    fits = {one["name"]: one["fit"] for one in saved.as_json(profile)["routines"]}
    assert fits["sqlite3VdbeExec"]["at_worst"] is True


def test_a_steep_one_that_spends_little_in_what_it_calls_is_no_advice() -> None:
    profile = make(caller=(0.01, 2), scan=(100, 0))
    for point in profile.routine(RoutineName("caller", "book", "/src/book.c", 90)).points.values():
        point.cost_sum, point.cost_max = point.trms**2 // 4, point.trms**2
        point.self_cost = 0
    for _ in range(9):
        profile.routine(RoutineName("once")).add(Point(9, 9, 1, 9, 9, 0, 0, 900_000, 900_000, 900_000))
    text = advice(lines(profile))
    assert "caller" not in text.split(";")[0] and text.startswith("no law: once costs most")


def test_many_steps_are_the_doing_of_who_makes_them() -> None:
    """perl's: 1.7 million calls of pp_multiconcat, each as dear as the other, of one runops."""
    profile = InputProfile("perl", "valgrind", BLOCKS)
    for name, each in (("pp_multiconcat", 36), ("pp_iter", 20), ("sv_eq", 14)):
        for n in (25, 27, 34):
            cost = each * 500_000
            profile.routine(RoutineName(name)).add(Point(n, n, 500_000, 0, 0, 0, 0, cost, 3 * each, cost))
    loop = profile.routine(RoutineName("runops"))
    loop.add(Point(856, 856, 1, 856, 856, 0, 0, 120_000_000, 120_000_000, 15_000_000))
    profile.routine(RoutineName("main")).add(
        Point(2000, 2000, 1, 2000, 2000, 0, 0, 120_000_100, 120_000_100, 100)
    )
    text = advice(lines(profile))
    assert text.startswith(
        "no law: most is spent in runops and what it calls (100 %), but its inputs tell no growth (1"
    )
    assert "pp_multiconcat" not in text


def test_one_dear_call_of_many_cheap_ones_is_no_growth() -> None:
    """An allocator (Rust's `__rust_alloc`) that tidies up now and then; a table that grows is another matter."""
    for worst, is_told in ((13_250, False), (150_000, True)):
        profile = make(pairs=(1, 2))
        profile.routine(RoutineName("alloc")).add(Point(0, 0, 14_228, 0, 0, 0, 0, 581_000, worst, 581_000))
        assert ("alloc" in advice(lines(profile))) == is_told


def test_what_grows_exponentially_is_named_first() -> None:
    profile = make(pairs=(1, 2))
    for n in range(7, 18):
        cost = 6 * 2**n - 3
        profile.routine(RoutineName("subsets")).add(Point(n, n, 1, n, n, 0, 0, cost, cost, cost))
    found = lines(profile)
    text = advice(found)
    assert text.startswith(
        "subsets grows exponentially (11 sizes, 7 to 17): each further cell of input takes 2 x as"
    )
    assert "apart from it: pairs (book.c:90) grows as n^2 " in text
    assert "<td>exponentially</td>" in page.make(profile, found).html()
    assert '"reason": "exponential", "factor": 2.' in json.dumps(saved.as_json(profile))


def test_a_law_beyond_what_each_call_reads_is_told() -> None:
    profile = InputProfile("a", "valgrind", BLOCKS)
    for n, cost in JOINS:
        profile.routine(RoutineName("step")).add(Point(n, n, 1, n, n, 0, 0, cost, cost, cost))
    assert re.match(
        r"step grows as n\^2 beyond the (19|20)\d cells that each call reads \(6 sizes, 235 to 1454\): 10 x the "
        "input will take 100 x as long",
        advice(lines(profile)),
    )


def test_richness_and_volume_are_the_papers() -> None:
    profile = InputProfile("a", "tsan", BLOCKS)
    routine = profile.routine(RoutineName("wbuffer_write_thread"))
    for trms, rms in ((100, 67), (200, 67), (300, 69), (300, 67)):
        routine.add(Point(trms, rms, 1, trms, rms, 0, trms - rms, 10, 10, 10))
    assert routine.profile_richness == (3 - 2) / 2
    assert routine.input_volume == pytest.approx(1 - 270 / 900)
    assert [point.trms for point in routine.by_trms()] == [100, 200, 300]
    assert [(point.rms, point.calls) for point in routine.by_rms()] == [(67, 3), (69, 1)]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    profile = make(scan=(500, 1), pairs=(1, 2))
    profile.note("something <b>")
    for name in ("a.json", "a.json.gz"):
        path = tmp_path / name
        with path.open("wb") as file:
            saved.write(profile, file, compressed=name.endswith("gz"))
        assert saved.is_saved(str(path))
        again = saved.read(str(path))
        assert saved.as_json(again) == saved.as_json(profile)
    (tmp_path / "pretty.json").write_text(json.dumps(saved.as_json(profile), indent=1))
    assert saved.is_saved(str(tmp_path / "pretty.json"))


def test_files_of_before_recursion_was_told_are_read() -> None:
    data = json.loads(written())
    for routine in data["routines"]:
        for point in routine["points"]:
            del point["inner_cost"]
    assert saved.as_json(saved.decode(data)) == json.loads(written())


def test_runs_add_up() -> None:
    profile, other = make(scan=(500, 1)), make(scan=(500, 1), pairs=(1, 2))
    other.all_read_bytes = None
    profile.add(other)
    assert profile.runs == 2 and profile.all_read_bytes is None
    (scan,) = (one for identity, one in profile.routines.items() if identity.name == "scan")
    assert scan.total().calls == 2 * 3 * len(SIZES) and len(scan.points) == len(SIZES)
    with pytest.raises(ValueError, match="costs in ns"):
        profile.add(InputProfile("a", "tsan", NANOSECONDS))


def test_other_files_are_not_taken_for_it(tmp_path: Path) -> None:
    for name, data in (("a", b""), ("b", b"\x1f\x8b"), ("c", b'{"schema": 1}'), ("d", b"\x1f\x8bxxxxxxxx")):
        (tmp_path / name).write_bytes(data)
        assert not saved.is_saved(str(tmp_path / name))
        with pytest.raises(ProfileFormatError):
            saved.read(str(tmp_path / name))
    assert not saved.is_saved("-") and not saved.is_saved(str(tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@functools.cache
def written() -> str:
    return json.dumps(saved.as_json(make(scan=(500, 1))))


@settings(max_examples=200, deadline=None)
@given(
    place=st.sampled_from(["routines", "totals", "coverage", "notes", "command", "point", "routine"]),
    value=JSON,
)
def test_hostile_files_are_refused(place: str, value: object) -> None:
    data = json.loads(written())
    if place == "point":
        data["routines"][0]["points"][0] = value
    elif place == "routine":
        data["routines"][0] = value
    else:
        data[place] = value
    try:
        profile = saved.decode(data)
    except ValueError:
        return
    terminal.report(profile, lines(profile), plots=True)


def test_a_routine_that_is_not_there() -> None:
    profile = make(scan=(500, 1), match_orders=(1, 2))
    assert [line.routine.identity.name for line in lines(profile, "^match")] == ["match_orders"]
    with pytest.raises(UsageError, match="matches none of 2 routines; near it: match_orders"):
        lines(profile, "mach_order")
    with pytest.raises(UsageError, match="not a regular expression"):
        lines(profile, "(")


def test_a_huge_pattern_is_not_told_whole() -> None:
    for pattern in ("a" * 100_000, "(" * 100_000, "a{99999999999}"):
        with pytest.raises(UsageError) as caught:
            lines(make(scan=(5, 1)), pattern)
        assert len(str(caught.value)) < 400


def test_the_plot_is_straight_where_the_law_is() -> None:
    (line,) = lines(make(pairs=(1, 2)))
    rows = terminal.plot(line, BLOCKS)
    assert rows[0].startswith("pairs (book.c:90): n^2, r2 1.00; slope 2.00 +- 0.0")
    marks = [
        (row, at) for row, text in enumerate(rows[1:17]) for at, mark in enumerate(text[11:]) if mark in "o^@"
    ]
    assert marks[0][0] == 0 and marks[-1][0] == 15
    columns = [at for _, at in marks]
    assert columns == sorted(columns, reverse=True) and len(set(columns)) >= len(SIZES)
    assert all(len(row) <= 80 for row in rows)


def test_the_report_is_harmless_and_complete() -> None:
    profile = make(scan=(500, 1))
    profile.routine(RoutineName("evil\x1b[2J", "m")).add(Point(1, 1, 1, 1, 1, 0, 0, 1, 1, 1))
    text = terminal.report(profile, lines(profile))
    assert "\x1b" not in text and text.startswith("advice: ")
    assert "20 % from other threads, 10 % from system calls" in text


def test_coverage_is_told_honestly() -> None:
    """What system calls took, too: those reads of the kernel's count as the thread's."""
    profile = make(scan=(500, 1))
    profile.seen_read_bytes, profile.all_read_bytes = 41_200_000, 82_400_000
    profile.seen_sent_bytes, profile.all_sent_bytes = 250, 1000
    assert coverage(profile).startswith("41.2 MB read and 250 B sent by system calls: all")
    profile.tool, profile.counted_by = "tsan", "bpf"
    seen = "seen were 41.2 MB of 82.4 MB (50 %) that system calls brought, and 250 B of 1.0 KB (25 %) that they took"
    assert coverage(profile).startswith(f"{seen} (counted by BPF;")
    profile.counted_by = "proc"
    assert coverage(profile).startswith(f"{seen} (by /proc/PID/io: what went through sockets is not known")
    profile.all_sent_bytes = None  # as files of earlier versions have it
    assert "that system calls brought (by /proc" in coverage(profile)
    profile.all_read_bytes = None
    assert "is not known" in coverage(profile)


def test_the_page_shows_names_as_text() -> None:
    profile = make(scan=(500, 1), pairs=(1, 2))
    profile.routine(RoutineName("<script>alert(1)</script>")).add(Point(1, 1, 1, 1, 1, 0, 0, 1, 1, 1))
    found = lines(profile)
    html = page.make(profile, found).html()
    assert "<script>" not in html and "&lt;script&gt;" in html and " style=" not in html
    assert html.index("pairs</h2>") < html.index("scan</h2>")  # what will hurt comes first
    assert html.count("<svg") == 3 * len(found)
    assert html.count('class="law" d=') == 4  # two laws, over trms and rms: to ten times the input
    assert "When the input is ten times as large" in html
    buffer = io.BytesIO()
    saved.write(profile, buffer, compressed=False)
    assert math.isfinite(json.loads(buffer.getvalue())["routines"][0]["fit"]["r2"])
