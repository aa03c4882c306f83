from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.service.config.check import read_secret
from parprof.service.config.lines import key_lines, line_of
from parprof.service.config.load import OTHER_VARIABLES, changed_keys, load
from parprof.service.config.push import push_config
from parprof.service.config.schema import KEYS, TABLES, Config, ConfigError, value_of
from parprof.service.config.text import (
    answer,
    effective_text,
    make_parser,
    parse_command_line,
    sample_text,
    toml_value,
)
from parprof.service.push.config import PROTOCOLS, PushConfig
from parprof.service.push.transport import Endpoint

REPO = Path(__file__).resolve().parents[2]


def written(directory: Path, text: str) -> str:
    path = directory / "parprofd.toml"
    path.write_text(text)
    return str(path)


def problems(directory: Path, text: str) -> list[str]:
    """What is wrong with a file, without its path in front."""
    path = written(directory, text)
    with pytest.raises(ConfigError) as caught:
        load(path, environment={})
    return [one.removeprefix(path) for one in caught.value.problems]


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, ""), environment={})
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[sampling]\nfrequency_hz = 1\n[limits]\npaths = 11\nfunctions = 12\n")
    environment = {"PARPROF_SAMPLING_FREQUENCY_HZ": "2", "PARPROF_LIMITS_PATHS": "21"}
    loaded = load(path, {"sampling.frequency_hz": "3"}, environment)
    assert (loaded.config.sampling.frequency_hz, loaded.config.limits.paths) == (3, 21)
    assert loaded.config.limits.functions == 12
    assert loaded.origins["sampling.frequency_hz"] == "--sampling-frequency-hz"
    assert loaded.origins["limits.paths"] == "PARPROF_LIMITS_PATHS"
    assert loaded.origins["limits.functions"] == f"{path}:5"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[sampling]\n\nfrequency = 7\n", ":3: sampling.frequency: unknown key; did you mean sampling.frequency_hz?"),
        ("frequency_hz = 7\n", ":1: frequency_hz: unknown key; did you mean sampling.frequency_hz?"),
        ("[selct]\n", ":1: selct: unknown key; did you mean [select]?"),
        ("[select]\nmode = 'lstd'\n", ":2: select.mode: must be one of all, listed, not 'lstd'; did you mean listed?"),
        ("[http]\nlisten = 9466", ':2: http.listen: must be a text in quotes, such as "x", not 9466'),
        ("[sampling]\nfrequency_hz = true", ":2: sampling.frequency_hz: must be a whole number, not True"),
        ("[sampling]\nfrequency_hz = 0", ":2: sampling.frequency_hz: must be 1 to 9999, not 0"),
        ("[budget]\ntarget_percent = nan", ":2: budget.target_percent: must be 0.01 to 100, not nan"),
        ("[budget]\ntarget_percent = inf", ":2: budget.target_percent: must be 0.01 to 100, not inf"),
        ("[symbols]\ndebuginfod = 'yes'", ":2: symbols.debuginfod: must be true or false, not 'yes'"),
        ("[select.deny]\nuid = 0", ":2: select.deny.uid: must be a list of whole numbers, such as [1, 2]"),
        ("[select.deny]\nuid = [0,\n'x']", ":2: select.deny.uid: must be a list of whole numbers"),
        ("sampling = 3", ":1: sampling: is a table: write [sampling]"),
        ("push = 3", ":1: push: is a table: write [push]"),
        ("log = {level = 'info', colour = 1}", ":1: log.colour: unknown key; there are level"),
        ("[[log]]\nlevel = 'info'", ":1: log: is a table: write [log]"),
        ("[push.parca]\nurl = 'http://h'\nurI = ''", ":3: push.parca.urI: unknown key; did you mean push.parca.url?"),
        ("[push.pyroscop]\nurl = 'http://h'", ":1: push.pyroscop: unknown key; did you mean push.pyroscope?"),
        ("[push]\ninterval_s = 'x'", ":2: push.interval_s: must be a number, not 'x'"),
        ("[push.parca]\ntimeout_s = 1", ":1: push.parca.url: is missing"),
        ("[select.allow]\ncomm = ['a']", ':2: select.allow.comm: has no effect where select.mode is "all"'),
        ("[http]\nlisten = '0.0.0.0:1'", ":2: http.listen: HTTP on 0.0.0.0 is open to other machines"),
        ("[http]\nlisten = 'x'", ":2: http.listen: HTTP address 'x': write HOST:PORT"),
        ("[http]\ntoken_file = '/nonexistent'", ":2: http.token_file: /nonexistent: No such file"),
        ("[http]\nkey = '/nonexistent'", ":2: http.key: TLS needs both"),
        ("[control]\nsocket = 'a'", ":2: control.socket: must be an absolute path"),
        ("[control]\nsocket = '/" + "a" * 107 + "'", ":2: control.socket: is too long for a socket"),
        ("[log]\nlevel = 'info'\nlevel = 'info'\n", ":3: column 15: Cannot overwrite a value; see"),
        ("[log]\nlevel = ", ":2: column"),
        ("[http]\nfoo = 3", ":2: http.foo: unknown key; there are listen, token_file"),
        ("[sampling]\nevents = ['cycles', 'bogus']", ":2: sampling.events: unknown event 'bogus'; known: cycles,"),
        ("[sampling]\nevents = ['cycles', 'cpu-clock']", ":2: sampling.events: only one of cycles, cpu-clock can be"),
        ("[sampling]\nevents = ['read-bytes=4KiB']", ":2: sampling.events: read-bytes is for `parprof record` and"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1 and found[0].startswith(says), found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[push]\nspool = ''", ":2: push.spool: must not be empty"),
        ("[push]\nspool_bytes = 1", ":2: push.spool_bytes: must be 1048576 to 1099511627776, not 1"),
        ("[push]\nspool_bytes = 1048576.5", ":2: push.spool_bytes: must be a whole number, not 1048576.5"),
        ("[push]\nlabels = 3", ":2: push.labels: must be a table of texts"),
        ("[push]\n\n[push.labels]\nx = 1", ":3: push.labels: must be a table of texts"),
        ("[push]\nprocess_labels = ['zz']", ":2: push.process_labels: must be some of comm, pid,"),
        (
            "[push.parca]\nurl = 'http://h'\nprotocol = 'push'",
            ":3: push.parca.protocol: must be one of grpc-web",
        ),
        (
            "[push.otlp]\nurl = 'http://h'\nheaders = {a = 1}",
            ":3: push.otlp.headers: must be a table of texts",
        ),
        ("[push]\nparca = 3", ":2: push.parca: is a table: write [push.parca]"),
        ("[push.pyroscope]\nurl = ''", ":2: push.pyroscope.url: must not be empty"),
        ("\n[push.pyroscope]\nurl = 'ftp://h'", ":2: push.pyroscope: 'ftp://h' is not a URL such as"),
        ("[push.otlp]\nurl = 'https://h'\nca_file = '/nowhere'", ":1: push.otlp: cannot use ca_file"),
        (
            "[push.parca]\nurl = 'https://h'\nbearer_token_file = '/nowhere'",
            ":1: push.parca: cannot read /nowhere",
        ),
        (
            "[push.parca]\nurl = 'http://h'\nbasic_user = 'x'\nbasic_password_file = '/x'",
            ":1: push.parca: credentials would go to h for all to read",
        ),
    ],
)
def test_what_is_wrong_in_push_is_refused_with_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1 and found[0].startswith(says), found


def test_each_key_is_declared_for_the_dataclass_that_the_pusher_takes() -> None:
    """They are handed over by name."""
    names = {one.name for one in dataclasses.fields(Endpoint)} | {"protocol"}
    for store in PROTOCOLS:
        assert {KEYS[path].name for path in KEYS if KEYS[path].table == f"push.{store}"} == names
        assert set(KEYS[f"push.{store}.protocol"].rule.choices) == set(PROTOCOLS[store])
        assert KEYS[f"push.{store}.protocol"].default == next(iter(PROTOCOLS[store]))
    assert PushConfig() == dataclasses.replace(push_config(Config().push), labels={})


def test_all_problems_are_told_and_the_first_one_in_the_message(tmp_path: Path) -> None:
    path = written(tmp_path, "[log]\nlevel = 1\n[http]\nport = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {"limits.paths": "x"}, {"PARPROF_LOG_LEVL": "info"})
    places = [one.split(": ")[0] for one in caught.value.problems]
    assert places == [f"{path}:2", f"{path}:4", "environment", "--limits-paths"]
    assert str(caught.value).endswith("(and 3 more: parprofd --check-config)")
    assert caught.value.exit_code == 2


def test_each_wrong_value_of_a_list_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, '[select.deny]\nuid = [-1, 0, "root", -1]\n')
    with pytest.raises(ConfigError) as caught:
        load(path, {}, {})
    assert len(caught.value.problems) == 2, "the same one once"
    assert all(one.startswith(f"{path}:2: select.deny.uid: must be ") for one in caught.value.problems)
    assert "-1" in caught.value.problems[0] and "'root'" in caught.value.problems[1]


def test_an_address_that_is_open_to_others_is_told_beside_other_problems(tmp_path: Path) -> None:
    path = written(tmp_path, "[log]\nlevel = 1\n[http]\nlisten = '0.0.0.0:9466'\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {}, {})
    wrong, exposed = caught.value.problems
    assert wrong.startswith(f"{path}:2: log.level")
    assert exposed.startswith(f"{path}:4: http.listen") and "set a token, certificate and key too" in exposed
    path = written(tmp_path, "[http]\nlisten = '0.0.0.0:9466'\ntoken_fil = '/x'\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {}, {})
    assert len(caught.value.problems) == 1, "what a table with a mistake adds up to is not known"


def test_what_one_file_lacks_hides_nothing(tmp_path: Path) -> None:
    """Each of these was told only when those before it were mended."""
    keys = {
        "token_file": "/nowhere/t",
        "certificate": "/nowhere/c",
        "key": "/nowhere/k",
        "client_ca": "/nowhere/a",
    }
    lines = "".join(f"{name} = '{value}'\n" for name, value in keys.items())
    found = problems(tmp_path, f"[http]\nlisten = 'nonsense'\n{lines}[push.parca]\nurl = 'ftp://h'\n")
    assert [one.split(": ")[0:2] for one in found] == [
        [":3", "http.token_file"], [":4", "http.certificate"], [":6", "http.client_ca"], [":2", "http.listen"],
        [":7", "push.parca"],
    ]  # fmt: skip
    found = problems(tmp_path, "[http]\nlisten = '0.0.0.0:1'\ntoken_file = '/nowhere/t'\n")
    assert [one.split(": ")[1] for one in found] == ["http.token_file", "http.listen"]
    assert "set certificate and key too" in found[1]
    found = problems(tmp_path, "[http]\ntoken_file = '/nowhere/t'\nlistn = 'x'\n")
    assert [one.split(": ")[1] for one in found] == ["http.listn", "http.token_file"]


@pytest.mark.parametrize("raw", [b"\xff", b"x = 1" + b" " * (1 << 20), b"x = " + b"[" * 5000])
def test_what_is_no_configuration_is_one_line(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load(str(path), environment={})
    assert "\n" not in str(caught.value)


def test_a_named_file_must_exist_and_be_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(str(tmp_path / "none"), environment={})
    with pytest.raises(ConfigError, match="no such file"):
        load("", environment={"PARPROF_CONFIG": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="Is a directory"):
        load(str(tmp_path), environment={})


def test_variables_are_known_or_refused() -> None:
    environment = dict.fromkeys(OTHER_VARIABLES - {"PARPROF_CONFIG"}, "x")
    load("", environment={**environment, "PARPROFD_PORT": "x"})
    for name, says in (
        ("PARPROF_HTTP_LISTN", "did you mean PARPROF_HTTP_LISTEN?"),
        ("PARPROF_ZZZZZ", "unset it"),
        ("PARPROF_PUSH_PYROSCOPE_URL", "configuration file"),
    ):
        with pytest.raises(ConfigError, match=re.escape(says)):
            load("", environment={name: "x"})


def test_texts_become_values_of_each_type() -> None:
    flags = {
        "symbols.debuginfod": "yes", "select.deny.uid": "0, 7", "select.deny.comm": "a*,b", "http.listen": "",
        "budget.target_percent": "0.5", "sampling.frequency_hz": "49",
    }  # fmt: skip
    config = load("", flags, {}).config
    assert config.symbols.debuginfod is True
    assert config.select.deny.uid == (0, 7)
    assert config.select.deny.comm == ("a*", "b")
    assert config.http.listen == ""
    assert config.budget.target_percent == 0.5
    for key, text in (("symbols.debuginfod", "maybe"), ("select.deny.uid", "x"), ("limits.paths", "1e3")):
        with pytest.raises(ConfigError):
            load("", {key: text}, {})


def test_secrets_are_not_for_everyone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    assert read_secret(str(path)) == "0123456789abcdef"
    config = f"[http]\nlisten = '127.0.0.1:1'\ntoken_file = '{path}'\n"
    load(written(tmp_path, config), environment={})
    path.chmod(0o644)
    assert problems(tmp_path, config)[0].startswith(f":3: http.token_file: {path}: everyone can read")
    path.chmod(0o600)
    path.write_text("short")
    assert problems(tmp_path, config)[0].startswith(":3: http.token_file: the HTTP token must have 16")


def test_the_sample_is_current_and_means_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = (REPO / "systemd/parprofd.toml").read_text()
    assert sample == sample_text(), "run: python -m parprof.service.config.text > systemd/parprofd.toml"
    assert load(written(tmp_path, sample), environment={}).origins == dict.fromkeys(KEYS, "default")
    # all keys of a store at once, which exclude each other, with files that are not there
    monkeypatch.setattr("parprof.service.config.check.push_problems", lambda push: ())
    loaded = load(written(tmp_path, re.sub(r"(?m)^#(?=[a-z_]+ = |\[)", "", sample)), environment={})
    shown = [path for path, key in KEYS.items() if not TABLES[key.table].about.like]
    for path in shown:
        rule = KEYS[path].rule
        wanted = KEYS[path].default if rule.sample is None else rule.sample
        assert value_of(loaded.config, path) == wanted
        assert loaded.origins[path].startswith(loaded.file + ":")
    assert {KEYS[path].name for path in KEYS} == {KEYS[path].name for path in shown}
    assert push_config(loaded.config.push).stores[0].endpoint.tenant == "a"


def test_the_manual_has_every_key() -> None:
    manual = (REPO / "docs/configuration.md").read_text()
    for path, key in KEYS.items():
        if key.file_only:
            assert f"`{key.name}`" in manual, path
            continue
        assert re.search(
            rf"(?m)^\| `{re.escape(path)}` \| `{re.escape(toml_value(key.default))}` \|", manual
        ), path


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    text = "[select.deny]\ncomm = ['a\"b', 'ü']\n[push]\ninterval_s = 5\n"
    text += "[push.otlp]\nurl = 'http://h:1'\nheaders = {X = 's3cret'}\n"
    loaded = load(written(tmp_path, text), {"log.level": "debug"}, {"PARPROF_LIMITS_PATHS": "77"})
    printed = effective_text(loaded)
    assert "s3cret" not in printed
    assert re.search(r'level = "debug" +# --log-level', printed)
    assert re.search(r"paths = 77 +# PARPROF_LIMITS_PATHS", printed)
    again = load(written(tmp_path, printed), environment={}).config
    assert all(
        value_of(again, path) == value_of(loaded.config, path)
        for path, key in KEYS.items()
        if not key.rule.secret
    )
    assert again.push.interval_s == 5 and len(push_config(again.push).stores) == 1


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARPROF_CONFIG", raising=False)
    path = written(tmp_path, "[limits]\npaths = 10\n")
    line = parse_command_line(["--config", path, "--limits-functions", "3", "--check-config"])
    assert answer(line) == f"{path}: all is well"
    assert line.load().config.limits.functions == 3
    assert answer(parse_command_line(["--config", path])) == ""
    assert "paths = 10" in answer(parse_command_line(["--config", path, "--print-config"]))
    assert "--sampling-frequency-hz" in make_parser().format_help()
    with pytest.raises(SystemExit):
        parse_command_line(["--limits-func", "3"])


def test_changes_are_told_apart_by_what_a_reload_applies(tmp_path: Path) -> None:
    old = load(written(tmp_path, ""), environment={}).config
    new = load(
        written(tmp_path, "[http]\nlisten = '127.0.0.1:1'\n[log]\nlevel = 'debug'\n"), environment={}
    ).config
    assert changed_keys(old, new) == (["log.level"], ["http.listen"])
    assert changed_keys(new, new) == ([], [])


PUSH = """[push]
interval_s = 5
max_age_s = 60
labels = {site = "a"}
[push.pyroscope]
url = "http://h:1"
headers = {X-A = "a"}
[push.otlp]
url = "http://h:2"
"""


@pytest.mark.parametrize(
    ("was", "will_be", "now", "later"),
    [
        ("interval_s = 5", "interval_s = 6", ["push.interval_s"], []),
        ("max_age_s = 60", "max_age_s = 61", [], ["push.max_age_s"]),
        ("max_age_s = 60", "spool = '/x'", [], ["push.max_age_s", "push.spool"]),
        ('"a"}\n[', '"b"}\n[', [], ["push.labels"]),
        ('X-A = "a"', 'X-A = "b"', [], ["push.pyroscope"]),
        ('url = "http://h:1"', 'url = "http://h:3"', [], ["push.pyroscope"]),
        ('url = "http://h:1"', 'url = "http://h:1"\nprotocol = "ingest"', [], ["push.pyroscope"]),
        ("[push.otlp]", "[push.parca]", [], ["push.otlp", "push.parca"]),
        (PUSH, "", ["push.interval_s"], ["push.labels", "push.max_age_s", "push.otlp", "push.pyroscope"]),
        ("", "# nothing\n", [], []),
    ],
)
def test_changes_of_push_are_told(
    tmp_path: Path, was: str, will_be: str, now: list[str], later: list[str]
) -> None:
    assert was in PUSH
    old = load(written(tmp_path, PUSH), environment={}).config
    new = load(written(tmp_path, PUSH.replace(was, will_be, 1)), environment={}).config
    changed = changed_keys(old, new)
    assert (changed[0], sorted(changed[1])) == (now, later)
    changed_back = changed_keys(new, old)
    assert (changed_back[0], sorted(changed_back[1])) == (now, later)


def test_a_table_of_push_that_was_not_there_changes_what_it_says(tmp_path: Path) -> None:
    old = load(written(tmp_path, ""), environment={}).config
    new = load(written(tmp_path, "[push]\nmax_age_s = 60\n"), environment={}).config
    assert changed_keys(old, new) == ([], ["push.max_age_s"])


LINES = """# [a]
[a] # x
b = "# not = a key" # y
"c d" = '''
e = 1
[f]
''' # z
g . h = [ # k = 1
  "i = 1", { j = 2, "k" = { l = 3 } },
]
[a."m.n"]
o = {p = 1, q.r = [1, 2], s = "}"}
t = \"\"\"
u = 1 \\\"\"\" v = 2
\"\"\"
w = 1.5
"""


def test_lines_of_keys() -> None:
    tomllib.loads(LINES)
    lines = key_lines(LINES)
    expected = {
        ("a",): 2, ("a", "b"): 3, ("a", "c d"): 4, ("a", "g"): 8, ("a", "g", "h"): 8, ("a", "m.n"): 11,
        ("a", "m.n", "o"): 12, ("a", "m.n", "o", "p"): 12, ("a", "m.n", "o", "q", "r"): 12,
        ("a", "m.n", "o", "s"): 12, ("a", "m.n", "t"): 13, ("a", "m.n", "w"): 16,
    }  # fmt: skip
    assert {path: lines.get(path) for path in expected} == expected
    assert not {"e", "f", "u", "v"} & {path[-1] for path in lines}
    assert line_of(lines, ("a", "b", "z")) == 3 and line_of(lines, ("y",)) == 0


_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
_names = st.text("abc-_1", min_size=1, max_size=4) | _texts.map(toml_value)
_marks = st.text("xyz#=[]{}", max_size=3)
_values = st.recursive(
    st.integers(0, 9) | st.booleans() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_marks, inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.tuples(_names, _values), max_size=8, unique_by=lambda item: item[0].strip('"')))
def test_lines_of_any_keys(items: list[tuple[str, object]]) -> None:
    text = "".join(f"# x = 1\n{name} = {toml_value(value)}\n" for name, value in items)
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # two names that are one
    lines = key_lines(text)
    assert [lines[name,] for name in parsed] == [2 * at for at in range(1, len(parsed) + 1)]
