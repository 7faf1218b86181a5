#!/usr/bin/env bash
# fuzz.sh [TIME]: runs each fuzz target of the module for TIME (default: 30s). Fails if a target finds an input that
# fails.
#
# In short runs, go test -fuzz has three problems that this script solves:
#
#   - go test makes an interesting input smaller for up to a minute, and may try no new input in a run of ten seconds.
#     The script limits this to 200 executions.
#   - Up to Go 1.26, go test may report its own deadline as a failure (golang/go#75804). The script takes a run for
#     good if it prints only "context deadline exceeded" and no failing input.
#   - A process that gets no CPU for ten seconds reports that it hung. The script runs the input of such a process once
#     more alone, and this result counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
out=$work/out binary=$work/fuzz.test
trap 'rm -rf "$work"' EXIT

only_the_deadline() {
  ! grep -q 'Failing input written to\|panic:\|fuzzing process' "$out" &&
    [ "$(sed -n '/^--- FAIL: /,/^FAIL$/p' "$out" | sed '1d;$d' | tr -d ' ')" = contextdeadlineexceeded ]
}

# once_more DIR TARGET runs the input with which a process hung. A real fault fails again, or hangs until the timeout.
once_more() {
  grep -q 'fuzzing process hung' "$out" || return 1
  local input
  input=$(sed -n "s|.*Failing input written to testdata/fuzz/$2/||p" "$out")
  [ -n "$input" ] && (cd "$1" && "$binary" -test.run "^$2\$/^$input\$" -test.timeout 60s) && rm "$1/testdata/fuzz/$2/$input"
}

# The targets of a package share one binary: to link it takes longer than a short run. go test would do the rest as here:
# it runs the binary in the package's folder and keeps the interesting inputs in the build cache.
grep -rlE '^func Fuzz' --include='*_test.go' --exclude-dir=bench . | xargs -n1 dirname | sort -u | while read -r dir; do
  ${GO:-go} test -c -vet=off -fuzz . -o "$binary" "$dir" </dev/null
  kept=$(${GO:-go} env GOCACHE)/fuzz/$(${GO:-go} list "$dir")
  grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/func //' | while read -r target; do
    echo "== $dir $target"
    if ! (cd "$dir" && "$binary" -test.paniconexit0 -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${1:-30s}" -test.fuzzminimizetime 200x -test.fuzzcachedir "$kept") </dev/null >"$out" 2>&1; then
      if only_the_deadline; then
        echo "nothing found; the coordinator met its own deadline (golang/go#75804)"
        grep '^fuzz: ' "$out" | tail -n 1
        continue
      fi
      cat "$out"
      if once_more "$dir" "$target"; then
        echo "nothing found; the worker had no processor"
        continue
      fi
      exit 1
    fi
    tail -n 2 "$out"
  done
done
