#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Boots systemd as PID 1 of a machine of its own: namespaces, and this machine's root below an overlay that
# takes all writes and is gone afterwards. Call as root in a mount namespace of its own (unshare -m),
# whose mounts are private:
#   boot.sh DIRECTORY SOURCE CGROUP     DIRECTORY: an empty one; CGROUP: an empty cgroup of version 2
# parprof is installed from SOURCE by its own install script before the boot.
set -eu
directory=$1 source=$2 cgroup=$3
root=$directory/root
mount -t tmpfs -o mode=755 tmpfs "$directory"
mkdir "$directory/upper" "$directory/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm" "$root/tmp/source"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount --bind "$source" "$root/tmp/source"
# Other file systems of this machine (packages that are bound in, say) are not below the overlay.
awk '$5 != "/" { print $5 }' /proc/self/mountinfo | while read -r point; do
    case $point in
    /proc* | /sys* | /dev* | /run* | /tmp* | "$directory"* | *\\*) continue ;;
    esac
    if [ -d "$point" ] && [ -d "$root$point" ]; then
        mount --bind "$point" "$root$point" && mount -o remount,bind,ro "$root$point"
    fi
done
if [ -L "$root/etc/resolv.conf" ]; then # to /run, most likely
    rm -f "$root/etc/resolv.conf"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf" || true
fi

inside() { chroot "$root" /usr/bin/env "$@"; }
export DEBIAN_FRONTEND=noninteractive
if ! [ -x "$root/lib/systemd/systemd" ]; then
    inside apt-get -qq update
    inside apt-get -qq install -y --no-install-recommends systemd systemd-sysv >/dev/null
fi
inside /tmp/source/scripts/install.sh >&2
umount "$root/tmp/source"

# What this machine starts at boot is none of our business.
rm -rf "$root/etc/systemd/system"/*.wants "$root/etc/systemd/system"/*.requires
: >"$root/etc/fstab"
: >"$root/etc/machine-id"
# The kernel is shared: nothing may set its variables, clock or modules.
for unit in resolved networkd timesyncd sysctl modules-load remount-fs random-seed udevd; do
    ln -sf /dev/null "$root/etc/systemd/system/systemd-$unit.service"
done
ln -sf /dev/null "$root/etc/systemd/system/ldconfig.service"
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nRateLimitIntervalSec=0\n' >"$root/etc/systemd/journald.conf.d/test.conf"

umount "$root/proc"
echo $$ >"$cgroup/cgroup.procs"
# shellcheck disable=SC2016
exec unshare --cgroup --pid --fork --uts --ipc --net --kill-child sh -eu -c '
    root=$1
    mount -t proc proc "$root/proc"
    mount --bind "$root/proc/sys" "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio,-wake_alarm \
        chroot "$root" /lib/systemd/systemd --show-status=no systemd.unit=multi-user.target
' sh "$root" </dev/null
