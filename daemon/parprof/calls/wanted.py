"""What a user may name functions by: a name, a pattern, a line of source code, or an address."""

from __future__ import annotations

import re
from functools import lru_cache

from parprof.errors import UsageError
from parprof.patterns import regex
from parprof.values import dataclass

_LINE = regex(r"(?P<file>.*[^:]):(?P<line>\d{1,8})\Z")
_ADDRESS = regex(r"0x[0-9a-fA-F]{1,16}\Z")
_NAMELESS = regex(r"(?P<module>[^/]+)\+(?P<address>0x[0-9a-fA-F]{1,16})\Z")
_OPERATOR = regex(r"\boperator *(?:<=>|<<=?|>>=?|->\*?|[<>]=?|\(\)|\[\])")
_FORTRAN = regex(r"__(\w+?)_MOD_(\w+)")
"""A procedure of a module, as GNU Fortran names it."""
_OCAML = regex(r"caml([A-Z]\w*?)(?:__|\.)([a-z_]\w*?)_\d+", re.ASCII)
"""A function of a module, as compilers of OCaml name it; the number tells those of one name apart."""
MAX_TEXT = 1 << 12
_WORD = regex(r"(?<![A-Za-z0-9_])[A-Za-z_][A-Za-z0-9_]{2,}|(?<=[*?])[A-Za-z_][A-Za-z0-9_]{2,}")
_DEMANGLERS_WORDS = (
    "std allocator basic_string string basic_istream basic_ostream basic_iostream istream ostream iostream char_traits "
    "void wchar_t bool char char8_t char16_t char32_t signed unsigned short int long __int128 float double __float128 "
    "decimal128 half _Float128x std::float128_t bfloat16_t _BitInt complex _Complex imaginary _Imaginary nullptr_t "
    "auto decltype const volatile restrict __restrict noexcept throw operator new delete co_await sizeof alignof "
    "typeid dynamic_cast static_cast const_cast reinterpret_cast true false this nullptr template typename requires "
    "lambda unnamed type default arg anonymous namespace block_pointer objcproto __vector pixel vector enable_if "
    "transaction_safe abi clone structured binding vtable typeinfo name fn for VTT construction virtual non thunk to "
    "covariant return guard variable reference temporary initializer module TLS init wrapper function hidden alias "
    "java Class resource global constructors destructors keyed constant pack string literal invocation "
    "closure shim impl as dyn mut unsafe extern usize isize str u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 "
    "for crate instance self Self Parse error ull ulong"
).split()
"""What a demangler writes though the symbol does not have it, or has it in another form."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One ``-f``. Exactly one of ``name``, ``file`` and ``address`` says what it is."""

    text: str
    name: str = ""
    """A function's name, with ``*`` and ``?`` for any characters, and any one."""
    file: str = ""
    """The function that has this line of this file, of whose path the end is given."""
    line: int = 0
    address: int | None = None
    """The function that has this address: in the process, or else in the executable file."""
    module: str = ""
    """The name of the file that has the address, as reports show a function without a name."""


def parse_wanted(text: str) -> Wanted:
    """What one ``-f`` asks for.

    >>> parse_wanted("solve_*").name, parse_wanted("ns::f").name, parse_wanted("a/s.c:40").line
    ('solve_*', 'ns::f', 40)
    >>> parse_wanted("libz.so.1+0x5d80").module
    'libz.so.1'

    Raises:
        UsageError: it says nothing, or too much.
    """
    if not text or text.isspace() or len(text) > MAX_TEXT or not text.isprintable():
        raise UsageError(
            f"-f {text[:40]!r} names no function: give a name, 'solve_*', file.c:40, 0xaddress or file+0xaddress"
        )
    if _ADDRESS.match(text):
        return Wanted(text, address=int(text, 16))
    if (nameless := _NAMELESS.match(text)) is not None:
        return Wanted(text, address=int(nameless["address"], 16), module=nameless["module"])
    if (line := _LINE.match(text)) is not None:
        return Wanted(text, file=line["file"], line=int(line["line"]))
    return Wanted(text, name=text)


@lru_cache(maxsize=1 << 10)
def _expression(pattern: str) -> re.Pattern[str]:
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
    return re.compile("".join(parts), re.DOTALL)


def names_many(pattern: str) -> bool:
    """Whether more than one name may be meant."""
    return "*" in pattern or "?" in pattern


@lru_cache(maxsize=1 << 10)
def in_every_symbol(pattern: str) -> str:
    """What the symbol of each function that is meant holds as it stands; empty: nothing is sure.

    All manglings (C++, both of Rust's) leave identifiers as they are. So few of a program's symbols need be demangled,
    which takes longer than all else: of node's 86,000 that are 3 s.

    >>> in_every_symbol("ns::Stack::push(int)"), in_every_symbol("*Date*Now*"), in_every_symbol("operator new")
    ('Stack', 'Date', '')
    """
    words = [word for word in _WORD.findall(pattern) if not any(word in other for other in _DEMANGLERS_WORDS)]
    return max(words, key=len, default="")


def matches(pattern: str, symbol: str, name: str) -> bool:
    """Whether a function is meant: by its symbol, its name for people, that without arguments, types or scopes.

    >>> matches("push", "_ZN5Stack4pushEi", "Stack::push(int)"), matches("Stack::p*", "", "Stack::push(int)")
    (True, True)
    >>> matches("push(a::T*)", "", "Stack::push(a::T*)"), matches("push(int)", "", "Stack::push(a::T*)")
    (True, False)
    """
    bare = without_arguments(name)
    plain = without_types(bare)
    forms = {symbol, name, bare, plain}
    if "::" not in without_arguments(pattern):
        last = without_scopes(bare)
        forms |= {last, last + name[len(bare) :], without_scopes(plain)}
    if (of_module := _FORTRAN.fullmatch(symbol)) is not None:
        forms |= {of_module[2], f"{of_module[1]}::{of_module[2]}"}
    if of_ocaml := ocaml_name(symbol):
        forms.add(of_ocaml)
    if not names_many(pattern):
        return pattern in forms
    expression = _expression(pattern)
    return any(expression.fullmatch(form) for form in forms if form)


def ocaml_name(symbol: str) -> str:
    """What OCaml's programmers call a function; empty: it is none of OCaml's.

    >>> ocaml_name("camlStdlib__List__fold_left_507"), ocaml_name("camlMain.solve_12"), ocaml_name("caml_raise_exn")
    ('Stdlib.List.fold_left', 'Main.solve', '')
    """
    found = _OCAML.fullmatch(symbol)
    return f"{re.sub('__(?=[A-Z])', '.', found[1])}.{found[2]}" if found is not None else ""


def without_arguments(name: str) -> str:
    """A C++ function's name up to its arguments.

    >>> without_arguments("ns::f<int (*)(char)>(int) const"), without_arguments("(anonymous namespace)::g()")
    ('ns::f<int (*)(char)>', '(anonymous namespace)::g')
    """
    depth = beyond = 0
    for at, char in enumerate(name):
        if char == "o" and not depth and (operator := _OPERATOR.match(name, at)) is not None:
            beyond = operator.end()  # what looks like brackets is its name
        if at < beyond:
            continue
        if char == "(" and depth == 0 and at and not name.startswith("(anonymous namespace)", at):
            if not name[:at].endswith("operator"):
                return name[:at]
        depth += (char == "<") - (char == ">" and depth > 0)
    return name


def without_types(name: str) -> str:
    """A name without what a template, or a generic function of Go's, was made for, and without marks of the ABI.

    >>> without_types("ns::pair<int, 3>::swap"), without_types("operator<< <int>"), without_types("main.gen[int]")
    ('ns::pair::swap', 'operator<<', 'main.gen')
    >>> without_types("<sc::Mode as core::fmt::Debug>::fmt")
    '<sc::Mode as core::fmt::Debug>::fmt'
    """
    if "<" not in name and "[" not in name:
        return name
    kept: list[str] = []
    depth = at = 0
    while at < len(name):
        char = name[at]
        if not depth and (operator := _OPERATOR.match(name, at)) is not None:
            kept.append(operator[0])
            at = operator.end()
            continue
        if char in "<[":
            if not depth and (not at or name.startswith("::", at - 2)):
                return name  # Rust's: the type is the scope
            depth += 1
        elif depth:
            depth -= char in ">]" and name[at - 1] != "-"
        else:
            kept.append(char)
        at += 1
    return "".join(kept).rstrip()


def without_scopes(name: str) -> str:
    """The last part of a qualified name.

    >>> without_scopes("std::vector<a::b>::push"), without_scopes("main")
    ('push', 'main')
    """
    depth = 0
    operators = [found.start() for found in _OPERATOR.finditer(name)]
    for at in range(operators[-1] if operators else len(name) - 1, 0, -1):
        char = name[at]
        depth += (char == ">") - (char == "<")
        if depth == 0 and name.startswith("::", at - 1):
            return name[at + 1 :]
    return name
