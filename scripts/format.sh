#!/usr/bin/env bash
# clang-format over the tracked source files; --check only says which would change, and fails if any would.
# Headers are laid out by hand: their columns of comments and tables are the point of them.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v clang-format >/dev/null || { echo "format: clang-format is not installed (apt-get install clang-format)" >&2; exit 1; }
case ${1:-} in
"") args=(-i) ;;
--check) args=(--dry-run --Werror) ;;
*) echo "usage: format.sh [--check]" >&2; exit 2 ;;
esac
git ls-files -z -- '*.c' '*.cu' | xargs -0 -r clang-format "${args[@]}"
