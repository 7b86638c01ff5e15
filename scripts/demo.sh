#!/bin/sh
# Serves the bundled checkpoint and prints a curl line that works; Ctrl-C ends it.  PORT and HOST choose where.
set -eu
cd "$(dirname "$0")/.."
host=${HOST:-127.0.0.1}
port=${PORT:-8000}
build/latentd --model tests/models/demo --host "$host" --port "$port" --log-level warn "$@" &
pid=$!
trap 'kill -TERM $pid 2>/dev/null; wait $pid 2>/dev/null; exit 0' INT TERM
i=0
until curl -fs -o /dev/null "http://$host:$port/ready"; do
    kill -0 $pid 2>/dev/null || { wait $pid; exit $?; }
    i=$((i + 1))
    [ $i -lt 300 ] || { echo "demo: not ready after 30 s" >&2; kill $pid; exit 1; }
    sleep 0.1
done
cat <<TEXT

latentd serves tests/models/demo on http://$host:$port (Ctrl-C ends it).  Try, in another terminal:

  curl http://$host:$port/v1/completions -H 'Content-Type: application/json' \\
    -d '{"prompt": "In the beginning", "max_tokens": 60, "temperature": 0.7}'

and the same with "stream": true (curl -N) to watch it come.
TEXT
wait $pid
