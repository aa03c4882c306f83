"""The bpf(2) and perf_event_open(2) system calls, as far as the profiler needs them.

Attributes are packed by hand because libbpf 1.1 (Debian 12) does not know multi-uprobe links. All functions
return plain file descriptors or bytes; failures are OSError with the kernel's errno.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from parprof.errors import KernelUnsupported

_SYS_BPF, _SYS_PERF_EVENT_OPEN = 321, 298
MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_GET_NEXT_KEY, PROG_LOAD = range(6)
PROG_TEST_RUN, RAW_TRACEPOINT_OPEN, MAP_LOOKUP_BATCH, MAP_DELETE_BATCH = 10, 17, 24, 27
OBJ_GET_INFO_BY_FD, BTF_LOAD, LINK_CREATE, ENABLE_STATS = 15, 18, 28, 32
ANY, NOEXIST, EXIST = 0, 1, 2
PROG_TYPES = {"kprobe": 2, "perf_event": 7, "raw_tracepoint": 17}
ATTACH_PERF_EVENT, ATTACH_UPROBE_MULTI, ATTACH_UPROBE_SESSION = 41, 48, 57
_ENOENT, _E2BIG, _ENOSPC = 2, 7, 28
_DISTURBED_TRIES = 8
"""A debugger's stops, which no thread can hold off, may disturb so often."""
_MOST_ARGUMENTS = 12
"""Of a raw tracepoint: the kernel's MAX_BPF_FUNC_ARGS."""
_FUNCTION_PLACE_BYTES = 8
_INFO_BYTES, _INFO_FUNCTIONS = 232, 104
"""Of a struct bpf_prog_info, as far as it is read here; and where it tells of the program's functions."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *plain))
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    return result


def _bpf(command: int, attributes: bytes | bytearray) -> tuple[int, bytes]:
    buffer = ctypes.create_string_buffer(bytes(attributes).ljust(160, b"\0"), 160)
    result = _syscall(_SYS_BPF, command, buffer, 160)
    return result, buffer.raw


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def _address_of(data: bytes) -> int:
    """Where the kernel can read these bytes as long as they live.

    For those of any length: ctypes makes a class for each length of an array, and only the collector of cycles takes it
    away again.
    """
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def map_create(
    kind: int, key_size: int, value_size: int, max_entries: int, flags: int, name: str, inner_fd: int = 0
) -> int:
    """Create a map and return its descriptor (close-on-exec). ``inner_fd``: the template of a map of maps."""
    sizes = (kind, key_size, value_size, max_entries, flags, inner_fd, 0)
    return _bpf(MAP_CREATE, struct.pack("<7I16s", *sizes, name.encode()[:15]))[0]


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """The value under ``key``, or None."""
    k, v = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value_size)
    try:
        _bpf(MAP_LOOKUP, struct.pack("<IxxxxQQQ", fd, _address(k), _address(v), 0))
    except OSError as error:
        if error.errno == _ENOENT:
            return None
        raise
    return v.raw


def map_update(fd: int, key: bytes, value: bytes, flags: int = ANY) -> None:
    """Store ``value`` under ``key``."""
    k, v = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, len(value))
    _bpf(MAP_UPDATE, struct.pack("<IxxxxQQQ", fd, _address(k), _address(v), flags))


def map_delete(fd: int, key: bytes) -> bool:
    """Delete ``key``; False when it was not there."""
    k = ctypes.create_string_buffer(key, len(key))
    try:
        _bpf(MAP_DELETE, struct.pack("<IxxxxQQQ", fd, _address(k), 0, 0))
    except OSError as error:
        if error.errno == _ENOENT:
            return False
        raise
    return True


def map_read_all(fd: int, key_size: int, value_size: int, chunk: int = 4096) -> Iterator[tuple[bytes, bytes]]:
    """All entries of a hash map, in batches. Entries written meanwhile may or may not be seen."""
    keys = ctypes.create_string_buffer(key_size * chunk)
    values = ctypes.create_string_buffer(value_size * chunk)
    cursor = ctypes.create_string_buffer(max(key_size, 8))
    following = ctypes.create_string_buffer(max(key_size, 8))
    first, done = True, False
    while not done:
        attributes = struct.pack(
            "<QQQQIIQQ",
            0 if first else _address(cursor),
            _address(following),
            _address(keys),
            _address(values),
            chunk,
            fd,
            0,
            0,
        )
        buffer = ctypes.create_string_buffer(attributes.ljust(160, b"\0"), 160)
        try:
            _syscall(_SYS_BPF, MAP_LOOKUP_BATCH, buffer, 160)
        except OSError as error:
            if error.errno == _ENOSPC and chunk < 1 << 20:  # one hash bucket holds more than a chunk
                yield from map_read_all(fd, key_size, value_size, chunk * 16)
                return
            if error.errno != _ENOENT:
                raise
            done = True
        count = struct.unpack_from("<I", buffer.raw, 32)[0]
        raw_keys, raw_values = keys.raw, values.raw
        for index in range(count):
            yield (
                raw_keys[index * key_size : (index + 1) * key_size],
                raw_values[index * value_size : (index + 1) * value_size],
            )
        cursor, following = following, cursor
        first = False


def map_delete_batch(fd: int, keys: list[bytes]) -> None:
    """Delete many keys of a hash map; those already gone are skipped."""
    done = 0
    while done < len(keys):
        rest = b"".join(keys[done:])
        attributes = struct.pack("<QQQQIIQQ", 0, 0, _address_of(rest), 0, len(keys) - done, fd, 0, 0)
        raw = ctypes.create_string_buffer(attributes.ljust(160, b"\0"), 160)
        try:
            _syscall(_SYS_BPF, MAP_DELETE_BATCH, raw, 160)
            return
        except OSError as error:
            if error.errno != _ENOENT:
                raise
            done += struct.unpack_from("<I", raw.raw, 32)[0] + 1


class Functions(NamedTuple):
    """What the kernel is told of the functions of a program."""

    types: bytes
    """BTF."""
    places: bytes
    """An array of ``struct bpf_func_info``."""


def btf_load(types: bytes) -> int:
    """Give the kernel BTF; its descriptor."""
    buffer = ctypes.create_string_buffer(types, len(types))
    return _bpf(BTF_LOAD, struct.pack("<QQIII", _address(buffer), 0, len(types), 0, 0))[0]


def program_load(
    kind: str, code: bytes, name: str, expected_attach_type: int = 0, functions: Functions | None = None
) -> int:
    """Load a program and return its descriptor. ``functions``: where it has more than one.

    Raises:
        KernelUnsupported: the kernel refused it; the text ends with the verifier's last words.
    """
    try:
        types = btf_load(functions.types) if functions else 0
    except OSError as error:
        raise KernelUnsupported(
            f"the kernel refused the types of BPF program {name}: {error.strerror}"
        ) from error
    try:
        return _program_load(
            kind, code, name, expected_attach_type, types, functions.places if functions else b""
        )
    finally:
        if types:
            os.close(types)


def _program_load(
    kind: str, code: bytes, name: str, expected_attach_type: int, types: int, places: bytes
) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    functions = ctypes.create_string_buffer(places, len(places) + 1)
    log = ctypes.create_string_buffer(1)
    for attempt in range(2):
        level, size = (0, 0) if attempt == 0 else (1, len(log))
        attributes = struct.pack(
            "<IIQQIIQII16sIIIIQI",
            PROG_TYPES[kind],
            len(code) // 8,
            _address(instructions),
            _address(licence),
            level,
            size,
            _address(log) if level else 0,
            0,
            0,
            name.encode()[:15],
            0,
            expected_attach_type,
            types,
            _FUNCTION_PLACE_BYTES if places else 0,
            _address(functions) if places else 0,
            len(places) // _FUNCTION_PLACE_BYTES,
        )
        try:
            return _undisturbed(PROG_LOAD, attributes)
        except OSError as error:
            failure = error
            if attempt == 0:
                log = ctypes.create_string_buffer(16 << 20)
    words = log.value.decode(errors="replace").strip().splitlines()[-4:-1]
    raise KernelUnsupported(
        f"the kernel refused BPF program {name}: {failure.strerror}: {' / '.join(words)}"
    ) from failure


def _undisturbed(command: int, attributes: bytes) -> int:
    """The command's descriptor. The verifier gives up where a signal waits for the thread, an ended child's say."""
    with suppress(BlockingIOError):
        return _bpf(command, attributes)[0]
    with _signals_held_off():
        for _ in range(_DISTURBED_TRIES):
            with suppress(BlockingIOError):
                return _bpf(command, attributes)[0]
        return _bpf(command, attributes)[0]


@contextmanager
def _signals_held_off() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raw_tracepoint_open(name: str, program: int) -> int:
    """Attach ``program`` to a raw tracepoint; closing the descriptor detaches it."""
    label = ctypes.create_string_buffer(name.encode())
    return _bpf(RAW_TRACEPOINT_OPEN, struct.pack("<QI", _address(label), program))[0]


def run_raw_tracepoint(program: int, arguments: tuple[int, ...]) -> int:
    """Run a program of a raw tracepoint here and now, and return what it returned."""
    arguments += (0,) * (
        _MOST_ARGUMENTS - len(arguments)
    )  # the kernel wants all that the program may look at
    context = ctypes.create_string_buffer(struct.pack(f"<{_MOST_ARGUMENTS}Q", *arguments))
    _, raw = _bpf(
        PROG_TEST_RUN,
        struct.pack(
            "<IIIIQQIIIIQQII", program, 0, 0, 0, 0, 0, 0, 0, 8 * len(arguments), 0, _address(context), 0, 0, 0
        ),
    )
    return int(struct.unpack_from("<I", raw, 4)[0])


def link_perf_event(program: int, event: int, cookie: int) -> int:
    """Attach ``program`` to a perf event with a cookie; closing the descriptor detaches it."""
    return _bpf(LINK_CREATE, struct.pack("<IIIIQ", program, event, ATTACH_PERF_EVENT, 0, cookie))[0]


def link_uprobe_multi(
    program: int,
    path: str,
    offsets: list[int],
    cookies: list[int],
    *,
    attach_type: int,
    returns: bool,
    pid: int,
) -> int:
    """Attach ``program`` to many offsets of a file at once. ``pid`` 0 means every process."""
    count = len(offsets)
    raw_offsets = ctypes.create_string_buffer(struct.pack(f"<{count}Q", *offsets))
    raw_cookies = ctypes.create_string_buffer(struct.pack(f"<{count}Q", *cookies))
    raw_path = ctypes.create_string_buffer(os.fsencode(path))
    attributes = struct.pack(
        "<IIIIQQQQIII",
        program,
        0,
        attach_type,
        0,
        _address(raw_path),
        _address(raw_offsets),
        0,
        _address(raw_cookies),
        count,
        1 if returns else 0,
        pid,
    )
    return _bpf(LINK_CREATE, attributes)[0]


def enable_stats() -> int:
    """Have the kernel measure program run times until the descriptor is closed."""
    return _bpf(ENABLE_STATS, struct.pack("<I", 0))[0]


def program_run_stats(fd: int) -> tuple[int, int]:
    """(nanoseconds, runs) of a program while statistics were enabled."""
    nanoseconds, runs = struct.unpack_from("<QQ", _program_info(fd), 192)
    return int(nanoseconds), int(runs)


def program_code(fd: int) -> tuple[str, list[tuple[int, int]]]:
    """A program's tag, and where each of its functions lies in the kernel: address (0: not told) and bytes."""
    info = _program_info(fd)
    tag, count = info[8:16].hex(), struct.unpack_from("<I", info, _INFO_FUNCTIONS)[0]
    starts, sizes = ctypes.create_string_buffer(8 * count), ctypes.create_string_buffer(4 * count)
    asked = struct.pack("<IIQQ", count, count, _address(starts), _address(sizes))
    _program_info(fd, b"\0" * _INFO_FUNCTIONS + asked)
    return tag, list(
        zip(struct.unpack(f"<{count}Q", starts.raw), struct.unpack(f"<{count}I", sizes.raw), strict=True)
    )


def verified_instructions(fd: int) -> int:
    """How many instructions the verifier went through for a program; 0: this kernel (before 5.16) does not tell."""
    return int(struct.unpack_from("<I", _program_info(fd), 216)[0])


def _program_info(fd: int, asked: bytes = b"") -> bytes:
    """What the kernel says of a program, a struct bpf_prog_info. ``asked``: how that begins where more is wanted."""
    info = ctypes.create_string_buffer(asked, _INFO_BYTES)
    _bpf(OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), _address(info)))
    return info.raw


def perf_event_open(attributes: bytes, pid: int, cpu: int) -> int:
    """perf_event_open with close-on-exec and no group."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return _syscall(_SYS_PERF_EVENT_OPEN, buffer, pid, cpu, -1, 8)


def perf_event_of_process(attributes: bytes, pid: int) -> int:
    """An event of one process; ``pid`` 0 means every process."""
    if pid:
        return perf_event_open(attributes, pid, -1)
    return perf_event_open(attributes, -1, 0)  # of one CPU; but its program runs wherever the probe is hit
