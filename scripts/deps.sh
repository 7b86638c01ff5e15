#!/usr/bin/env bash
# Installs what building and testing latentd needs and this machine lacks (Debian 12 and 13).  Does nothing, at once,
# when all is there.  As root, or as a user who may sudo.
set -euo pipefail

packages=(
    gcc g++ make pkg-config libc6-dev git
    libmicrohttpd-dev libuv1-dev libcjson-dev libpcre2-dev
    libcmocka-dev curl python3 python3-venv python3-pip ca-certificates
)

command -v dpkg-query >/dev/null || {
    echo "deps: this is no Debian system (no dpkg). Install by hand what these packages hold: ${packages[*]}" >&2
    exit 1
}

# Packages that one of ours provides under another name (pkg-config by pkgconf) count as installed.
missing=()
installed=$(dpkg-query -W -f '${db:Status-Abbrev}|${Package}, ${Provides}\n' 2>/dev/null | sed -n 's/^.i *|//p' |
    tr ',' '\n' | sed 's/^ *//; s/[ (].*//' | sort -u)
for p in "${packages[@]}"; do
    grep -qxF -e "$p" <<<"$installed" || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

run=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps: missing: ${missing[*]}" >&2
        echo "deps: run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    }
    run=(sudo)
fi

echo "deps: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
get() { "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" >"$log" 2>&1; }
# The lists may be absent (a fresh root) or older than the mirror: fetched only then, since that is slow.
if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || ! get install --no-install-recommends "${missing[@]}"; then
    if ! get update || ! get install --no-install-recommends "${missing[@]}"; then
        cat "$log" >&2
        echo "deps: could not install: ${missing[*]}" >&2
        exit 1
    fi
fi
