"""Physical stacks to call paths."""

from __future__ import annotations

from collections.abc import Sequence

from parprof.kernel.stacks import Stack
from parprof.logical.physical import NO_STACK, TRUNCATED, physical_path
from parprof.model import Frame
from parprof.profile.called import called

NAMES = {
    1: "leaf",
    2: "caller",
    3: "main",
    4: "__libc_start_call_main",
    5: "libc.so.6+0x10",
    6: "libc.so.6+0x20",
    9: "sys_read",
    10: "do_syscall_64",
    11: "__clone3",
}


def resolve(address: int, is_return: bool) -> tuple[Frame, ...]:
    module = "libc.so.6" if NAMES.get(address, "").startswith("libc") else "a.out"
    return (Frame(NAMES[address], module=module),) if address in NAMES else ()


def stack(addresses: Sequence[int], end: str = "") -> Stack:
    return Stack(tuple((address, index > 0) for index, address in enumerate(addresses)), end)


def names(*user: int, kernel: tuple[int, ...] = (), end: str = "frame_pointers") -> list[str]:
    return [frame.name for frame in physical_path(stack(user, end), stack(kernel), resolve, resolve)]


def test_root_first_and_begins_at_main() -> None:
    assert names(1, 2, 3, 4, 77) == ["main", "caller", "leaf"]


def test_garbage_beyond_the_stack_is_cut() -> None:
    assert names(1, 2, 99, 3) == [TRUNCATED.name, "caller", "leaf"]


def test_kernel_frames_are_the_leaf() -> None:
    assert names(1, 3, kernel=(9, 10)) == ["main", "leaf", "do_syscall_64", "sys_read"]


def test_who_creates_a_thread_is_in_clone_and_not_its_child() -> None:
    assert names(11, 2, 3, 4, end="complete") == ["main", "caller", "__clone3"]
    assert names(1, 2, 11, 77) == ["caller", "leaf"]
    assert names(11, end="complete") == ["__clone3"]


def test_no_user_stack() -> None:
    assert names(kernel=(9,)) == [NO_STACK.name, "sys_read"]


def test_inlined_frames_keep_their_order() -> None:
    def inlining(address: int, is_return: bool) -> tuple[Frame, ...]:
        return (Frame("inner", inlined=True), Frame("main"))

    path = physical_path(stack([1], "complete"), stack([]), inlining, inlining)
    assert [frame.name for frame in path] == ["main", "inner"]


def test_a_complete_stack_of_a_thread_begins_beyond_the_c_library() -> None:
    assert names(1, 2, 5, 6, end="complete") == ["caller", "leaf"]
    assert names(1, 2, 5, 6, end="bad_row") == [
        TRUNCATED.name,
        "libc.so.6+0x20",
        "libc.so.6+0x10",
        "caller",
        "leaf",
    ]


def test_what_the_loader_does_before_main_is_told_from_its_entry() -> None:
    """GIVEN a stack that has nothing but the loader's frames THEN they stay: not the innermost alone, be it a loop."""
    loader = "ld-linux-x86-64.so.2"
    frames = {
        1: (
            Frame("loop at dl-lookup.c:359", module=loader, is_loop=True),
            Frame("do_lookup_x", module=loader),
        ),
        2: (Frame("_dl_relocate_object", module=loader),),
        3: (Frame("_dl_start", module=loader),),
        4: (Frame("_start", module=loader),),
    }
    path = physical_path(stack([1, 2, 3, 4], "complete"), stack([]), lambda at, _: frames[at], resolve)
    assert [frame.name for frame in path] == [
        "_dl_start",
        "_dl_relocate_object",
        "do_lookup_x",
        "loop at dl-lookup.c:359",
    ]
    assert called(path, path) is None, "no function of the program's"


def test_a_thread_that_has_not_begun() -> None:
    frames = {1: (Frame("start_thread", module="libc.so.6"),), 2: (Frame("clone3", module="libc.so.6"),)}
    path = physical_path(stack([1, 2], "complete"), stack([]), lambda at, _: frames[at], resolve)
    assert [frame.name for frame in path] == ["start_thread"]
