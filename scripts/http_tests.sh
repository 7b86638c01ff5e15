#!/usr/bin/env bash
# http_tests.sh [BUILD [pytest arguments...]]: the daemon over HTTP.  Makes a virtual environment in build/venv with tests/requirements.txt once,
# runs pytest on tests/http against BUILD/latentd and BUILD/latentd-fake, leaves "seconds name" lines in build/http-times.
# LATENTD_SOAK=1: the long forms.
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
[ $# -gt 0 ] || set -- tests/http
exec "$venv/bin/python" -m pytest -p no:cacheprovider -q --durations=10 "$@"
