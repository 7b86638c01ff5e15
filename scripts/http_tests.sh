#!/usr/bin/env bash
# http_tests.sh [BUILD [pytest arguments...]]: the daemon over HTTP.  Makes a virtual environment in build/venv with tests/requirements.txt once,
# runs pytest on tests/http against BUILD/latentd and BUILD/latentd-fake, leaves "seconds name" lines in build/http-times.
# LATENTD_SOAK=1: the long forms.  The storm of aborted connections also runs against daemons built with the sanitizers, which are made here unless
# LATENTD_QUICK=1.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
shift || true
venv=build/venv
stamp=$venv/.installed

if ! cmp -s tests/requirements.txt "$stamp"; then
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install -q -r tests/requirements.txt
    cp tests/requirements.txt "$stamp"
fi

export LATENTD_BIN=${LATENTD_BIN:-$PWD/$build/latentd}
export LATENTD_FAKE=${LATENTD_FAKE:-$PWD/$build/latentd-fake}
mkdir -p build
if [ -z "${LATENTD_QUICK:-}" ]; then
    for flavour in asan tsan; do
        make -j"$(nproc)" FLAVOUR=$flavour "build/$flavour/latentd-fake"
    done
    export LATENTD_FAKE_ASAN=${LATENTD_FAKE_ASAN:-$PWD/build/asan/latentd-fake}
    export LATENTD_FAKE_TSAN=${LATENTD_FAKE_TSAN:-$PWD/build/tsan/latentd-fake}
fi
[ $# -gt 0 ] || set -- tests/http
exec "$venv/bin/python" -m pytest -p no:cacheprovider -q --durations=10 "$@"
