#!/usr/bin/env bash
# Every fuzz target of the module for a while each: test/fuzz.sh [duration]. Fails on what a target finds and on nothing else.
#
# Three habits of go test -fuzz are in the way of a short run. It minimises an input that is merely interesting for up to a minute,
# so that ten seconds may pass without one new input: two hundred executions are enough. And up to Go 1.26 its coordinator may take
# its own deadline for a failure (golang/go#75804): a run that says "context deadline exceeded", and neither names a failing input
# nor says anything else, has found nothing. A worker that was not run for ten seconds, on a machine that does other things, takes
# itself for hung and dies: an input that "hung" is run once more by itself, and what it does then counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$(mktemp)
trap 'rm -f "$out"' EXIT

only_the_deadline() {
  ! grep -q 'Failing input written to\|panic:\|fuzzing process' "$out" &&
    [ "$(sed -n '/^--- FAIL: /,/^FAIL$/p' "$out" | sed '1d;$d' | tr -d ' ')" = contextdeadlineexceeded ]
}

# once_more DIR TARGET runs the input that a worker is said to have hung on; a real fault fails again, or hangs until the timeout.
once_more() {
  grep -q 'fuzzing process hung' "$out" || return 1
  local input
  input=$(sed -n "s|.*Failing input written to testdata/fuzz/$2/||p" "$out")
  [ -n "$input" ] && ${GO:-go} test -run "^$2\$/^$input\$" -timeout 60s "$1" </dev/null && rm "$1/testdata/fuzz/$2/$input"
}

grep -rlE '^func Fuzz' --include='*_test.go' --exclude-dir=bench . | xargs -n1 dirname | sort -u | while read -r dir; do
  grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/func //' | while read -r target; do
    echo "== $dir $target"
    if ! ${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-30s}" -fuzzminimizetime 200x "$dir" </dev/null >"$out" 2>&1; then
      if only_the_deadline; then
        echo "nothing found; the coordinator met its own deadline (golang/go#75804)"
        grep '^fuzz: ' "$out" | tail -n 1
        continue
      fi
      cat "$out"
      if once_more "$dir" "$target"; then
        echo "nothing found; the machine stood still"
        continue
      fi
      exit 1
    fi
    tail -n 3 "$out"
  done
done
