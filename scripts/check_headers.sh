#!/usr/bin/env bash
# Every public header compiles alone, as C17 and as C++17 (a .cu file includes it as C++).
set -euo pipefail
cd "$(dirname "$0")/.."

CC=${CC:-gcc} CXX=${CXX:-g++}
warn="-Wall -Wextra -Werror -I."
bad=0
for h in config/config.h kernels/kernels.h mempool/mempool.h radix/radix.h model/model.h model/tokenizer.h \
    scheduler/scheduler.h server/server.h; do
    [ -f "$h" ] || { echo "check-headers: $h is missing" >&2; bad=1; continue; }
    # Twice: the guard is part of it.
    src="#include \"$h\""$'\n'"#include \"$h\""
    $CC -std=c17 -D_GNU_SOURCE $warn -fsyntax-only -x c - <<<"$src" || { echo "check-headers: $h fails as C17" >&2; bad=1; }
    $CXX -std=c++17 $warn -fsyntax-only -x c++ - <<<"$src" || { echo "check-headers: $h fails as C++17" >&2; bad=1; }
done
exit $bad
