"""The compiled object: from the disk cache or a compiler child, then loaded into the kernel by us."""

from __future__ import annotations

import base64
import ctypes
import errno
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from parprof import __version__
from parprof.cache import DiskCache
from parprof.errors import KernelUnsupported
from parprof.kernel import bpf
from parprof.kernel.compiler import OBJECT_HEADERS, OBJECT_PARTS, cpu_bound, pid_namespace, source_directory
from parprof.kernel.layout import check_size, make_structure
from parprof.kernel.linking import function_places, function_types
from parprof.kernel.our_code import OurCode
from parprof.kernel.refusals import bpf_not_permitted, program_refused

_COMPILE_SECONDS = 120
_CACHE_BYTES = 8 << 20
"""An object takes some 0.25 MiB."""
COMPILER_MODULES = ("compiler.py", "btf.py", "headers.py", "bcc_import.py", "cpus.py", "linking.py")
"""The modules here that make the object."""
_ARRAY_OF_MAPS = 12
_ENTRIES_AT_ONCE = 1024
_EDGE_UNWINDERS = "edge_unwinders"
_EDGE_PROGRAMS = ("on_edge_unwind", "on_edge_python")
"""By their index in that array."""
_MAP_LAYOUTS = {
    "counts": ("sample_key", "sample_value"),
    "processes": (None, "process"),
    "configs": (None, "process_config"),
    "threads": (None, "thread"),
    "scopes": (None, "scope"),
    "settings_map": (None, "settings"),
    "interpreters": (None, "interpreter"),
    "jvms": (None, "jvm"),
    "meters": (None, "meter"),
    "amount_plans": (None, "amount_plan"),
    "amounts": (None, "amount"),
    "call_counts": (None, "call_count"),
    "call_arcs": ("call_arc", "call_count"),
    "routine_times": (None, "routine_time"),
    "arc_times": ("call_arc", "arc_time"),
    "phase_sums": ("phase_site", "phase_sum"),
    "phase_processes": (None, "phase_process"),
}


def object_cache() -> DiskCache:
    """Where compiled objects are kept, those of other kernels and versions too."""
    return DiskCache("bpf", _CACHE_BYTES)


def cache_name() -> str:
    """The name in the cache of what the compiler child would make here: all that its output depends on."""
    digest = hashlib.sha256(
        f"{__version__} {os.uname().release} {os.uname().version} {pid_namespace()} {cpu_bound()}".encode()
    )
    with suppress(OSError):  # the kernel's build id: offsets from BTF belong to this build alone
        digest.update(Path("/sys/kernel/notes").read_bytes())
    for name in (*OBJECT_HEADERS, *OBJECT_PARTS):
        digest.update((source_directory() / name).read_bytes())
    for name in COMPILER_MODULES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return f"{digest.hexdigest()[:32]}.json"


def _number(key: bytes) -> int:
    return int.from_bytes(key, "little")


def _read_cached(cache: DiskCache, name: str) -> dict[str, Any] | None:
    try:
        loaded = json.loads(cache.read(name) or b"{}")
    except ValueError:
        return None
    is_whole = isinstance(loaded, dict) and {"maps", "programs", "layouts"} <= loaded.keys()
    return loaded if is_whole else None


def compile_in_child(output: Path) -> dict[str, Any]:
    """Run the compiler child and return the object.

    Raises:
        KernelUnsupported: with the child's last line, which names the remedy.
    """
    command = [sys.executable, "-P", "-m", "parprof.kernel.compiler", str(output)]
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[2]))
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelUnsupported(f"compiling the BPF programs took over {_COMPILE_SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        if done.returncode == 3 and lines:
            raise KernelUnsupported(lines[-1])
        told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
        raise KernelUnsupported(
            f"the BPF programs do not compile here (child ended with {done.returncode}): {told}"
        )
    loaded: dict[str, Any] = json.loads(output.read_text())
    return loaded


_UNKEPT: dict[str, dict[str, Any]] = {}
"""What this process compiled and the cache did not take."""


def get_object() -> dict[str, Any]:
    """The compiled object for this kernel, from the cache where possible."""
    cache = object_cache()
    name = cache_name()
    cached = _UNKEPT.get(name) or _read_cached(cache, name)
    if cached is not None:
        return cached
    with tempfile.TemporaryDirectory(prefix="parprof-") as scratch:
        compiled = compile_in_child(Path(scratch) / "object.json")
    if not cache.write(name, json.dumps(compiled).encode()):  # no cache is slower, not wrong
        _UNKEPT[name] = compiled
    return compiled


class LoadedObject:
    """Maps and programs in the kernel. Everything goes away with its descriptors."""

    def __init__(self, compiled: dict[str, Any], sizes: dict[str, int] | None = None) -> None:
        self.maps: dict[str, int] = {}
        self.definitions: dict[str, dict[str, int]] = {n: dict(d) for n, d in compiled["maps"].items()}
        self.layouts = {name: make_structure(name, fields) for name, fields in compiled["layouts"].items()}
        self._programs = compiled["programs"]
        self._loaded: dict[tuple[str, int], int] = {}
        self._guard = threading.Lock()
        self._loading: dict[tuple[str, int], threading.RLock] = {}
        """Of each program, held while it is loaded: another thread may be about to want it. Different ones are loaded
        at once: the verifier takes most of the time, and runs without the interpreter's lock."""
        self._closed = False
        self.our_code = OurCode()
        """Where the programs that were loaded lie in the kernel."""
        self._edge_arrays: dict[int, int] = {}
        self._interpreters = self._waits = self._compares = False
        self._more: threading.Thread | None = None
        for name, size in (sizes or {}).items():
            self.definitions[name]["max_entries"] = size
        for name, (key, value) in _MAP_LAYOUTS.items():
            if key:
                check_size(self.layouts[key], self.definitions[name]["key_size"])
            check_size(self.layouts[value], self.definitions[name]["value_size"])
        try:
            # the template of a map of maps comes first
            for name, d in sorted(
                self.definitions.items(), key=lambda item: item[1]["type"] == _ARRAY_OF_MAPS
            ):
                if not name.startswith("layout_"):
                    inner = self.maps["store_chunk"] if d["type"] == _ARRAY_OF_MAPS else 0
                    self.maps[name] = bpf.map_create(
                        d["type"], d["key_size"], d["value_size"], d["max_entries"], d["flags"], name, inner
                    )
        except OSError as error:
            self.close()
            more = (
                "; its memory counts as ours: raise the limit of our cgroup"
                if error.errno == errno.ENOMEM
                else ""
            )
            raise KernelUnsupported(f"creating BPF map {name}: {error.strerror}{more}") from error

    def program(self, name: str, expected_attach_type: int = 0) -> int:
        """Load a program (once for each attach type) and return its descriptor. In any thread."""
        with self._guard:
            if self._closed:
                raise OSError(errno.EBADF, "the maps are closed")
            lock = self._loading.setdefault((name, expected_attach_type), threading.RLock())
        with lock:
            return self._program(name, expected_attach_type)

    def _program(self, name: str, expected_attach_type: int) -> int:
        if self._closed:  # while we waited
            raise OSError(errno.EBADF, "the maps are closed")
        known = self._loaded.get((name, expected_attach_type))
        if known is not None:
            return known
        described = self._programs[name]
        code = bytearray(base64.b64decode(described["code"]))
        for offset, map_name in described["relocations"]:
            fd = self.maps[map_name]
            if map_name == _EDGE_UNWINDERS:
                fd = self._edge_array(expected_attach_type)
            struct.pack_into("<i", code, offset + 4, fd)
        try:
            fd = bpf.program_load(
                described["kind"],
                bytes(code),
                name,
                expected_attach_type,
                self._functions(described["functions"]),
            )
        except KernelUnsupported as error:
            # EACCES is what the verifier says of a program that it does not like
            permitted = not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EPERM)
            raise program_refused(error, permitted=permitted) from error
        self._loaded[name, expected_attach_type] = fd
        self.our_code.add(name, fd)
        return fd

    def _functions(self, functions: Sequence[tuple[str, int]]) -> bpf.Functions | None:
        """What the kernel wants to know of a program that has more than one function."""
        if len(functions) == 1:
            return None
        sizes = {name: definition["value_size"] for name, definition in self.definitions.items()}
        return bpf.Functions(
            function_types([name for name, _ in functions], sizes), function_places(functions)
        )

    def _edge_array(self, attach_type: int) -> int:
        """The programs that probes tail-call: the kernel wants those of one array to be of one attach type."""
        known = self._edge_arrays.get(attach_type)
        if known is not None:
            return known
        d = self.definitions[_EDGE_UNWINDERS]
        fd = bpf.map_create(
            d["type"], d["key_size"], d["value_size"], d["max_entries"], d["flags"], _EDGE_UNWINDERS
        )
        self._edge_arrays[attach_type] = fd
        for index, name in enumerate(_EDGE_PROGRAMS[: 2 if self._interpreters else 1]):
            self._put_program(fd, index, name, attach_type)
        return fd

    def _put_program(self, array: int | str, index: int, name: str, attach_type: int = 0) -> None:
        """``array``: a descriptor, or the name of a map. In any thread."""
        program = self.program(name, attach_type)
        with self._guard:
            if self._closed:
                raise OSError(errno.EBADF, "the maps are closed")
            fd = self.maps[array] if isinstance(array, str) else array
            bpf.map_update(fd, struct.pack("<I", index), struct.pack("<I", program))

    def load_ahead(self, names: Iterable[str]) -> None:
        """Load programs in threads of their own, all at once; who wants one of them meanwhile waits for that one."""
        for name in names:
            threading.Thread(
                target=self._load_ahead, args=(name,), name=f"parprof-{name}", daemon=True
            ).start()

    def _load_ahead(self, name: str) -> None:
        with suppress(OSError, KernelUnsupported):  # whoever wants it will try again, and be told
            self.program(name)

    def load_unwinder(self) -> None:
        """Load the programs that walk stacks for samples."""
        self._put_program("unwinders", 0, "on_unwind")
        self._put_program("unwinders", 2, "on_seek")

    def load_activations(self) -> None:
        """Load the program that compares the stacks of samples with those before, unless it is there."""
        if self._compares:
            return
        size = self.definitions["last_stacks"]["value_size"]
        bpf.map_update(self.maps["last_stacks"], struct.pack("<I", 0), bytes(size))
        self._put_program("unwinders", 3, "on_activations")
        self._compares = True

    def load_wait_unwinder(self) -> None:
        """Load the programs that walk the stacks of threads that go to sleep, or create others."""
        self._put_program("wait_unwinders", 0, "on_wait_unwind")
        self._put_program("wait_unwinders", 2, "on_wait_seek")
        self._waits = True
        if self._interpreters:
            self._load_interpreters_of_waits()

    def load_interpreters(self) -> None:
        """Load what walks the frames of interpreters, once it is needed: it takes the verifier a while."""
        if self._interpreters:
            return
        # an array that another thread makes meanwhile gets its program there or here
        self._interpreters = True
        self._put_program("unwinders", 4, "on_python_code")
        self._put_program("unwinders", 1, "on_python")
        self._more = threading.Thread(target=self._load_more_interpreters, name="parprof-python", daemon=True)
        self._more.start()

    def await_interpreters(self) -> None:
        """Wait until all of `load_interpreters` is there."""
        if self._more is not None:
            self._more.join()

    @property
    def are_interpreters_coming(self) -> bool:
        """Whether some of `load_interpreters` is not there yet."""
        return self._more is not None and self._more.is_alive()

    def _load_more_interpreters(self) -> None:
        """The same for waits and for creations of work, while a program that has just started goes on."""
        with suppress(OSError, KernelUnsupported):
            for attach_type, fd in list(self._edge_arrays.items()):
                self._put_program(fd, 1, _EDGE_PROGRAMS[1], attach_type)
            if self._waits:
                self._load_interpreters_of_waits()

    def _load_interpreters_of_waits(self) -> None:
        self._put_program("wait_unwinders", 3, "on_wait_code")
        self._put_program("wait_unwinders", 1, "on_wait_python")

    def program_names(self) -> list[str]:
        """Names of all programs of the object, loaded or not."""
        return list(self._programs)

    def loaded_programs(self) -> dict[str, int]:
        """Descriptors of the programs loaded so far, by name."""
        return {name: fd for (name, _), fd in list(self._loaded.items())}

    def get(self, map_name: str, key: bytes, layout: str) -> Any:
        """The structure under ``key``, or None."""
        raw = bpf.map_lookup(self.maps[map_name], key, self.definitions[map_name]["value_size"])
        return None if raw is None else self.layouts[layout].from_buffer_copy(raw)

    def entries(self, map_name: str, layout: str, key_layout: str = "") -> Iterator[tuple[Any, Any]]:
        """Key and structure of all entries of a map. The key is a structure too, or a number without ``key_layout``."""
        definition, fd = self.definitions[map_name], self.maps[map_name]
        key_of = self.layouts[key_layout].from_buffer_copy if key_layout else _number
        found = bpf.map_read_all(fd, definition["key_size"], definition["value_size"], _ENTRIES_AT_ONCE)
        for key, raw in found:
            yield key_of(key), self.layouts[layout].from_buffer_copy(raw)

    def put(self, map_name: str, key: bytes, value: ctypes.Structure, flags: int = bpf.ANY) -> None:
        """Store a structure."""
        bpf.map_update(self.maps[map_name], key, bytes(value), flags)

    def close(self) -> None:
        """Close every descriptor; programs and maps that nothing else holds are freed."""
        with self._guard:
            self._closed = True
            under_way = list(self._loading.values())
        for lock in under_way:
            with lock:  # whoever comes by it from now on finds that it is too late
                pass
        for fd in [*self._loaded.values(), *self._edge_arrays.values(), *self.maps.values()]:
            with suppress(OSError):
                os.close(fd)
        self._loaded.clear()
        self._edge_arrays.clear()
        self.maps.clear()


def load_object(sizes: dict[str, int] | None = None) -> LoadedObject:
    """The object for this kernel, its maps made. ``sizes``: of maps that are to have another size, in entries.

    Raises:
        PrivilegeError: it is not permitted; KernelUnsupported: the kernel lacks something.
    """
    try:
        return LoadedObject(get_object(), sizes)
    except KernelUnsupported as error:
        if isinstance(error.__cause__, PermissionError):
            raise bpf_not_permitted() from error
        raise
