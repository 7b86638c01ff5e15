#!/usr/bin/env bash
# Every test that needs no GPU, stage by stage; goes on after a failure and fails at the end.  Called by `make check` with the release build's folder.
#   C tests (release), C tests under the address and undefined-behaviour sanitizers, the threaded ones under the thread sanitizer, the daemon over HTTP.
# STAGES chooses: STAGES="c http" scripts/check.sh build/release
set -uo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL # the stages below are builds of their own, not parts of the caller's
build=$1
root=build
stages=${STAGES:-c asan tsan http}
jobs=$(nproc)
times=$root/check-times
: >"$times"
passed=0 failed=0 skipped=0 bad=""

# stage NAME COMMAND...: runs it, keeps its closing line `N passed, M failed[, K skipped]` and its times.
stage() {
    local name=$1 log=$root/check-$1.log t0=$SECONDS rc line
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    line=$(grep -aE '^(=+ )?([0-9]+ (passed|failed|skipped|deselected|xfailed|warnings?|errors?),? ?)+' "$log" | tail -1)
    for word in passed failed errors error skipped; do
        n=$(grep -oE "[0-9]+ $word\b" <<<"$line" | grep -oE '[0-9]+' | head -1)
        case $word in
        passed) passed=$((passed + ${n:-0})) ;;
        skipped) skipped=$((skipped + ${n:-0})) ;;
        *) failed=$((failed + ${n:-0})) ;;
        esac
    done
    if [ "$rc" != 0 ]; then
        bad="$bad $name"
        [ -n "$line" ] || failed=$((failed + 1))
    fi
    echo "== $name: $((SECONDS - t0)) s, exit $rc"
}

for s in $stages; do
    case $s in
    c) stage c make -j"$jobs" FLAVOUR=release test-c ;;
    asan) stage asan make -j"$jobs" FLAVOUR=asan test-c ;;
    tsan) stage tsan make -j"$jobs" FLAVOUR=tsan test-threads ;;
    http) stage http scripts/http_tests.sh "$build" ;;
    *) echo "check: no stage '$s'" >&2; exit 2 ;;
    esac
done

# run_tests.sh and http_tests.sh leave "seconds name" lines in files called times.
cat "$root"/*/tests/log/times "$root"/http-times 2>/dev/null | sort -rn >"$times"
echo "Ten slowest:"
head -10 "$times" | sed 's/^/  /'
[ -z "$bad" ] || echo "Failed stages:$bad"
echo "$passed passed, $failed failed, $skipped skipped"
[ -z "$bad" ] && [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
