"""Whose code a frame is: only what its reader can change is ever named as a cause.

A frame is told by its file, its module and its name, whether or not there is line information: the C library of a
distribution often has some where the program has none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum

from parprof.files.dso import ANONYMOUS
from parprof.model import Frame
from parprof.patterns import regex

SCRIPT = "python"
"""The module of frames of Python code."""


class Owner(IntEnum):
    """Whose code it is, the nearest to the reader first."""

    PROGRAM = 0
    """The program's own files, its scripts, and what was compiled at run time."""
    LIBRARY = 1
    """A library that the program uses."""
    SYSTEM = 2
    """What every program has below it: C library, loader, runtimes of languages and of threads, the kernel."""


_SYSTEM_MODULES = regex(
    r"\[|linux-vdso|ld[-.]|(?:lib(?:c|m|dl|rt|pthread|util|stdc\+\+|c\+\+|c\+\+abi|gcc_s|unwind|gfortran|quadmath|flang\w*|"
    r"gomp|omp|iomp5|omp5|tbb|tbbmalloc|opencilk|cilkrts|cilk|jemalloc|tcmalloc|mimalloc|jvm|jli|jimage|java|verify|node|ruby|julia|R|mono\w*|coreclr|clrjit)(?!\w)"
    r"|lib(?:python|std-)\S*)[-.\d]*"
)
"""Match the base names of files."""
_MPI = regex(
    r"lib(?:mpi(?:ch)?(?:_\w+|f\d*|fort|cxx)*|open-(?:pal|rte)|prrte|pmix|uc[mpst](?:_\w+)?|psm2?|infinipath|fabric)\.so|"
    r"(?:pmix_|lib)?mca_\w+\.so|(?:mpi(?:run|exec)|hydra_|ort(?:erun|ed)|prte|prun)[\w.]*\Z"
)
"""Its libraries, and the programs that start processes for it."""
_INTERPRETERS = regex(
    r"(?:lib)?(?:python|pypy|node|nodejs|java|ruby|perl|php|julia|lua(?:jit)?|tcl(?:sh)?|guile|[gm]?awk|R|beam\.smp|mono(?:-sgen|-boehm)?)"
    r"-?[\d.]*(?:\.so\S*)?\Z"
)
_OF_PERL = regex(r"(?:threads|shared)\.so\Z")
"""What it runs programs by in threads: its only modules with common names that others' code is below."""
_SYSTEM_NAMES = regex(
    r"std::|__gnu_cxx::|__cxxabiv1::|core::|alloc::|<(?:core|alloc|std)::|_ZN?K?(?:St|4core|3std|5alloc|9__gnu_cxx)|"
    r"_R(?:(?!Cs\w+?_\d).)*Cs[0-9A-Za-z]+_(?:3std|4core|5alloc)|rust_begin|__rust|runtime\.|"
    r"_*(?:GOMP|GOACC|gomp|goacc|kmpc?|libc|pthread|GI|dl|tls|run_exit|IO|nptl|gfortran|cxa|libc_start)_|_start\Z|"
    r"__(?:libc_)?start|clone3?\Z|__clone3?\Z|start_thread\Z|exit\Z|_exit\Z|"
    r"caml_|camlStdlib__|camlCamlinternal|caml(?:Thread|Mutex|Condition|Event|Unix|Domain)__|"
    r"(?:SYSTEM|CTHREADS|CLASSES|SYSUTILS|OBJPAS|SI_\w+|UNIX|BASEUNIX|SYNCOBJS|PTHREADS|MATH|STRUTILS|TYPINFO|RTLCONSTS)_\$\$?_|"
    r"fpc_|FPC_|"
    r"(?:x_)?_?cgo_|runtime/cgo|crosscall|threadentry\Z"
)
_SYSTEM_SOURCES = regex(
    r"<frozen|node:|/rustc/|.*/library/(?:std|core|alloc)/src/|/usr/(?:include|lib/gcc|lib/llvm)|.*/include/c\+\+/|"
    r".*/lib/python\d[\d.]*/(?!site-packages|dist-packages)|.*/lib/go[^/]*/src/runtime|.*/go/src/runtime"
)
_GO_LIBRARY = regex(
    r".*/go[^/]*/src/(?:archive|bufio|bytes|cmp|compress|container|context|crypto|database|debug|embed|encoding|errors|"
    r"expvar|flag|fmt|go|hash|html|image|index|internal|io|iter|log|maps|math|mime|net|os|path|plugin|reflect|regexp|"
    r"slices|sort|strconv|strings|structs|sync|syscall|testing|text|time|unicode|unique|unsafe|vendor|weak)(?:/|\Z)"
)
"""Its own packages: a program's may lie beside them, in a workspace that is called go, too."""
_LIBRARY_SOURCES = regex(
    r".*/(?:site|dist)-packages/|.*/\.?cargo/registry/|.*/node_modules/|.*/go/pkg/mod/|.*/vendor/[^/]+/"
)
_LIBRARY_NAMES = regex(
    r"(?:_ZN\d+)?<?(?:rayon|rayon_core|crossbeam_\w+|tokio|futures_\w+|async_std|smol|parking_lot\w*|lock_api)(?:::|\d+\w)|"
    r"tbb::|boost::(?:asio|thread|detail)|folly::|absl::|Eigen::"
)
"""Of what runs the program's work on threads, and has no file where there is no line information."""
_LOOPS = regex(
    r"(?:uv_run|ev_run|event_base_(?:loop|dispatch)|event_(?:loop|dispatch)|g_main_(?:loop|context)_|g_application_run|"
    r"gtk_main|sd_event_(?:loop|run)|pa_mainloop_|glutMainLoop|Fl::run|wxEntry|Q(?:Core|Gui)?Application::exec|QEventLoop::|"
    r"QMetaObject::activate|boost::asio::(?:detail::)?\w*(?:io_context|scheduler)\w*::run|"
    r"std::rt::lang_start|_RNv\w*2rt\d+lang_start|_ZN3std2rt\d+lang_start|_d_run_main)"
)
"""Functions of libraries that run a program from then on; and of languages (Rust, D), by which main does."""
_OF_ONE_PROJECT = 2
"""So many folders have two files of one project in common, from the root on, as ``/home/me``."""
_EXTENSION = regex(r"(\w+)\.(?:cpython|pypy)-\S+\.so")
_SYSTEM_FOLDERS = regex(r"/(?:usr/|build/|lib|opt/|nix/|snap/|gnu/store/)|.*/(?:site|dist)-packages/")
_COMPILED_SYSTEM = regex(
    r"\[|py::|(?:Builtin|BytecodeHandler|Stub|RegExp|Handler):|(?:\S+ )?node:internal|"
    r"(?:\S+ )?[\w.$]*\$\$Lambda\b|"
    r"Interpreter\Z|StubRoutines\b|I2C/C2I |\w+Blob\Z|[vi]table |\w+[ _]stub\b|Signature Handler|"
    r"(?:[\w.$\[\]]+ )?(?:javax?|jdk|sun|com\.sun)\.[^ (]*(?:\(|\Z)|\[*L(?:javax?|jdk|sun|com/sun)/|"
    r"\$(?:global::|(?:erts_\w+|erlang|lists|maps|sets|ordsets|orddict|dict|gb_\w+|proplists|queue|array|string|binary|"
    r"unicode|ets|dets|io|io_lib\w*|file|filelib|filename|re|rand|math|timer|proc_lib|gen|gen_\w+|supervisor|"
    r"code\w*|init|error_handler|prim_\w+|'Elixir\.(?:Enum|Map|List|String|Stream|Keyword|Task|GenServer|Agent)'):)|"
    r"(?:System|Microsoft|Mono|Interop)[.:/]|\(wrapper "
)
"""Names of code that was compiled at run time and is no program's: V8's and HotSpot's own, the libraries of Java, of
Erlang and of .NET, and what CPython puts before each of its functions for perf."""
_SENT = regex(r"<(?:dynamic-code|ipython-input)")
"""Files, as cloudpickle and IPython call them, of the program's functions that came from another process (dask, ray,
joblib, Spark) or from a cell."""
_NAMELESS = regex(r".*\+0x[0-9a-f]+")
_MANY_NAMED = 0.25
"""For each function without a name so many with one: else it is no good part of them."""
_ADDRESS = regex(r"0x[0-9a-f]+\Z|\[")


def script_folders(frames: Iterable[Frame]) -> frozenset[str] | None:
    """Where the scripts of a program lie; ``None`` if it runs none."""
    files = {frame.file for frame in frames if frame.module == SCRIPT}
    if not files:
        return None
    own = (file for file in files if file.startswith("/") and _by_source(file) is Owner.PROGRAM)
    return frozenset(map(os.path.dirname, own))


def nameless_files(by_process: Mapping[int, Iterable[Frame]], ownership: Ownership) -> frozenset[str]:
    """The own files without symbols of programs of which nothing has a name but ``main``. A plug-in of a program that
    has names is none of these, nor is a program that has some, beside one of the same job that has none.

    ``by_process``: by PID, what was seen to run there.
    """
    files: set[str] = set()
    named: set[str] = set()
    for frames in by_process.values():
        own = [frame for frame in frames if not frame.is_loop and ownership.of(frame) is Owner.PROGRAM]
        modules = {frame.module for frame in own}
        files |= modules
        if not all(is_of_stripped(frame.name, frame.file) for frame in own):
            named |= modules
    return frozenset(files - named)


def is_of_stripped(name: str, file: str) -> bool:
    """Whether a function of the program's may be one of a file without symbols."""
    return bool(_NAMELESS.fullmatch(name)) or (name == "main" and not file)


def partly_named(
    frames: Iterable[Frame], ownership: Ownership, *, shows_libraries: bool = False
) -> frozenset[str]:
    """The program's own files that are stripped but for what they export, which is a good part of their functions, as
    of programs that have plug-ins: there a function without a name is best told by its caller that has one.

    ``shows_libraries``: so it is in libraries, however few functions they export.
    """
    named: dict[str, set[str]] = {}
    nameless: dict[str, set[str]] = {}
    libraries: set[str] = set()
    for frame in frames:
        owner = ownership.of(frame)
        if shows_libraries and owner is Owner.LIBRARY and not frame.is_loop:
            libraries.add(frame.module)
        elif frame.is_loop or frame.name == "main" or owner is not Owner.PROGRAM:
            continue
        found = nameless if is_of_stripped(frame.name, frame.file) else named
        found.setdefault(frame.module, set()).add(frame.name)
    return frozenset(
        module
        for module, names in nameless.items()
        if len(named.get(module, ())) >= _MANY_NAMED * len(names) or module in libraries
    )


class Ownership:
    """Says whose code frames are, and remembers it."""

    def __init__(self, folders: Collection[str] | None = None) -> None:
        """``folders``: where the program's scripts lie, if it has some. A shared library of a script is its program's
        only if it was made of sources near these: those of wheels were wherever its makers had them."""
        self._folders = folders
        self._known: dict[tuple[str, str, str], Owner] = {}

    def of(self, frame: Frame) -> Owner:
        """Whose code a frame is. A loop is its function's; its own frame says only where it stands."""
        key = frame.name, frame.module, frame.file
        owner = self._known.get(key)
        if owner is None:
            owner = _owner(frame)
            if owner is Owner.PROGRAM and (self._is_of_a_wheel(frame) or self._is_made(frame)):
                owner = Owner.LIBRARY
            self._known[key] = owner
        return owner

    def _is_made(self, frame: Frame) -> bool:
        """Whether it is text that a library put together and had run, as for a class of data, and not ``python -c``."""
        made = frame.module == SCRIPT and frame.file.startswith("<") and bool(self._folders)
        return made and not _SENT.match(frame.file)

    def _is_of_a_wheel(self, frame: Frame) -> bool:
        """Whether a script uses code that is not the program's, as far as sources tell."""
        if self._folders is None or ".so" not in frame.module or frame.module.startswith("/"):
            return False
        return not any(_are_near(frame.file, folder) for folder in self._folders)


def _owner(frame: Frame) -> Owner:
    if frame.name.startswith("["):
        return Owner.SYSTEM
    if frame.module == SCRIPT:
        return _by_source(frame.file)
    if frame.module == ANONYMOUS:
        return Owner.SYSTEM if _COMPILED_SYSTEM.match(frame.name) else _by_source(frame.file)
    base = os.path.basename(frame.module)
    if not frame.module:
        return Owner.SYSTEM if not frame.name or _ADDRESS.match(frame.name) else Owner.PROGRAM
    if _SYSTEM_MODULES.match(base) or _INTERPRETERS.match(base) or _OF_PERL.match(base):
        return Owner.SYSTEM
    if _is_of_interpreter(base):
        return Owner.SYSTEM
    if _MPI.match(base):
        return Owner.SYSTEM
    if _SYSTEM_NAMES.match(frame.name):
        return Owner.SYSTEM
    if _LIBRARY_NAMES.match(frame.name):
        return Owner.LIBRARY
    if ".so" in base and not _is_own_library(frame):
        return Owner.LIBRARY
    return _by_source(frame.file)


def is_of_interpreter(frame: Frame) -> bool:
    """Whether it is code of what runs scripts, as of Perl, R or Python; not of their libraries."""
    return not frame.is_loop and _INTERPRETERS.match(os.path.basename(frame.module)) is not None


def is_of_script(frame: Frame) -> bool:
    """Whether it is a function that an interpreter runs: read, or compiled at run time."""
    return frame.module in (SCRIPT, ANONYMOUS)


def is_nameless_code(frame: Frame) -> bool:
    """Whether code of a program runs there that was given no name: it was compiled at run time, or is read by HotSpot's
    interpreter."""
    return frame.name == ANONYMOUS or (frame.module == ANONYMOUS and frame.name == "Interpreter")


def runs_others_work(frame: Frame) -> bool:
    """Whether code that is not the program's only runs what it was handed, now or later: an event loop, a pool, or a
    framework, which a library is that is in Python itself (click, unittest, Flask). A sort is no such thing."""
    return frame.module == SCRIPT or _LOOPS.match(frame.name) is not None


def interpreter(program: str) -> str:
    """The name of a program, by its path, that only runs others: ``ruby``, ``R``, ``beam.smp``; else empty."""
    base = os.path.basename(program)
    return base if _INTERPRETERS.match(base) else ""


def _is_of_interpreter(base: str) -> bool:
    """Whether a file is a module in C of Python's own library."""
    extension = _EXTENSION.fullmatch(base)
    return extension is not None and extension[1] in sys.stdlib_module_names


def _is_own_library(frame: Frame) -> bool:
    """Whether a shared library is the program's: it, or its source, is where no distribution puts any.

    Modules are mostly known by their base names alone.
    """
    if frame.module.startswith("/"):
        return not _SYSTEM_FOLDERS.match(frame.module)
    return frame.file.startswith("/") and not _SYSTEM_FOLDERS.match(frame.file)


def _are_near(file: str, folder: str) -> bool:
    """Whether a source file may be of the same project as the scripts in a folder.

    >>> _are_near("/home/me/p/src/fast.c", "/home/me/p/bin"), _are_near("/io/numba/_dispatcher.cpp", "/home/me/p")
    (True, False)
    """
    parts, others = file.split("/")[1:-1], folder.split("/")[1:]
    same = next(
        (at for at, (one, other) in enumerate(zip(parts, others, strict=False)) if one != other), None
    )
    if same is not None:
        return same >= _OF_ONE_PROJECT
    return parts == others or (len(others) <= len(parts) and others != ["tmp"])


def _by_source(file: str) -> Owner:
    if _LIBRARY_SOURCES.match(file) or _GO_LIBRARY.match(file):
        return Owner.LIBRARY
    return Owner.SYSTEM if _SYSTEM_SOURCES.match(file) else Owner.PROGRAM
