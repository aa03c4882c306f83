#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a Debian package for Debian 12 on Debian 12, with dpkg-deb and strip: packaging/deb/build.sh [DIRECTORY]
# It holds a virtual environment in /usr/lib/parprof, as symbolic is not in Debian and capstone is too old there.
# The same sources and tools give the same bytes; SOURCE_DATE_EPOCH is the last commit's time unless it is set.
set -eu
umask 022
export LC_ALL=C TZ=UTC PYTHONHASHSEED=0
source=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$source/dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$source/daemon/parprof/__init__.py")
[ -n "$version" ] || { echo "build: no version in daemon/parprof/__init__.py" >&2; exit 1; }
command -v strip >/dev/null || { echo "build: strip is missing: apt install binutils" >&2; exit 1; }
# without a repository the newest source file tells
: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null ||
    find "$source/daemon" "$source/bpf" "$source/scripts" -name '*.[pch]*' -printf '%Ts\n' | sort -n | tail -1)}"
export SOURCE_DATE_EPOCH
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

"$source/scripts/install.sh" --destdir "$stage" --prefix /usr/lib/parprof --bindir /usr/bin \
    --unitdir /lib/systemd/system --no-packages
environment=$stage/usr/lib/parprof
rm -rf "$environment/share"
packages=$(echo "$environment"/lib/python3.*/site-packages)
# What only installs others (pip, setuptools), what only building needs (milksnake), and what rich needs for Markdown
# and source code alone, which nobody shows here; and the commands of all of these.
for name in pip setuptools pkg_resources _distutils_hack milksnake pygments markdown_it markdown_it_py mdurl; do
    rm -rf "$packages/$name" "$packages/$name"-*.dist-info
done
rm -f "$packages/distutils-precedence.pth"
find "$environment/bin" -mindepth 1 ! -name 'python*' ! -name parprof ! -name parprofd -delete
# tests, types, what dlopen never asks for, and where it was built: RECORD has hashes of that
find "$packages" -depth -type d \( -name tests -o -name test -o -name __pycache__ -o -path '*/capstone/include' \) -exec rm -rf {} +
find "$packages" -type f \( -name '*.pyi' -o -name py.typed -o -name '*.a' -o -name RECORD -o -name direct_url.json \
    -o -name INSTALLER -o -name REQUESTED \) -delete
find "$packages" -type f -name '*.so*' -exec strip --strip-unneeded {} +
# Ours keep their symbols; what depends on the directory that they were built in goes.
find "$environment/libexec" -type f -name '*.so' \
    -exec strip --strip-debug --remove-section=.note.gnu.build-id {} + 2>/dev/null || true
# Byte code is made where it is installed, as Debian's packages do that (postinst, prerm).
find "$environment/lib" -depth -type d -name __pycache__ -exec rm -rf {} +
# modules that cannot be imported without what was left out above, or on Linux at all; and what nothing here imports:
# symbolic was built with cffi, and needs its backend alone
(cd "$packages" && rm -rf rich/markdown.py rich/syntax.py rich/traceback.py rich/_win*.py \
    cffi pycparser pycparser-*.dist-info prometheus_client/parser.py prometheus_client/openmetrics/parser.py \
    psutil/_psaix.py psutil/_psbsd.py psutil/_psosx.py psutil/_pssunos.py psutil/_pswindows.py \
    google/protobuf/compiler google/protobuf/testdata google/protobuf/descriptor_pb2.py google/protobuf/json_format.py \
    google/protobuf/internal/*_benchmark.py)
PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$source/scripts/sbom.py" >"$stage/sbom"
documents=$stage/usr/share/doc/parprofd
mkdir -p "$documents" "$stage/DEBIAN"
install -m 644 "$source/README.md" "$source/CHANGELOG.md" "$source"/docs/*.md "$documents/"
install -D -m 644 -t "$documents/pictures" "$source"/docs/pictures/*.png
gzip -9n "$documents/CHANGELOG.md" "$stage"/usr/share/man/man*/*
mv "$stage/sbom" "$documents/sbom.cdx.json"
chmod 644 "$documents/sbom.cdx.json"
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
Installed-Size: $(du -sk --apparent-size "$stage/usr" | cut -f1)
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
if [ "$1" = configure ]; then
    # The service cannot write there; without this, each start would compile all modules anew.
    /usr/bin/python3 -m compileall -q /usr/lib/parprof/lib >/dev/null || true
fi
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
find "$stage" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group --threads-max=1 --build "$stage" "$package" >&2
echo "$package"
