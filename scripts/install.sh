#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs parprof and parprofd on Debian 12, or whatever is like it. Run it as root; again to upgrade.
#
#   scripts/install.sh [--enable]             install; --enable: start parprofd now and at each boot
#   scripts/install.sh --uninstall [--purge]  remove; --purge: configuration, caches and spools too
#
#   --prefix DIR     the virtual environment (default /opt/parprof)
#   --bindir DIR     links to the commands (default /usr/local/bin)
#   --unitdir DIR    systemd units (default /usr/local/lib/systemd/system)
#   --destdir DIR    put all of it below DIR, for packages and images; starts nothing
#   --no-packages    don't install Debian packages
#   --no-systemd     no units
#   --unlocked       the newest Python packages, instead of those of packaging/python/*.lock with their hashes
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
prefix=/opt/parprof bindir=/usr/local/bin unitdir=/usr/local/lib/systemd/system destdir=
packages=yes systemd=yes enable= action=install purge= locked=yes
say() { echo "install: $*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '3,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --bindir | --unitdir | --destdir)
        case ${2:-} in /*) ;; *) say "$1 needs an absolute path"; exit 2 ;; esac
        case $1 in --prefix) prefix=$2 ;; --bindir) bindir=$2 ;; --unitdir) unitdir=$2 ;; *) destdir=${2%/} ;; esac
        shift ;;
    --no-packages) packages= ;;
    --no-systemd) systemd= ;;
    --unlocked) locked= ;;
    --enable) enable=yes ;;
    --uninstall) action=uninstall ;;
    --purge) purge=yes ;;
    *) usage ;;
    esac
    shift
done
[ -n "$destdir" ] || [ "$(id -u)" = 0 ] || die "run it as root"
config=/etc/parprofd/parprofd.toml
marker=$prefix/share/parprofd.toml # as installed last: tells whether the administrator has edited the other one
runs_systemd() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }
is_ours() { [ -L "$1" ] && [ "$(readlink "$1")" = "$2" ]; }

if [ "$action" = uninstall ]; then
    if runs_systemd; then
        systemctl --quiet disable --now parprofd.service parprofd.socket 2>/dev/null || true
    fi
    for name in parprof parprofd; do
        if is_ours "$destdir$bindir/$name" "$prefix/bin/$name"; then rm -f "$destdir$bindir/$name"; fi
        if [ -f "$destdir$unitdir/$name.service" ]; then rm -f "$destdir$unitdir/$name.service"; fi
        rm -f "$destdir$unitdir/$name.socket"
    done
    edited=yes
    if cmp -s "$destdir$config" "$destdir$marker"; then edited=; fi
    if [ -z "$edited" ] || [ -n "$purge" ]; then rm -f "$destdir$config" "$destdir$config.new"; fi
    share=$destdir$(dirname "$bindir")/share
    rm -f "$share"/man/man1/parprof.1 "$share"/man/man1/parprof-*.1 "$share"/man/man8/parprofd.8
    for name in parprof parprofd; do
        rm -f "$share/bash-completion/completions/$name" "$share/zsh/site-functions/_$name" \
            "$share/fish/vendor_completions.d/$name.fish"
    done
    rmdir "$destdir/etc/parprofd" 2>/dev/null || true
    if [ -e "$destdir$prefix/pyvenv.cfg" ]; then rm -rf "$destdir$prefix"; fi
    if [ -n "$purge" ]; then rm -rf "$destdir/var/cache/parprof" "$destdir/var/lib/parprofd"; fi
    if runs_systemd; then systemctl daemon-reload; fi
    [ ! -e "$destdir$config" ] || say "kept $config; --purge removes it"
    say "removed"
    exit 0
fi

[ "$(uname -m)" = x86_64 ] || die "this machine is no x86-64: parprof works only there"
if [ -n "$packages" ]; then
    missing=
    for package in python3 python3-venv python3-bpfcc libbpfcc linux-libc-dev; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
            missing="$missing $package"
    done
    if [ -n "$missing" ]; then
        say "installing$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update
        # shellcheck disable=SC2086
        apt-get -qq install -y --no-install-recommends $missing >/dev/null
    fi
fi
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$python is missing or older than 3.11; set PYTHON to a newer one"
for name in parprof parprofd; do
    link=$destdir$bindir/$name
    if [ -e "$link" ] || [ -L "$link" ]; then
        is_ours "$link" "$prefix/bin/$name" || die "$link is in the way; remove it, or choose another --bindir"
    fi
done

environment=$destdir$prefix
if [ -e "$environment" ] && [ ! -e "$environment/pyvenv.cfg" ] && [ -n "$(ls -A "$environment")" ]; then
    die "$environment exists and is no virtual environment; remove it, or choose another --prefix"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Setuptools writes next to what it builds; the sources may belong to somebody else.
mkdir "$work/source"
cp -R "$source/pyproject.toml" "$source/README.md" "$source/LICENSE" "$source/daemon" "$source/bpf" "$source/instrument" "$work/source/"
find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
say "making $environment"
"$python" -m venv "$environment"
pip() { "$environment/bin/python" -m pip --quiet --quiet --disable-pip-version-check "$@"; }
if [ -n "$locked" ]; then
    locks=$source/packaging/python
    pip install --no-compile --only-binary=:all: --require-hashes --requirement "$locks/requirements.lock" ||
        die "these are not the packages of the lock file, or not for this Python; see docs/install.md"
    # what builds ours is not installed
    pip install --no-compile --only-binary=:all: --require-hashes --requirement "$locks/build.lock" --target "$work/build"
    PYTHONPATH=$work/build pip wheel --no-index --no-deps --no-build-isolation --wheel-dir "$work/wheel" "$work/source"
    pip install --no-compile --no-index --no-deps --force-reinstall "$work"/wheel/parprofd-*.whl
else
    pip install --no-compile --upgrade "$work/source"
fi
if [ -n "$destdir" ]; then
    grep -rlI "$destdir" "$environment/bin" "$environment/pyvenv.cfg" | xargs -r sed -i "s|$destdir||g"
fi
# The service cannot write here; without this, each start would compile all modules anew.
"$python" -m compileall -q -f -s "$destdir" "$environment/lib" >/dev/null || true

# what is loaded into programs: where there is no compiler now, one is needed when it is first used
if command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null; then
    "$environment/bin/python" -m parprof.prebuilt "$environment/libexec/parprof" ||
        say "parprof scale and parprof input --tool tsan will want a C compiler (gcc, libc6-dev)"
fi

mkdir -p "$destdir$bindir" "$destdir/etc/parprofd" "$environment/share"
ln -sfn "$prefix/bin/parprof" "$destdir$bindir/parprof"
ln -sfn "$prefix/bin/parprofd" "$destdir$bindir/parprofd"
# man pages and completions, where the commands' own shells look for them
"$environment/bin/python" -m parprof.manuals "$destdir$(dirname "$bindir")/share"
if [ -n "$systemd" ]; then
    mkdir -p "$destdir$unitdir"
    sed "s|^ExecStart=/usr/bin/|ExecStart=$bindir/|" "$source/systemd/parprofd.service" >"$work/unit"
    install -m 644 "$work/unit" "$destdir$unitdir/parprofd.service"
    install -m 644 "$source/systemd/parprofd.socket" "$destdir$unitdir/parprofd.socket"
fi
if [ ! -e "$destdir$config" ] || cmp -s "$destdir$config" "$destdir$marker"; then
    install -m 644 "$source/systemd/parprofd.toml" "$destdir$config"
elif ! cmp -s "$source/systemd/parprofd.toml" "$destdir$config"; then
    install -m 644 "$source/systemd/parprofd.toml" "$destdir$config.new"
    say "kept your $config; what this version brings is in $config.new"
fi
install -m 644 "$source/systemd/parprofd.toml" "$destdir$marker"

[ -n "$destdir" ] || say "$("$bindir/parprof" --version) is in $bindir"
if runs_systemd && [ -n "$systemd" ]; then
    systemctl daemon-reload
    if [ -n "$enable" ]; then systemctl --quiet enable parprofd.service; systemctl restart parprofd.service
    elif systemctl --quiet is-active parprofd.service; then say "to use it: systemctl restart parprofd"
    else say "to start it: systemctl enable --now parprofd"
    fi
elif [ -n "$enable" ] && [ -n "$systemd" ] && [ -z "$destdir" ]; then
    systemctl --quiet enable parprofd.service
fi
