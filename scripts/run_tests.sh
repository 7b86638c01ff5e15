#!/usr/bin/env bash
# run_tests.sh BUILD bin...: runs cmocka test binaries, one process each with a time limit (TEST_TIMEOUT, default 300
# seconds).  Output goes to BUILD/tests/log/NAME.log and is shown for those that fail; "seconds name" of each to
# BUILD/tests/log/times.  Ends with the ten slowest and "N passed, M failed" (", K skipped" if any were), which count
# test cases; fails if anything failed or nothing ran.
set -uo pipefail

[ $# -ge 1 ] || { echo "usage: run_tests.sh BUILD bin..." >&2; exit 2; }
build=$1
shift
limit=${TEST_TIMEOUT:-300}
logs=$build/tests/log
mkdir -p "$logs"
times=$logs/times
: >"$times"
passed=0 failed=0 skipped=0

# The number in cmocka's "[  PASSED  ] 12 test(s)." lines of a log, all groups together.
count() { sed -n "s/^\[  $2 *\] \([0-9]*\) test.*/\1/p" "$1" | awk '{ n += $1 } END { print n + 0 }'; }

for bin in "$@"; do
    name=$(basename "$bin")
    log=$logs/$name.log
    start=$(date +%s.%N)
    timeout --kill-after=10 "$limit" "$bin" >"$log" 2>&1 </dev/null
    rc=$?
    took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    echo "$took $name" >>"$times"
    p=$(count "$log" PASSED) f=$(count "$log" FAILED) s=$(count "$log" SKIPPED)
    why=""
    if [ $rc = 124 ] || [ $rc = 137 ]; then
        why=" (over its limit of $limit s)"
    elif [ $rc != 0 ] && [ "$f" = 0 ]; then
        why=" (exit status $rc)"
    elif [ $rc = 0 ] && [ $((p + f + s)) = 0 ]; then
        why=" (ran no test case)"
    fi
    # What ended a binary outside its test cases is a failure of its own.
    [ -z "$why" ] || f=$((f + 1))
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" = 0 ]; then
        [ "$s" = 0 ] || why=" ($s skipped)"
        echo "ok $name ${took}s$why"
    else
        echo "FAIL $name ${took}s$why"
        sed 's/^/    /' "$log"
    fi
done

if [ $# -gt 0 ]; then
    echo "slowest:"
    sort -rn "$times" | head -n 10 | sed 's/^\([0-9.]*\) /  \1s /'
fi
[ $skipped = 0 ] && skips="" || skips=", $skipped skipped"
echo "$passed passed, $failed failed$skips"
[ $failed = 0 ] && [ $((passed + skipped)) -gt 0 ]
