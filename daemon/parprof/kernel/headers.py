"""The header tree that lets BCC compile without the running kernel's headers.

BCC wants a kernel build tree. Our programs use only UAPI types and offsets from BTF, so a few links to the
distribution's ``linux-libc-dev`` and four tiny files of our own are enough, on any kernel.
"""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from parprof.errors import KernelUnsupported

_KCONFIG = """\
#define CONFIG_BPF_SYSCALL 1
#define CONFIG_64BIT 1
#define CONFIG_X86_64 1
typedef unsigned char u8; typedef signed char s8;
typedef unsigned short u16; typedef short s16;
typedef unsigned int u32; typedef int s32;
typedef unsigned long long u64; typedef long long s64;
typedef _Bool bool;
typedef unsigned long size_t; typedef long ssize_t; typedef unsigned long uintptr_t;
typedef unsigned short umode_t; typedef int pid_t;
#define true 1
#define false 0
#define NULL ((void *)0)
"""

_OWN_FILES = {
    "include/linux/kconfig.h": _KCONFIG,
    "include/linux/log2.h": "#define roundup_pow_of_two(n) (n)\n",
    "include/asm/page.h": "#define PAGE_SIZE 4096\n",
    # BCC's built-in copy, so that BPF types and helper numbers are BCC's and not the distribution's
    "include/uapi/linux/bpf.h": '#include "/virtual/include/bcc/bpf.h"\n',
}


def make_tree(tree: Path, system_include: Path = Path("/usr/include")) -> Path:
    """Build the tree in the empty directory ``tree`` and return it.

    Raises:
        KernelUnsupported: the UAPI headers are not installed, or the machine is not x86-64.
    """
    if platform.machine() != "x86_64":
        raise KernelUnsupported(f"only x86-64 is supported, this machine is {platform.machine()}")
    uapi = system_include / "linux"
    triplet = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    asm = system_include / triplet / "asm"
    if not asm.is_dir():
        asm = system_include / "asm"
    if not (uapi / "types.h").is_file() or not asm.is_dir():
        raise KernelUnsupported("the kernel's user-space headers are missing: apt-get install linux-libc-dev")
    for name, text in _OWN_FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree / "include/generated").mkdir()
    (tree / "arch/x86/include/uapi").mkdir(parents=True)
    (tree / "arch/x86/include/uapi/asm").symlink_to(asm)
    (tree / "include/uapi/asm-generic").symlink_to(system_include / "asm-generic")
    for entry in uapi.iterdir():
        link = tree / "include/uapi/linux" / entry.name
        if not link.exists():
            link.symlink_to(entry)
    return tree
