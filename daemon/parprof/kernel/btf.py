"""What the running kernel's BTF says about the few structures that the programs read.

Uses libbpf through BCC's ``libbcc_bpf.so.0``: parsing 150,000 types in Python takes a second, in C 20 ms.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from parprof.errors import KernelUnsupported
from parprof.values import dataclass

_KIND_STRUCT, _KIND_TYPEDEF = 4, 8
_MAPPINGS = (
    "TASK_MM", "MAPLE_ROOT", "RANGE_PIVOT", "RANGE_SLOT", "ARANGE_PIVOT", "ARANGE_SLOT", "VMA_START", "VMA_END",
    "VMA_OFFSET", "VMA_FLAGS", "VMA_FILE",
)  # fmt: skip
_EXECUTABLE = (
    "BINPRM_FILE", "FILE_INODE", "INODE_NUMBER", "INODE_SIZE", "INODE_GENERATION", "INODE_SUPER_BLOCK",
    "SUPER_BLOCK_DEVICE",
)  # fmt: skip

_QUEUED = ("TASK_SIGNAL", "TASK_THREAD_NODE", "TASK_ON_CPU", "TASK_STACK", "SIGNAL_THREADS")

_POLLED = (
    "TASK_FILES", "FILES_TABLE", "TABLE_SIZE", "TABLE_FILES", "POLLED_INODE", "POLLED_PRIVATE", "INODE_MODE",
    "SOCKET_SOCK", "SOCK_COMMON", "SOCK_BACKLOG", "SOCK_FAMILY", "SOCK_STATE", "SOCK_FAR_PORT", "SOCK_PORT",
)  # fmt: skip
_UNIX = ("UNIX_ADDRESS", "UNIX_PEER", "UNIX_NAME")
_PROCESS_FILE = ("POLLED_SUPER_BLOCK", "SUPER_BLOCK_MAGIC")
_RING = (
    "RING_FLAGS", "RING_PLACES", "RING_REQUESTS", "RING_TAKEN", "RING_SIZE", "RING_DONE",
)  # fmt: skip
_EPOLLED = ("EPOLL_TREE", "EPOLLED_FILE", "NODE_RIGHT", "NODE_LEFT")

_PATHS = ("FILE_DENTRY", "DENTRY_NAME", "DENTRY_PARENT")


class _BtfType(ctypes.Structure):
    _fields_ = [("name_off", ctypes.c_uint32), ("info", ctypes.c_uint32), ("type", ctypes.c_uint32)]


class _Member(ctypes.Structure):
    _fields_ = [("name_off", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32)]


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """Byte offsets in kernel structures, and the shape of the scheduler tracepoints."""

    task_pid: int
    task_flags: int
    task_state: int
    task_utask: int
    task_fsbase: int
    task_ptrace: int
    task_jobctl: int
    utask_return_instances: int
    utask_slot: int
    """To where the instruction is executed that a uprobe replaced: a copy of it, out of line; 0 = none is."""
    utask_stepped: int
    """To where that instruction is in the program."""
    return_instance_stack: int
    return_instance_address: int
    return_instance_next: int
    task_thread_pid: int
    task_group_leader: int
    pid_level: int
    pid_numbers: int
    upid_namespace: int
    upid_size: int
    namespace_number: int
    switch_has_state: bool
    """sched_switch passes the previous task's state (Linux 5.18 and later)."""
    exit_tells_last: bool
    """sched_process_exit tells the last thread, whose memory is there still (Linux 6.16 and later)."""
    run_queue: tuple[int, ...] | None
    """From a task to its queue of the fair class, from there to the CPU's run queue, from there to the task that runs;
    None if this kernel does not say."""
    queued: tuple[int, ...] | None
    """From a task to what its threads share, to its place in the list of them, to whether it has a CPU, and to its
    kernel stack; from what they share to the list. None likewise."""
    run_delay: tuple[int, ...] | None
    """From a task to how long it has waited for a CPU; None likewise."""
    ran: tuple[int, ...] | None
    """From a task to how long it has had one; None likewise."""
    mappings: tuple[int, ...] | None
    """Where the maple tree of a task's mappings is, and what is in its nodes and in a mapping: see `_MAPPINGS`. None
    likewise."""
    executable: tuple[int, ...] | None
    """From a linux_binprm to its file, from there to its inode; there: number, size, generation, super block; in that:
    the device. None likewise."""
    paths: tuple[int, ...] | None
    """From a file to its directory entry; there: the name's text, and the directory above. None likewise."""

    polled: tuple[int, ...] | None
    """From a task to its table of open files, from a file to its inode and what it is; from a socket to what it is
    connected to: see `_POLLED`. None likewise."""
    unix: tuple[int, ...] | None
    """From a Unix socket to its address, and to the one at the other end; in an address: the name. None likewise."""
    process_file: tuple[int, ...] | None
    """From an inode to its super block; there: the number by which kinds of file systems are told. None likewise."""
    epolled: tuple[int, ...] | None
    """From what epoll_wait() waits at to the tree of its files; in a node of that: the file, and the nodes below. None
    likewise."""

    ring: tuple[int, ...] | None
    """In what io_uring_enter() is called with: its flags, the queue of requests with its places, number taken and size,
    and the number done: see `_RING`. None likewise."""

    def defines(self) -> list[str]:
        """Compiler flags for the BPF object."""
        state = "((u32)ctx->args[3])" if self.switch_has_state else "task_state((void *)ctx->args[1])"
        return [
            f"-DTASK_PID={self.task_pid}",
            f"-DTASK_FLAGS={self.task_flags}",
            f"-DTASK_STATE={self.task_state}",
            f"-DTASK_UTASK={self.task_utask}",
            f"-DTASK_FSBASE={self.task_fsbase}",
            f"-DTASK_PTRACE={self.task_ptrace}",
            f"-DTASK_JOBCTL={self.task_jobctl}",
            f"-DUTASK_RETURN_INSTANCES={self.utask_return_instances}",
            f"-DUTASK_SLOT={self.utask_slot}",
            f"-DUTASK_STEPPED={self.utask_stepped}",
            f"-DRETURN_INSTANCE_STACK={self.return_instance_stack}",
            f"-DRETURN_INSTANCE_ADDRESS={self.return_instance_address}",
            f"-DRETURN_INSTANCE_NEXT={self.return_instance_next}",
            f"-DPREVIOUS_STATE={state}",
            *(["-DEXIT_TELLS_LAST"] if self.exit_tells_last else []),
            f"-DTASK_THREAD_PID={self.task_thread_pid}",
            f"-DTASK_GROUP_LEADER={self.task_group_leader}",
            f"-DPID_LEVEL={self.pid_level}",
            f"-DPID_NUMBERS={self.pid_numbers}",
            f"-DUPID_NAMESPACE={self.upid_namespace}",
            f"-DUPID_SIZE={self.upid_size}",
            f"-DNAMESPACE_NUMBER={self.namespace_number}",
            *self._found(("TASK_CFS_QUEUE", "CFS_RUNQUEUE", "RUNQUEUE_CURRENT"), self.run_queue),
            *self._found(_QUEUED, self.queued),
            *self._found(("TASK_RUN_DELAY",), self.run_delay),
            *self._found(("TASK_RAN",), self.ran),
            *self._found(_EXECUTABLE, self.executable),
            *self._found(_MAPPINGS, self.mappings if self.executable else None),
            *self._found(_PATHS, self.paths),
            *self._found(_POLLED, self.polled),
            *self._found(_UNIX, self.unix),
            *self._found(_PROCESS_FILE, self.process_file),
            *self._found(_EPOLLED, self.epolled),
            *self._found(_RING, self.ring),
        ]

    @staticmethod
    def _found(names: Sequence[str], offsets: Sequence[int] | None) -> list[str]:
        """Flags that are given where this kernel has all of it."""
        return (
            [f"-D{name}={at}" for name, at in zip(names, offsets, strict=True)] if offsets is not None else []
        )


class _Btf:
    def __init__(self) -> None:
        try:
            lib = ctypes.CDLL("libbcc_bpf.so.0")
        except OSError as error:
            raise KernelUnsupported(f"{error}: apt-get install libbpfcc") from error
        lib.btf__load_vmlinux_btf.restype = ctypes.c_void_p
        lib.btf__type_by_id.restype = ctypes.POINTER(_BtfType)
        lib.btf__type_by_id.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        lib.btf__name_by_offset.restype = ctypes.c_char_p
        lib.btf__name_by_offset.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        lib.btf__find_by_name_kind.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
        self.lib = lib
        if not os.path.exists("/sys/kernel/btf/vmlinux"):
            raise KernelUnsupported(
                "the kernel has no BTF (/sys/kernel/btf/vmlinux): CONFIG_DEBUG_INFO_BTF=y"
            )
        self.handle = lib.btf__load_vmlinux_btf()
        if not self.handle or self.handle > (1 << 64) - 4096:
            raise KernelUnsupported("the kernel's BTF cannot be read (/sys/kernel/btf/vmlinux)")

    def find(self, name: str, kind: int) -> int:
        return int(self.lib.btf__find_by_name_kind(self.handle, name.encode(), kind))

    def members(self, type_id: int) -> dict[str, tuple[int, int]]:
        """Name to (bit offset, type id); anonymous structures are looked into."""
        out: dict[str, tuple[int, int]] = {}
        pending = [(type_id, 0)]
        while pending:
            current, base = pending.pop()
            header = self.lib.btf__type_by_id(self.handle, current)
            info = header.contents.info
            if (info >> 24) & 0x1F not in (4, 5):  # struct, union
                continue
            start = ctypes.addressof(header.contents) + ctypes.sizeof(_BtfType)
            for member in (_Member * (info & 0xFFFF)).from_address(start):
                offset = member.offset & 0xFFFFFF if info >> 31 else member.offset
                name = self.lib.btf__name_by_offset(self.handle, member.name_off).decode()
                if name:
                    out.setdefault(name, (base + offset, member.type))
                else:
                    pending.append((member.type, base + offset))
        return out

    def size(self, type_id: int) -> int:
        """Bytes of a structure."""
        return int(self.lib.btf__type_by_id(self.handle, type_id).contents.type)

    def tracepoint_arguments(self, name: str) -> int:
        """Number of arguments of a raw tracepoint; -1 when unknown."""
        type_id = self.find(f"btf_trace_{name}", _KIND_TYPEDEF)
        if type_id <= 0:
            return -1
        pointer = self.lib.btf__type_by_id(self.handle, type_id).contents.type
        prototype = self.lib.btf__type_by_id(self.handle, pointer).contents.type
        return int(self.lib.btf__type_by_id(self.handle, prototype).contents.info & 0xFFFF) - 1


def _run_queue(btf: _Btf, task: dict[str, tuple[int, int]]) -> tuple[int, ...] | None:
    found = _offsets(btf, {"sched_entity": ("cfs_rq",), "cfs_rq": ("rq",), "rq": ("curr",)})
    return (task["se"][0] // 8 + found[0], *found[1:]) if found and "se" in task else None


def _in_task(
    btf: _Btf, task: dict[str, tuple[int, int]], part: str, structure: str, field: str
) -> tuple[int, ...] | None:
    """From a task to a field of a structure that is part of it."""
    found = _offsets(btf, {structure: (field,)})
    return (task[part][0] // 8 + found[0],) if found and part in task else None


def _offsets(btf: _Btf, wanted: dict[str, tuple[str, ...]]) -> tuple[int, ...] | None:
    """Bytes to the fields of structures, in this order; None unless all are there."""
    out = []
    for name, fields in wanted.items():
        number = btf.find(name, _KIND_STRUCT)
        members = btf.members(number) if number > 0 else {}
        if not set(fields) <= members.keys():
            return None
        out += [members[field][0] // 8 for field in fields]
    return tuple(out)


def _executable(btf: _Btf) -> tuple[int, ...] | None:
    return _offsets(
        btf,
        {
            "linux_binprm": ("file",),
            "file": ("f_inode",),
            "inode": ("i_ino", "i_size", "i_generation", "i_sb"),
            "super_block": ("s_dev",),
        },
    )


def _mappings(btf: _Btf) -> tuple[int, ...] | None:
    found = _offsets(
        btf,
        {
            "task_struct": ("mm",),
            "mm_struct": ("mm_mt",),
            "maple_tree": ("ma_root",),
            "maple_node": ("mr64", "ma64"),
            "maple_range_64": ("pivot", "slot"),
            "maple_arange_64": ("pivot", "slot"),
            "vm_area_struct": ("vm_start", "vm_end", "vm_pgoff", "vm_flags", "vm_file"),
        },
    )
    if found is None:
        return None
    mm, tree, root, narrow, wide, pivot, slot, wide_pivot, wide_slot, *mapping = found
    return mm, tree + root, narrow + pivot, narrow + slot, wide + wide_pivot, wide + wide_slot, *mapping


def _unix(btf: _Btf) -> tuple[int, ...] | None:
    found = _offsets(
        btf, {"unix_sock": ("addr", "peer"), "unix_address": ("name",), "sockaddr_un": ("sun_path",)}
    )
    if found is None:
        return None
    address, peer, name, path = found
    return address, peer, name + path


def _paths(btf: _Btf) -> tuple[int, ...] | None:
    found = _offsets(
        btf, {"file": ("f_path",), "path": ("dentry",), "dentry": ("d_name", "d_parent"), "qstr": ("name",)}
    )
    if found is None:
        return None
    path, entry, name, parent, text = found
    return path + entry, name + text, parent


def read_layout() -> KernelLayout:
    """Read the offsets from the running kernel.

    Raises:
        KernelUnsupported: no BTF, or it lacks what we need.
    """
    btf = _Btf()
    task = btf.members(btf.find("task_struct", _KIND_STRUCT))
    state = task.get("__state") or task.get("state")
    if state is None or not {"pid", "tgid", "flags", "utask", "thread", "ptrace", "jobctl"} <= task.keys():
        raise KernelUnsupported("the kernel's BTF does not describe task_struct, or it has no uprobes")
    probed = btf.members(btf.find("uprobe_task", _KIND_STRUCT))
    instance = btf.members(btf.find("return_instance", _KIND_STRUCT))
    if not {"return_instances", "xol_vaddr", "vaddr"} <= probed.keys() or (
        not {"stack", "orig_ret_vaddr", "next"} <= instance.keys()
    ):
        raise KernelUnsupported("the kernel's BTF does not describe its uprobes")
    thread = btf.members(task["thread"][1])
    if "fsbase" not in thread:
        raise KernelUnsupported("the kernel's BTF does not describe thread_struct")
    struct_pid = btf.members(btf.find("pid", _KIND_STRUCT))
    upid = btf.members(btf.find("upid", _KIND_STRUCT))
    namespace = btf.members(btf.find("pid_namespace", _KIND_STRUCT))
    if not {"level", "numbers"} <= struct_pid.keys() or "ns" not in upid or "ns" not in namespace:
        raise KernelUnsupported("the kernel's BTF does not describe PID namespaces")
    common = btf.members(namespace["ns"][1])
    pid, tgid = task["pid"][0] // 8, task["tgid"][0] // 8
    if tgid != pid + 4:
        raise KernelUnsupported("pid and tgid are not neighbours in this kernel's task_struct")
    return KernelLayout(
        task_pid=pid,
        task_flags=task["flags"][0] // 8,
        task_state=state[0] // 8,
        task_utask=task["utask"][0] // 8,
        task_fsbase=(task["thread"][0] + thread["fsbase"][0]) // 8,
        task_ptrace=task["ptrace"][0] // 8,
        task_jobctl=task["jobctl"][0] // 8,
        utask_return_instances=probed["return_instances"][0] // 8,
        utask_slot=probed["xol_vaddr"][0] // 8,
        utask_stepped=probed["vaddr"][0] // 8,
        return_instance_stack=instance["stack"][0] // 8,
        return_instance_address=instance["orig_ret_vaddr"][0] // 8,
        return_instance_next=instance["next"][0] // 8,
        task_thread_pid=task["thread_pid"][0] // 8,
        task_group_leader=task["group_leader"][0] // 8,
        pid_level=struct_pid["level"][0] // 8,
        pid_numbers=struct_pid["numbers"][0] // 8,
        upid_namespace=upid["ns"][0] // 8,
        upid_size=btf.size(btf.find("upid", _KIND_STRUCT)),
        namespace_number=(namespace["ns"][0] + common["inum"][0]) // 8,
        switch_has_state=btf.tracepoint_arguments("sched_switch") >= 4,
        exit_tells_last=btf.tracepoint_arguments("sched_process_exit") >= 2,
        run_queue=_run_queue(btf, task),
        queued=_offsets(
            btf,
            {
                "task_struct": ("signal", "thread_node", "on_cpu", "stack"),
                "signal_struct": ("thread_head",),
            },
        ),
        run_delay=_in_task(btf, task, "sched_info", "sched_info", "run_delay"),
        ran=_in_task(btf, task, "se", "sched_entity", "sum_exec_runtime"),
        mappings=_mappings(btf),
        executable=_executable(btf),
        paths=_paths(btf),
        polled=_offsets(
            btf,
            {
                "task_struct": ("files",),
                "files_struct": ("fdt",),
                "fdtable": ("max_fds", "fd"),
                "file": ("f_inode", "private_data"),
                "inode": ("i_mode",),
                "socket": ("sk",),
                "sock": ("__sk_common", "sk_max_ack_backlog"),
                "sock_common": ("skc_family", "skc_state", "skc_dport", "skc_num"),
            },
        ),
        unix=_unix(btf),
        process_file=_offsets(btf, {"inode": ("i_sb",), "super_block": ("s_magic",)}),
        epolled=_offsets(
            btf, {"eventpoll": ("rbr",), "epitem": ("ffd",), "rb_node": ("rb_right", "rb_left")}
        ),
        ring=_offsets(
            btf,
            {
                "io_ring_ctx": (
                    "flags",
                    "sq_array",
                    "sq_sqes",
                    "cached_sq_head",
                    "sq_entries",
                    "cached_cq_tail",
                ),
            },
        ),
    )
