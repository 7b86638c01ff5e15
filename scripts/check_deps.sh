#!/usr/bin/env bash
# Who may include whom (design page): fails on every #include "folder/x.h" outside the table.  A folder's public
# header is folder/folder.h (and model/tokenizer.h); all others are for the folder itself and for its own tests.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A may=(
    [config]="config"
    [kernels]="kernels config"
    [mempool]="mempool kernels config"
    [radix]="radix config"
    [model]="model kernels mempool config"
    [scheduler]="scheduler radix mempool model config"
    [server]="server scheduler model config"
)
folders="config kernels mempool radix model scheduler server"
all="$folders tests"
bad=0

complain() {
    echo "check-deps: $1:$2: #include \"$3\": $4" >&2
    bad=1
}

while IFS=: read -r file line text; do
    inc=$(sed -n 's/^[ \t]*#[ \t]*include[ \t]*"\([^"]*\)".*/\1/p' <<<"$text")
    [ -n "$inc" ] || continue
    from=${file%%/*}
    to=${inc%%/*}
    # The test's own folder: tests/test_<folder>_<topic>.c, tests/bench/bench_<folder>_..., tests/fuzz/fuzz_<folder>_...
    owner=$from
    if [ "$from" = tests ]; then
        owner=$(basename "$file" | sed -n 's/^\(test\|bench\|fuzz\)_\([a-z]*\)[_.].*/\2/p')
    fi
    case " $all " in
    *" $to "*) ;;
    *)
        complain "$file" "$line" "$inc" "write it as \"folder/x.h\" with one of our folders"
        continue
        ;;
    esac
    if [ "$to" = tests ]; then
        [ "$from" = tests ] || complain "$file" "$line" "$inc" "only tests/ may include tests/"
        continue
    fi
    if [ "$from" != tests ]; then
        case " ${may[$from]} " in
        *" $to "*) ;;
        *)
            complain "$file" "$line" "$inc" "$from/ may include: ${may[$from]}"
            continue
            ;;
        esac
    fi
    case $inc in
    "$to/$to.h") ;;
    model/tokenizer.h) ;;
    *)
        # tests/support/ serves several folders' tests; a fuzzer is named after its parser: both may look where it lies.
        if [ "$owner" != "$to" ] && [[ $file != tests/support/* && $file != tests/fuzz/* ]]; then
            complain "$file" "$line" "$inc" "private to $to/"
        fi
        ;;
    esac
    if [ "$from" = server ] && [ "$inc" = model/model.h ] && [ "$file" != server/main.c ]; then
        complain "$file" "$line" "$inc" "of model/ the server may use the tokenizer only (main.c, which wires, the rest)"
    fi
done < <(find $all -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print0 |
    sort -z | xargs -0 -r grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' || true)

exit $bad
