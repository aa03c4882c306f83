"""What sleeping threads wait for: parprof.attribution.waiting. Stacks as Linux 6.1 to 6.18 have them."""

from __future__ import annotations

import pytest

from parprof.attribution.waiting import WaitKind, polled_kind, thread_wait_kind, wait_kind

STACKS = {
    "__schedule schedule futex_wait_queue futex_wait do_futex __x64_sys_futex do_syscall_64": WaitKind.LOCK,
    "__schedule schedule do_nanosleep hrtimer_nanosleep common_nsleep __x64_sys_clock_nanosleep": WaitKind.SLEEP,
    "__schedule schedule pipe_read vfs_read ksys_read do_syscall_64": WaitKind.PIPE,
    "__schedule schedule anon_pipe_read vfs_read ksys_read": WaitKind.PIPE,
    "__schedule schedule schedule_timeout wait_woken sk_wait_data tcp_recvmsg_locked tcp_recvmsg": WaitKind.NETWORK,
    "__schedule schedule_timeout unix_stream_read_generic unix_stream_recvmsg sock_recvmsg": WaitKind.NETWORK,
    "__schedule schedule do_wait kernel_wait4 __do_sys_wait4 do_syscall_64": WaitKind.CHILD,
    "__schedule schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read vfs_read": WaitKind.FILE,
    "__schedule schedule do_wait_intr_irq timerfd_read_iter vfs_read ksys_read": WaitKind.SLEEP,
    "__schedule schedule do_wait_intr_irq eventfd_read vfs_read ksys_read": WaitKind.CONDITION,
    "__schedule schedule jbd2_log_wait_commit ext4_sync_file do_fsync": WaitKind.FILE,
    "__schedule schedule io_schedule folio_wait_bit_common filemap_fault __do_fault handle_mm_fault "
    "do_user_addr_fault exc_page_fault asm_exc_page_fault": WaitKind.FAULT,
    "__schedule schedule schedule_hrtimeout_range ep_poll do_epoll_wait __x64_sys_epoll_wait": WaitKind.REQUESTS,
    "__schedule schedule poll_schedule_timeout do_sys_poll __x64_sys_poll": WaitKind.REQUESTS,
    "__schedule schedule schedule_timeout __skb_wait_for_more_packets __skb_recv_datagram skb_recv_datagram "
    "unix_accept do_accept __sys_accept4": WaitKind.REQUESTS,
    "__schedule schedule inet_csk_accept inet_accept do_accept __sys_accept4": WaitKind.REQUESTS,
    "__schedule schedule schedule_timeout wait_woken n_tty_read tty_read vfs_read": WaitKind.REQUESTS,
    "__schedule schedule do_signal_stop get_signal arch_do_signal_or_restart": WaitKind.STOPPED,
    "__schedule schedule __refrigerator get_signal arch_do_signal_or_restart": WaitKind.STOPPED,
    "__schedule schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write_killable ext4_file_write_iter "
    "vfs_write": WaitKind.FILE,
    "__schedule schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write_killable __vm_munmap "
    "__x64_sys_munmap do_syscall_64": WaitKind.OTHER,
    "__schedule schedule schedule_preempt_disabled rwsem_down_write_slowpath exit_mmap mmput exit_mm do_exit": (
        WaitKind.OTHER
    ),
    "__schedule schedule fcntl_setlk do_fcntl __x64_sys_fcntl do_syscall_64": WaitKind.LOCK,
    "__schedule schedule locks_lock_inode_wait __do_sys_flock do_syscall_64": WaitKind.LOCK,
    "__schedule schedule do_msgrcv do_syscall_64 entry_SYSCALL_64_after_hwframe": WaitKind.REQUESTS,
    "__schedule schedule do_msgsnd do_syscall_64 entry_SYSCALL_64_after_hwframe": WaitKind.PIPE,
    "__schedule schedule_hrtimeout_range wq_sleep do_mq_timedreceive __x64_sys_mq_timedreceive": WaitKind.REQUESTS,
    "__schedule schedule_hrtimeout_range_clock wq_sleep __x64_sys_mq_timedreceive": WaitKind.REQUESTS,
    "__schedule schedule_hrtimeout_range_clock wq_sleep do_mq_timedsend __x64_sys_mq_timedsend": WaitKind.PIPE,
    "__schedule schedule pipe_wait_writable wait_for_space __do_sys_vmsplice do_syscall_64": WaitKind.PIPE,
    "__schedule schedule pipe_wait_readable ipipe_prep.part.0 do_splice __do_splice __x64_sys_splice": WaitKind.PIPE,
    "__schedule schedule something_new": WaitKind.OTHER,
    "": WaitKind.OTHER,
}


@pytest.mark.parametrize(("stack", "kind"), STACKS.items())
def test_kinds(stack: str, kind: WaitKind) -> None:
    assert wait_kind(stack.split()) is kind


FUTEXES = {
    "libc.so.6+0x89d60; pthread_mutex_lock; append; worker": WaitKind.LOCK,
    "__lll_lock_wait; pthread_mutex_lock@@GLIBC_2.2.5; std::mutex::lock(); worker": WaitKind.LOCK,
    "libc.so.6+0x8c000; pthread_rwlock_rdlock; lookup": WaitKind.LOCK,
    "syscall; g_mutex_lock_slowpath; draw": WaitKind.LOCK,
    "std::sys::pal::unix::futex::futex_wait; std::sys::sync::mutex::futex::Mutex::lock_contended; "
    "<std::sync::poison::mutex::Mutex<T>>::lock; scoped::merge": WaitKind.LOCK,
    "syscall; parking_lot_core::thread_parker::imp::ThreadParker::futex_wait; parking_lot_core::parking_lot::park; "
    "parking_lot::raw_mutex::RawMutex::lock_slow; merge": WaitKind.LOCK,
    "runtime.futex.abi0; runtime.futexsleep; runtime.lock2; runtime.lock": WaitKind.LOCK,
    "libc.so.6+0x89d60; pthread_cond_timedwait; take_gil; PyEval_RestoreThread": WaitKind.LOCK,
    "__GI___pthread_cond_timedwait; python3.11+0x545963; python3.11+0x5e1f20; count_words": WaitKind.LOCK,
    "libc.so.6+0x89d60; sem_clockwait; PyThread_acquire_lock_timed; lock_PyThread_acquire_lock": WaitKind.LOCK,
    "libc.so.6+0x89d60; pthread_cond_wait; pop; worker": WaitKind.CONDITION,
    "syscall; std::sys::pal::unix::futex::futex_wait; <std::sys::sync::rwlock::futex::RwLock>::read_contended; "
    "w::look_up": WaitKind.LOCK,
    "syscall; std::sys::pal::unix::futex::futex_wait; <std::sys::sync::thread_parking::futex::Parker>::park; "
    "<std::thread::thread::Thread>::park; std::thread::functions::park": WaitKind.CONDITION,
    "syscall; <std::sys::sync::condvar::futex::Condvar>::wait_optional_timeout; "
    "<std::sync::nonpoison::condvar::Condvar>::wait; w::pop": WaitKind.CONDITION,
    "syscall; <std::sys::sync::condvar::futex::Condvar>::wait; <std::sync::barrier::Barrier>::wait": WaitKind.BARRIER,
    "syscall; std::__detail::__platform_wait<int>(int const*, int); std::__atomic_wait_address_v<int, "
    "std::__atomic_base<int>::wait(int)>; std::__atomic_base<int>::wait(int) const; look": WaitKind.CONDITION,
    "syscall; std::__atomic_wait_address<std::__barrier_phase_t, std::__tree_barrier<int>>; step": WaitKind.BARRIER,
    "syscall; std::__atomic_wait_address_bare<std::__atomic_semaphore::_M_acquire>; std::__atomic_semaphore::"
    "_M_acquire(); std::counting_semaphore<4l>::acquire(); take": WaitKind.CONDITION,
    "__new_sem_wait_slow64; PyThread_acquire_lock_timed; acquire_timed; lock_PyThread_acquire_lock; Condition.wait; "
    "Queue.get": WaitKind.CONDITION,
    "__new_sem_wait_slow64; PyThread_acquire_lock_timed; lock_PyThread_acquire_lock; Condition.wait; "
    "Condition.wait_for; Barrier._wait; Barrier.wait": WaitKind.BARRIER,
    "__new_sem_wait_slow64; PyThread_acquire_lock_timed; lock_PyThread_acquire_lock; Thread._wait_for_tstate_lock; "
    "Thread.join": WaitKind.THREAD,
    "__new_sem_wait_slow64; PyThread_acquire_lock_timed; _queue_SimpleQueue_get_impl; _worker": WaitKind.CONDITION,
    "__new_sem_wait_slow64; PyThread_acquire_lock_timed; _queue.cpython-311-x86_64-linux-gnu.so+0x2880; "
    "python3.11+0x54de50; _worker": WaitKind.CONDITION,
    "libc.so.6+0x89d60; pthread_cond_wait@@GLIBC_2.3.2; std::condition_variable::wait(std::unique_lock<std::mutex>&); "
    "pop": WaitKind.CONDITION,
    "std::sys::pal::unix::futex::futex_wait; std::sys::sync::condvar::futex::Condvar::wait_optional_timeout; "
    "<std::sync::poison::condvar::Condvar>::wait; pop": WaitKind.CONDITION,
    "syscall; std::sys::sync::thread_parking::futex::Parker::park; std::thread::park; "
    "std::sync::mpmc::context::Context::wait_until; std::sync::mpsc::Receiver<T>::recv": WaitKind.CONDITION,
    "syscall; <rayon_core::latch::LockLatch>::wait_and_reset; "
    "<rayon_core::registry::Registry>::in_worker_cold::<w::add>": WaitKind.CONDITION,
    "syscall; <rayon_core::registry::WorkerThread>::wait_until_cold; "
    "<rayon_core::registry::ThreadBuilder>::run": WaitKind.CONDITION,
    "syscall; <tokio::runtime::scheduler::multi_thread::worker::Context>::run; "
    "tokio::runtime::scheduler::multi_thread::worker::run": WaitKind.CONDITION,
    "syscall; <tokio::runtime::blocking::pool::Inner>::run; start_thread": WaitKind.CONDITION,
    "syscall; <std::sync::mpmc::context::Context>::wait_until; w::take": WaitKind.CONDITION,
    "syscall; w::own_lock; <rayon_core::job::HeapJob<w::add> as rayon_core::job::Job>::execute; "
    "<rayon_core::registry::WorkerThread>::wait_until_cold": WaitKind.LOCK,
    "runtime.futex.abi0; runtime.futexsleep; runtime.notesleep; runtime.mPark; runtime.stopm": WaitKind.CONDITION,
    "libc.so.6+0x89d60; sem_wait; consume": WaitKind.CONDITION,
    "libgomp.so.1+0x1dbf0; GOMP_ordered_start; loop._omp_fn.0; GOMP_parallel": WaitKind.CONDITION,
    "libc.so.6+0x89d60; pthread_barrier_wait; worker": WaitKind.BARRIER,
    "std::sys::pal::unix::futex::futex_wait; std::sys::sync::condvar::futex::Condvar::wait; "
    "std::sync::barrier::Barrier::wait; worker": WaitKind.BARRIER,
    "syscall; std::barrier<std::__empty_completion>::arrive_and_wait(); worker": WaitKind.BARRIER,
    "libgomp.so.1+0x1dbf0; libgomp.so.1+0x1a0e0; GOMP_parallel; relax; main": WaitKind.BARRIER,
    "gomp_team_barrier_wait_end; gomp_thread_start; start_thread": WaitKind.BARRIER,
    "libc.so.6+0x89d60; pthread_cond_wait; __kmp_suspend_64; __kmp_join_barrier; __kmp_launch_thread": WaitKind.BARRIER,
    "libgomp.so.1.0.0+0x1f780; libgomp.so.1.0.0+0x1cc40; start_thread; __clone3": WaitKind.BARRIER,
    "__futex_abstimed_wait_common64; __GI___pthread_cond_wait; libomp.so.5+0xb15c0; libomp.so.5+0x91000; start_thread; "
    "__clone3": WaitKind.BARRIER,
    "__GI___pthread_cond_wait; libomp.so.5+0xb15c0; __kmpc_fork_call; main": WaitKind.BARRIER,
    "gomp_mutex_lock_slow; relax._omp_fn.0; GOMP_parallel; main": WaitKind.LOCK,
    "gomp_team_barrier_wait_end; relax._omp_fn.0; GOMP_parallel; main": WaitKind.BARRIER,
    "libc.so.6+0x89d60; pthread_cond_wait; libpool.so+0x1230; start_thread": WaitKind.CONDITION,
    "syscall; own_lock; relax._omp_fn.0; GOMP_parallel; main": WaitKind.LOCK,
    "libc.so.6+0x8b000; pthread_join; main": WaitKind.THREAD,
    "__pthread_clockjoin_ex; main": WaitKind.THREAD,
    "libc.so.6+0x8b000; pthread_join; std::thread::join(); main": WaitKind.THREAD,
    "__GI___pthread_cond_wait; Parker::park(bool, long); Unsafe_Park; void jdk.internal.misc.Unsafe.park(boolean, "
    "long); int java.util.concurrent.locks.AbstractQueuedSynchronizer.acquire(java.util.concurrent.locks."
    "AbstractQueuedSynchronizer$Node, int, boolean, boolean, boolean, long); void Bank.deposit(double)": WaitKind.LOCK,
    "__GI___pthread_cond_wait; Parker::park(bool, long); Unsafe_Park; Interpreter; void java.util.concurrent.locks."
    "ReentrantLock.lock()": WaitKind.LOCK,
    "__GI___pthread_cond_wait; Parker::park(bool, long); Unsafe_Park; void jdk.internal.misc.Unsafe.park(boolean, "
    "long); void java.util.concurrent.ForkJoinPool.managedBlock(java.util.concurrent.ForkJoinPool$ManagedBlocker); "
    "void java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject.await()": WaitKind.CONDITION,
    "__GI___pthread_cond_wait; Parker::park(bool, long); Unsafe_Park; int java.util.concurrent.locks."
    "AbstractQueuedSynchronizer.acquire(java.util.concurrent.locks.AbstractQueuedSynchronizer$Node, int, boolean, "
    "boolean, boolean, long); void java.util.concurrent.CountDownLatch.await()": WaitKind.CONDITION,
    "__GI___pthread_cond_wait; Parker::park(bool, long); Unsafe_Park; void java.util.concurrent.locks."
    "AbstractQueuedSynchronizer$ConditionObject.await(); int java.util.concurrent.CyclicBarrier.dowait(boolean, "
    "long)": WaitKind.BARRIER,
    "__GI___pthread_cond_wait; os::PlatformEvent::park(); ObjectMonitor::enter(JavaThread*)": WaitKind.LOCK,
    "__GI___pthread_cond_wait; mono-sgen+0x2be430; mono-sgen+0x2bef70; (wrapper managed-to-native) object:"
    "__icall_wrapper_mono_monitor_enter_v4_internal (object,intptr); Table:Insert (int)": WaitKind.LOCK,
    "__GI___pthread_cond_wait; mono-sgen+0x2be430; (wrapper managed-to-native) System.Threading.Monitor:Monitor_wait "
    "(object,int,bool); Table:Take ()": WaitKind.CONDITION,
    "__GI___pthread_cond_wait; caml_thread_leave_blocking_section; caml_thread_yield; caml_call_gc; "
    "camlSolver__step_81": WaitKind.LOCK,
    "__GI___pthread_cond_wait; caml_condition_wait; camlSolver__take_81": WaitKind.CONDITION,
    "__GI___pthread_cond_wait; os::PlatformEvent::park(); ObjectMonitor::wait(long, bool, JavaThread*); "
    "JVM_MonitorWait; Interpreter": WaitKind.CONDITION,
    "___pthread_cond_timedwait; os::PlatformEvent::park(long); JavaThread::sleep(long); JVM_Sleep; "
    "Interpreter": WaitKind.SLEEP,
    "syscall; libtbb.so.12.8+0x22180; libtbb.so.12.8+0x21670; start_thread; __clone3": WaitKind.CONDITION,
    "syscall; tbb::detail::r1::futex_wait(void*, int); tbb::detail::r1::binary_semaphore::P(); "
    "tbb::detail::r1::rml::private_worker::run(); start_thread": WaitKind.CONDITION,
    "syscall; libtbb.so.12+0x11000; tbb::detail::r1::execute_and_wait(tbb::detail::d1::task&); "
    "solve": WaitKind.CONDITION,
    "syscall; libtbb.so.12+0x11000; tbb::detail::r1::wait_on_address(void*, tbb::detail::d1::delegate_base&, "
    "unsigned long); add; tbb::detail::d1::start_for<add>::execute()": WaitKind.LOCK,
    "syscall; own_lock; tbb::detail::d1::start_for<add>::execute(); libtbb.so.12+0x11000": WaitKind.LOCK,
    "syscall; my_own_wait; main": WaitKind.LOCK,
    "FnOnce::call_once; worker": WaitKind.LOCK,
    "": WaitKind.LOCK,
}


@pytest.mark.parametrize(("stack", "kind"), FUTEXES.items())
def test_kinds_of_waits_for_threads(stack: str, kind: WaitKind) -> None:
    assert thread_wait_kind(stack.split("; ")) is kind


def test_what_is_far_from_the_call_says_nothing() -> None:
    assert thread_wait_kind([*(f"f{number}" for number in range(20)), "pthread_join"]) is WaitKind.LOCK


def test_who_waits_for_threads() -> None:
    kinds = {WaitKind.LOCK, WaitKind.GIL, WaitKind.CONDITION, WaitKind.BARRIER, WaitKind.THREAD}
    kinds.add(WaitKind.DEADLOCK)
    assert {kind for kind in WaitKind if kind.is_for_threads} == kinds


def test_only_requests_and_stops_are_no_fault_of_the_program() -> None:
    assert {kind for kind in WaitKind if kind.is_outside} == {WaitKind.REQUESTS, WaitKind.STOPPED}


POLLS = {
    "epoll_wait; WaitEventSetWait; WaitLatch; ProcSleep; postgres+0x45d8a0; LockAcquireExtended; XactLockTableWait":
        WaitKind.LOCK,
    "epoll_wait; WaitEventSetWait; WaitLatch; pg_sleep; postgres+0x2f70b0; ExecProject": WaitKind.SLEEP,
    "epoll_wait; WaitEventSetWait; WaitLatch; ConditionVariableTimedSleep; ConditionVariableSleep": WaitKind.CONDITION,
    "epoll_wait; WaitEventSetWait; WaitLatch; WalWriterMain; AuxiliaryProcessMain": WaitKind.REQUESTS,
    "epoll_wait; aeApiPoll; aeProcessEvents; beforeSleep; aeMain": WaitKind.REQUESTS,
    "poll; sleep_until_asked; main": WaitKind.REQUESTS,
}  # fmt: skip


@pytest.mark.parametrize(("stack", "kind"), POLLS.items())
def test_kinds_in_poll(stack: str, kind: WaitKind) -> None:
    """As processes of PostgreSQL wait for each other's locks."""
    assert polled_kind(stack.split("; ")) is kind
