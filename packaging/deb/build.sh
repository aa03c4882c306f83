#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a Debian package for Debian 12 on Debian 12, with dpkg-deb alone: packaging/deb/build.sh [DIRECTORY]
# It holds a virtual environment in /usr/lib/parprof, as symbolic is not in Debian and capstone is too old there.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$source/dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$source/daemon/parprof/__init__.py")
[ -n "$version" ] || { echo "build: no version in daemon/parprof/__init__.py" >&2; exit 1; }
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

"$source/scripts/install.sh" --destdir "$stage" --prefix /usr/lib/parprof --bindir /usr/bin \
    --unitdir /lib/systemd/system --no-packages
rm -rf "$stage/usr/lib/parprof/share"
documents=$stage/usr/share/doc/parprofd
mkdir -p "$documents" "$stage/DEBIAN"
install -m 644 "$source/README.md" "$source/CHANGELOG.md" "$source"/docs/*.md "$documents/"
{
    echo "Files: *"
    echo "License: Apache-2.0"
    echo
    cat "$source/LICENSE"
    echo
    echo "The packages below /usr/lib/parprof/lib are their authors'; each has its licence beside it."
} >"$documents/copyright"

python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
after=$(echo "$python" | awk -F. '{ print $1 "." $2 + 1 }')
cat >"$stage/DEBIAN/control" <<CONTROL
Package: parprofd
Version: $version
Architecture: amd64
Maintainer: parprofd maintainers <maintainers@parprofd.invalid>
Installed-Size: $(du -sk "$stage/usr" | cut -f1)
Depends: python3 (>= $python), python3 (<< $after), python3-bpfcc, libbpfcc, linux-libc-dev, libc6
Recommends: binutils
Suggests: valgrind, libc6-dbg, gcc
Section: devel
Priority: optional
Description: profiler that shows where the cores of parallel programs stand idle
 parprof attaches to running programs, without recompiling them, and says which
 line of code keeps how many cores waiting. parprofd does so for a whole machine,
 all the time, within a budget, for Prometheus, pprof and Pyroscope.
CONTROL
echo /etc/parprofd/parprofd.toml >"$stage/DEBIAN/conffiles"
cat >"$stage/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    # An upgrade goes on as it was; a first installation starts nothing.
    systemctl --quiet try-restart parprofd.service || true
fi
POSTINST
cat >"$stage/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --quiet disable --now parprofd.service parprofd.socket || true
fi
find /usr/lib/parprof -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
PRERM
cat >"$stage/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
if [ "$1" = purge ]; then rm -rf /var/cache/parprof /var/lib/parprofd /etc/parprofd; fi
POSTRM
chmod 755 "$stage/DEBIAN/postinst" "$stage/DEBIAN/prerm" "$stage/DEBIAN/postrm"
package=$out/parprofd_${version}_amd64.deb
dpkg-deb --root-owner-group --build "$stage" "$package" >&2
echo "$package"
