#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boots Debian's kernels under emulation (qemu, no KVM) on a fresh Debian 12 root with this checkout in it, and tries
# there what depends on the kernel: tests/vm/guest.py. Prints a table, which docs/kernels.md keeps. Needs root, 6 GB
# of disk, and about ten minutes for a kernel: emulation is 10 to 30 times slower than the machine.
#
#   scripts/kernels.sh [-c CPUS] [-m MB] [-t SECONDS] [-a 'KERNEL ARGUMENTS'] [KERNEL...]
#   scripts/kernels.sh [options] -x COMMAND KERNEL     run a command of your own, as root in the checkout
#   scripts/kernels.sh -l                              list the kernels that Debian has
#   scripts/kernels.sh -r                              make the root anew (after a change of the packages it needs)
#
# KERNEL is a version as -l prints it; without one: the newest of each series. What is downloaded and built is kept in
# ${XDG_CACHE_HOME:-/var/cache}/parprof-kernels; the results of each run in its folder out.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
here=${XDG_CACHE_HOME:-/var/cache}/parprof-kernels
suites="bookworm bookworm-security bookworm-backports trixie trixie-security trixie-backports sid"
host_packages="qemu-system-x86 kmod e2fsprogs cpio busybox-static xz-utils zstd debootstrap binutils"
guest_packages="g++ clang libomp-dev libtbb-dev kmod procps iproute2 util-linux"
cpus=2 megabytes=3072 seconds=3600 arguments='' command='' list='' anew=''

say() { echo "kernels: $*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '7,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }

install_packages() {
    local package missing=
    for package in $host_packages; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "installing$missing"
    apt-get -qq update
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
}

mirror() { # of Debian, as this machine has it
    local found
    found=$(sed -n 's/^URIs: *//p; s/^deb *\(\[[^]]*\] *\)\?\([^ ]*\) .*/\2/p' \
        /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | grep -E '/debian/?$' | head -n 1 || true)
    echo "${found:-http://deb.debian.org/debian}"
}

use_own_apt() { # with the lists of all suites
    local base suite archive
    base=$(mirror)
    base=${base%/}
    mkdir -p "$here/apt/lists/partial" "$here/apt/cache/archives/partial"
    for suite in $suites; do
        archive=debian
        case $suite in *-security) archive=debian-security ;; esac
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${base%/debian}/$archive $suite main"
    done >"$here/apt/sources.list"
    cat >"$here/apt/apt.conf" <<END
Dir::Etc::sourcelist "$here/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$here/apt/lists";
Dir::Cache "$here/apt/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
END
    export APT_CONFIG=$here/apt/apt.conf
    if [ -z "$(find "$here/apt/lists" -name '*Packages*' -mtime -1 -print -quit)" ]; then
        apt-get -qq update || say "some lists of packages could not be fetched"
    fi
}

versions() { # the newest of each series: "SERIES VERSION", e.g. "6.1 6.1.0-56"
    local version package
    apt-cache madison linux-image-amd64 | awk '{print $3}' | sort -rVu | while read -r version; do
        package=$(apt-cache show "linux-image-amd64=$version" |
            sed -n 's/^Depends:.*linux-image-\([^ ,]*\)-amd64.*/\1/p' | head -n 1)
        [ -z "$package" ] || echo "$(echo "$version" | cut -d. -f1,2) $package"
    done | awk '!seen[$1]++'
}

get_kernel() {
    local modules file
    [ -e "$here/kernels/$1/.whole" ] && return
    say "fetching Linux $1"
    mkdir -p "$here/debs" "$here/kernels/$1"
    (
        cd "$here/debs"
        apt-get download -qq "linux-image-$1-amd64"
        # since Linux 7 in packages of their own
        apt-get download -qq "linux-binary-$1-amd64" "linux-modules-$1-amd64" 2>/dev/null || true
    )
    for file in "$here"/debs/linux-*-"$1"-amd64_*.deb; do dpkg -x "$file" "$here/kernels/$1"; done
    modules=$(find "$here/kernels/$1" -type d -path '*/lib/modules' | head -n 1)
    depmod -b "${modules%/lib/modules}" "$1-amd64"
    touch "$here/kernels/$1/.whole"
}

make_root() {
    local root=$here/root
    say "making the root: a fresh Debian 12 with what the checkout needs"
    umount_root
    rm -rf --one-file-system "$root" "$here/root.img"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=ca-certificates,make bookworm "$root" "$(mirror)" >"$here/debootstrap.log" 2>&1 ||
        die "debootstrap failed: see $here/debootstrap.log"
    # how this machine reaches its mirrors
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
    cp -rL /etc/ssl/certs/. "$root/etc/ssl/certs/" 2>/dev/null || true
    cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
    if cp /etc/apt/sources.list.d/*.sources "$root/etc/apt/sources.list.d/" 2>/dev/null; then
        : >"$root/etc/apt/sources.list"
    fi
    cp /etc/pip.conf "$root/etc/" 2>/dev/null || true
    trap umount_root EXIT
    for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder" && mount --make-rslave "$root/$folder"; done
    copy_checkout "$root/src"
    # shellcheck disable=SC2016
    chroot "$root" /bin/sh -c 'cd /src && scripts/setup.sh run && apt-get -qq install -y --no-install-recommends '"$guest_packages"' >/dev/null &&
        .venv/bin/pip -q install pytest hypothesis pytest-timeout pytest-rerunfailures' >"$here/root.log" 2>&1 || die "see $here/root.log"
    umount_root
    trap - EXIT
    mkdir -p "$root/out"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/usr/share/doc "$root"/usr/share/locale
}

umount_root() {
    for folder in dev sys proc; do umount -lR "$here/root/$folder" 2>/dev/null || true; done
}

copy_checkout() { # what git would give a clone, with what was changed since; its environment stays
    mkdir -p "$1"
    (cd "$source" && git -c safe.directory='*' ls-files -z --cached --others --exclude-standard) |
        (cd "$source" && tar --exclude=.venv --null -T - --ignore-failed-read -cf - 2>/dev/null) | tar -C "$1" -xf -
}

make_image() {
    [ -x "$here/root/src/.venv/bin/python" ] && [ -z "$anew" ] || make_root
    find "$here/root/src" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    copy_checkout "$here/root/src"
    chroot "$here/root" make -s -j2 -k -C /src/tests/workloads RUN=/src/.venv/bin >"$here/workloads.log" 2>&1 ||
        say "not all test programs could be built: see $here/workloads.log"
    mke2fs -q -F -t ext4 -O ^has_journal -d "$here/root" "$here/root.img" 3500M
}

image_of() { find "$here/kernels/$1" -name 'vmlinuz*' | head -n 1; }

make_initrd() { # the few modules between a kernel and its root, and a shell script
    local modules tree number=100 module file out
    modules=$(find "$here/kernels/$1" -type d -path '*/lib/modules' | head -n 1)
    tree=$(mktemp -d)
    mkdir -p "$tree"/{bin,m,proc,sys,dev,r}
    cp /bin/busybox "$tree/bin/"
    for module in virtio_pci virtio_blk ext4 crc32c_generic crc32c_intel 9p 9pnet_virtio virtio_rng overlay; do
        modprobe -d "${modules%/lib/modules}" -S "$1-amd64" --show-depends "$module" 2>/dev/null || true
    done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$tree/list"
    while read -r file; do
        number=$((number + 1))
        out=$tree/m/$number-$(basename "$file")
        case $file in
        *.xz) xz -dc "$file" >"${out%.xz}" ;;
        *.zst) zstd -dqc "$file" >"${out%.zst}" ;;
        *) cp "$file" "$out" ;;
        esac
    done <"$tree/list"
    cat >"$tree/init" <<'END'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
for m in /m/*; do $B insmod $m 2>/dev/null; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 100 ]; do $B sleep 0.1; i=$((i + 1)); done
$B mount -t ext4 -o noatime /dev/vda /r || $B poweroff -f
$B mkdir -p /r/out; $B mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /r/out
for f in proc sys dev; do $B mount -o move /$f /r/$f; done
exec $B switch_root /r /out/init
END
    chmod +x "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$here/initrd-$1.gz"
    rm -rf "$tree"
}

compile_object() { # here, natively, with the types of that kernel: in the guest it takes minutes
    local types=$here/btf-$1 elf=$here/elf-$1
    if [ ! -s "$types" ]; then
        python3 - "$(image_of "$1")" "$elf" <<'END'
import subprocess
import sys

data = open(sys.argv[1], "rb").read()
for magic, command in (
    (b"\xfd7zXZ\0", ["xz", "-dc", "--single-stream"]),
    (b"\x28\xb5\x2f\xfd", ["zstd", "-dcq"]),
    (b"\x1f\x8b\x08", ["gzip", "-dc"]),
):
    at = data.find(magic, 0x4000)
    while at > 0:
        out = subprocess.run(command, input=data[at:], capture_output=True).stdout
        if out[:4] == b"\x7fELF":
            open(sys.argv[2], "wb").write(out)
            sys.exit()
        at = data.find(magic, at + 1)
sys.exit("kernels: no ELF in the kernel's image")
END
        objcopy --dump-section ".BTF=$types" "$elf" "$here/unused"
        rm -f "$elf" "$here/unused"
    fi
    # it reads the types where those of the running kernel are, and how many CPUs there may be
    echo "0-$((cpus - 1))" >"$here/possible"
    unshare -m sh -c "mount --bind '$types' /sys/kernel/btf/vmlinux && cd '$source/daemon' &&
        mount --bind '$here/possible' /sys/devices/system/cpu/possible &&
        PYTHONPATH=\$PWD ../.venv/bin/python -P -m parprof.kernel.compiler '$2/object.json'"
}

boot() { # KERNEL COMMAND; its exit status
    local out=$here/out/$1 status=0
    [ -s "$here/initrd-$1.gz" ] || make_initrd "$1"
    rm -rf "$out"
    mkdir -p "$out"
    compile_object "$1" "$out" || say "the BPF programs do not compile for Linux $1 here; the guest will try"
    printf '%s\n' "$2" >"$out/command"
    cat >"$out/init" <<'END'
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
mount -o remount,rw /; mount -t tmpfs t /tmp; mount -t tmpfs r /run; mkdir -p /dev/shm /dev/pts
mount -t tmpfs s /dev/shm; mount -t devpts p /dev/pts; mount -t cgroup2 c /sys/fs/cgroup
mount -t tracefs t /sys/kernel/tracing; mount -t debugfs d /sys/kernel/debug; mount -t bpf b /sys/fs/bpf
mount -t securityfs s /sys/kernel/security; ip link set lo up; hostname vm
cd /src
setsid -w bash /out/command </dev/null >/dev/ttyS1 2>&1; echo $? >/out/status
sync; echo o >/proc/sysrq-trigger; sleep 30
END
    chmod +x "$out/init"
    timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -machine q35 -nodefaults -display none \
        -no-reboot -smp "$cpus" -m "$megabytes" -kernel "$(image_of "$1")" -initrd "$here/initrd-$1.gz" \
        -append "console=ttyS0 root=/dev/vda panic=-1 $arguments" \
        -drive "file=$here/root.img,format=raw,if=virtio,snapshot=on,cache=unsafe" -device virtio-rng-pci \
        -virtfs "local,path=$out,mount_tag=out,security_model=none,id=out" \
        -chardev "file,id=c0,path=$out/console.log" -serial chardev:c0 \
        -chardev "file,id=c1,path=$out/output.log" -serial chardev:c1 || status=$?
    tr -d '\r' <"$out/output.log"
    [ ! -e "$out/status" ] || return "$(cat "$out/status")"
    [ "$status" != 124 ] || say "Linux $1: not done after $seconds s"
    tail -n 5 "$out/console.log" >&2
    return 125
}

while getopts c:m:t:a:x:lrh option; do
    case $option in
    c) cpus=$OPTARG ;;
    m) megabytes=$OPTARG ;;
    t) seconds=$OPTARG ;;
    a) arguments=$OPTARG ;;
    x) command=$OPTARG ;;
    l) list=yes ;;
    r) anew=yes ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ "$(id -u)" = 0 ] || die "run it as root"
[ -x "$source/.venv/bin/python" ] || die "there is no .venv yet: run make .venv/.run"
mkdir -p "$here"
install_packages
use_own_apt
if [ -n "$list" ]; then
    versions
    exit
fi
[ $# -gt 0 ] || mapfile -t kernels < <(versions | sort -V | awk '{print $2}')
[ $# -eq 0 ] || kernels=("$@")
for kernel in "${kernels[@]}"; do get_kernel "$kernel"; done
make_image
failed=0
for kernel in "${kernels[@]}"; do
    say "booting Linux $kernel with $cpus CPUs"
    boot "$kernel" "${command:-.venv/bin/python tests/vm/guest.py /out}" || failed=1
done
[ -n "$command" ] || "$source/.venv/bin/python" "$source/tests/vm/table.py" "$here/out" "${kernels[@]}"
exit $failed
