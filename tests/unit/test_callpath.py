"""Physical stacks to call paths."""

from __future__ import annotations

from parprof.callpath import NO_STACK, TRUNCATED, physical_path
from parprof.model import Frame

NAMES = {1: "leaf", 2: "caller", 3: "main", 4: "__libc_start_call_main", 9: "sys_read", 10: "do_syscall_64"}


def resolve(address: int, is_return: bool) -> tuple[Frame, ...]:
    return (Frame(NAMES[address]),) if address in NAMES else ()


def names(*user: int, kernel: tuple[int, ...] = ()) -> list[str]:
    return [frame.name for frame in physical_path(user, kernel, resolve, resolve)]


def test_root_first_and_begins_at_main() -> None:
    assert names(1, 2, 3, 4, 77) == ["main", "caller", "leaf"]


def test_garbage_beyond_the_stack_is_cut() -> None:
    assert names(1, 2, 99, 3) == [TRUNCATED.name, "caller", "leaf"]


def test_kernel_frames_are_the_leaf() -> None:
    assert names(1, 3, kernel=(9, 10)) == ["main", "leaf", "do_syscall_64", "sys_read"]


def test_no_user_stack() -> None:
    assert names(kernel=(9,)) == [NO_STACK.name, "sys_read"]


def test_inlined_frames_keep_their_order() -> None:
    def inlining(address: int, is_return: bool) -> tuple[Frame, ...]:
        return (Frame("inner", inlined=True), Frame("main"))

    assert [f.name for f in physical_path([1], [], inlining, inlining)] == ["main", "inner"]
