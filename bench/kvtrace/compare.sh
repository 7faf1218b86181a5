#!/usr/bin/env bash
# Runs Warmpath's index and the indexes of other projects (peers) on the same workload files, one after another, and
# prints a table of ratios.
#
#   bench/kvtrace/compare.sh            speed and memory, about 4 minutes
#   bench/kvtrace/compare.sh hard       right answers on traces with holes, second copies, re-cut blocks, restarts
#
# PEERBENCH  path of the binary peerbench; not set: it is built from bench/peerbench (Rust)
# CACHE      folder for traces and the binary peerbench  (default ~/.cache/warmpath)
# PASSES     number of passes; figures are medians over the passes  (default 3)
# PEERS      names of the peers' indexes  (default dynamo-radix dynamo-crtc smg-chain smg-chain-into;
#            for hard: seven indexes)
# VERBS      what to measure  (default lookup replay apply mem conc hash)
# LINES      file in which to keep the raw lines
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-speed}
cache=${CACHE:-$HOME/.cache/warmpath}
passes=${PASSES:-3}
peers=${PEERS:-dynamo-radix dynamo-crtc smg-chain smg-chain-into}
verbs=${VERBS:-lookup replay apply mem conc hash}
lines=${LINES:-$(mktemp)}
: >"$lines"
mkdir -p "$cache/traces"

peerbench() {
  if [ -n "${PEERBENCH:-}" ]; then echo "$PEERBENCH"; return; fi
  local built="$cache/peerbench/release/peerbench"
  if [ ! -x "$built" ]; then
    echo "building the peers' harness from bench/peerbench (Rust, some 3 minutes)" >&2
    CARGO_TARGET_DIR="$cache/peerbench" cargo build --release --locked --manifest-path peerbench/Cargo.toml >&2
  fi
  echo "$built"
}

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
CGO_ENABLED=0 go build -o "$bin/kvtrace" ./kvtrace
peerbench=$(peerbench)

# trace NAME FLAGS... makes a workload file if it does not exist, and prints its path.
trace() {
  local file="$cache/traces/$1.trace"
  shift
  [ -s "$file" ] || "$bin/kvtrace" make -o "$file" "$@" >&2
  echo "$file"
}

# note NAME COMMAND... runs COMMAND and keeps its output lines, each with NAME (the workload) before it.
note() {
  local name=$1
  shift
  "$@" 2>/dev/null | sed "s/^/$name\t/" >>"$lines" || echo "failed: $*" >&2
}

speed() {
  local name file pass verb peer rate cut
  for name in main mem1m shared; do trace "$name" -preset "$name" >/dev/null; done
  for pass in $(seq "$passes"); do
    echo "pass $pass of $passes" >&2
    for name in main mem1m shared; do
      file="$cache/traces/$name.trace"
      case " $verbs " in *" lookup "*)
        for verb in lookup lookup-local lookup-tokens; do note $name "$bin/kvtrace" $verb "$file" 10; done
        for peer in $peers; do note $name "$peerbench" "$peer" lookup "$file" 10; done ;;
      esac
      case " $verbs " in *" apply "*)
        note $name "$bin/kvtrace" apply "$file" 3
        for peer in $peers; do [ "$peer" = smg-chain-into ] || note $name "$peerbench" "$peer" apply "$file" 3; done ;;
      esac
      case " $verbs " in *" mem "*)
        note $name "$bin/kvtrace" mem "$file"
        for peer in $peers; do [ "$peer" = smg-chain-into ] || note $name "$peerbench" "$peer" mem "$file"; done ;;
      esac
    done
    file="$cache/traces/main.trace"
    case " $verbs " in *" replay "*)
      note main "$bin/kvtrace" replay "$file" 1
      for peer in $peers; do note main "$peerbench" "$peer" replay "$file" 1; done ;;
    esac
    case " $verbs " in *" apply "*)
      for cut in 16 1; do
        note main env SPLIT=$cut "$bin/kvtrace" apply "$file" 2
        note main env SPLIT=$cut CHANNEL=1 "$bin/kvtrace" apply "$file" 2
        for peer in $peers; do [ "$peer" = smg-chain-into ] || note main env SPLIT=$cut "$peerbench" "$peer" apply "$file" 2; done
      done ;;
    esac
    case " $verbs " in *" conc "*)
      for rate in 0 500000; do
        note main "$bin/kvtrace" conc "$file" $rate 1
        for peer in $peers; do [ "$peer" = dynamo-radix ] || note main "$peerbench" "$peer" conc "$file" $rate 1; done
      done ;;
    esac
  done
}

# hashing measures hashing once, because hashing does not depend on a trace.
hashing() {
  case " $verbs " in *" hash "*) note - "$bin/kvtrace" hash; note - "$peerbench" hash ;; esac
}

# answers NAME PEER FILE keeps the line of the peer's answers, or the reason why the peer refused the file. It has a
# time limit, because a peer hangs if its writer has died.
answers() {
  local out
  if out=$(RUST_BACKTRACE=0 timeout 10 "$peerbench" "$2" verify "$3" 2>&1); then
    printf '%s\t%s\n' "$1" "$out" >>"$lines"
  else
    printf '%s\t%s refused: %s\n' "$1" "$2" "$(grep -o 'value: .*' <<<"$out" | head -1 | sed 's/value: //')" >>"$lines"
  fi
}

hard() {
  local with name file peer
  file=$(trace hard -hard)
  "$bin/kvtrace" check "$file" >&2
  note hard "$bin/kvtrace" verify "$file"
  for with in holes double recut forget holes,recut,forget holes,double,recut,forget; do
    name=${with//,/+}
    file=$(trace "hard-$name" -hard -version1 -with "$with")
    "$bin/kvtrace" check "$file" >&2
    note "$name" "$bin/kvtrace" verify "$file"
    for peer in ${PEERS:-dynamo-radix dynamo-kvindexer dynamo-crtc dynamo-positional-strided dynamo-branch smg-chain smg17-positional}; do
      answers "$name" "$peer" "$file"
    done
  done
}

case $what in
speed) speed; hashing ;;
hard) hard ;;
*) echo "unknown comparison $what: give speed or hard" >&2; exit 2 ;;
esac
COMPARE_COMMAND="PASSES=$passes bench/kvtrace/compare.sh $what" "$bin/kvtrace" table <"$lines"
