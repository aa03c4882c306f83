"""What sleeping threads wait for: parprof.attribution.waiting. Stacks as Linux 6.1 to 6.18 have them."""

from __future__ import annotations

import pytest

from parprof.attribution.waiting import WaitKind, wait_kind

STACKS = {
    "__schedule schedule futex_wait_queue futex_wait do_futex __x64_sys_futex do_syscall_64": WaitKind.LOCK,
    "__schedule schedule do_nanosleep hrtimer_nanosleep common_nsleep __x64_sys_clock_nanosleep": WaitKind.SLEEP,
    "__schedule schedule pipe_read vfs_read ksys_read do_syscall_64": WaitKind.PIPE,
    "__schedule schedule anon_pipe_read vfs_read ksys_read": WaitKind.PIPE,
    "__schedule schedule schedule_timeout wait_woken sk_wait_data tcp_recvmsg_locked tcp_recvmsg": WaitKind.NETWORK,
    "__schedule schedule_timeout unix_stream_read_generic unix_stream_recvmsg sock_recvmsg": WaitKind.NETWORK,
    "__schedule schedule do_wait kernel_wait4 __do_sys_wait4 do_syscall_64": WaitKind.CHILD,
    "__schedule schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read vfs_read": WaitKind.FILE,
    "__schedule schedule jbd2_log_wait_commit ext4_sync_file do_fsync": WaitKind.FILE,
    "__schedule schedule io_schedule folio_wait_bit_common filemap_fault __do_fault handle_mm_fault "
    "do_user_addr_fault exc_page_fault asm_exc_page_fault": WaitKind.FAULT,
    "__schedule schedule schedule_hrtimeout_range ep_poll do_epoll_wait __x64_sys_epoll_wait": WaitKind.REQUESTS,
    "__schedule schedule poll_schedule_timeout do_sys_poll __x64_sys_poll": WaitKind.REQUESTS,
    "__schedule schedule inet_csk_accept inet_accept do_accept __sys_accept4": WaitKind.REQUESTS,
    "__schedule schedule schedule_timeout wait_woken n_tty_read tty_read vfs_read": WaitKind.REQUESTS,
    "__schedule schedule do_signal_stop get_signal arch_do_signal_or_restart": WaitKind.STOPPED,
    "__schedule schedule something_new": WaitKind.OTHER,
    "": WaitKind.OTHER,
}


@pytest.mark.parametrize(("stack", "kind"), STACKS.items())
def test_kinds(stack: str, kind: WaitKind) -> None:
    assert wait_kind(stack.split()) is kind


def test_only_requests_and_stops_are_no_fault_of_the_program() -> None:
    assert {kind for kind in WaitKind if kind.is_outside} == {WaitKind.REQUESTS, WaitKind.STOPPED}
