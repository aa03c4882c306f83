#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what parprof needs on Debian 12: Debian packages (as root), and a virtual environment in .venv.
#   scripts/setup.sh [run|dev]     run: what `make demo` needs; dev: also what `make test` needs
set -eu
cd "$(dirname "$0")/.."
level=${1:-run}
packages="python3-bpfcc libbpfcc linux-libc-dev gcc libc6-dev libgomp1 python3-venv make binutils"
[ "$level" = run ] || packages="$packages g++ clang llvm libomp-dev golang-go git procps sqlite3 debuginfod prometheus openssl libtbb-dev chromium valgrind libc6-dbg"

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "setup: these Debian packages are missing; install them as root:$missing" >&2
        exit 1
    fi
    echo "setup: installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086
    apt-get -qq install -y --no-install-recommends $missing >/dev/null
fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $python is older than 3.11; set PYTHON to a newer one" >&2
    exit 1
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
extra=
[ "$level" = run ] || extra="[dev]"
# compat: a line with a folder in a .pth file. The other way is a module that each start of Python would import, and
# what that needs: 14 of 23 ms of CPU time.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
    --editable ".$extra"
# once, and not at each start, where the environment tells Python to keep no bytecode
.venv/bin/python -m compileall -q daemon/parprof
touch ".venv/.$level"
