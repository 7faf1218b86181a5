#!/usr/bin/env bash
# Measures the way from the bytes of an engine's event over the index to a match, and writes
# bench/results/end_to_end.md.
#
#   bash bench/gateway/end_to_end.sh     # about a minute
#
# The figures are processor time (user and system) of the benchmark without its preparation. They are not wall time, so
# other work on the machine changes them less; it still shares the processor's caches. Each figure is the median of RUNS
# runs.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
OUT=${OUT:-$root/bench/results/end_to_end.md}
RUNS=${RUNS:-3}
export CGO_ENABLED=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
go test -c -o "$work/ingest" ./kvfeed
go test -c -o "$work/kvindex" ./kvindex

# spent COMMAND…: prints the processor time of COMMAND in milliseconds.
spent() {
	local TIMEFORMAT='%U %S' used
	used=$({ time "$@" >/dev/null 2>"$work/stderr"; } 2>&1)
	awk '{print ($1 + $2) * 1000}' <<<"$used"
}

# each PACKAGE BENCHMARK N: prints the processor time of one iteration in nanoseconds, measured with N iterations.
each() {
	local bench=("$work/$(basename "$1")" -test.run '^$' -test.bench "$2")
	cd "$root/$1"
	for _ in $(seq "$RUNS"); do
		local once all
		once=$(spent "${bench[@]}" -test.benchtime 1x)
		all=$(spent "${bench[@]}" -test.benchtime "${3}x")
		awk -v once="$once" -v all="$all" -v n="$3" 'BEGIN {print (all - once) * 1e6 / (n - 1)}'
	done | sort -g | sed -n "$(((RUNS + 1) / 2))p"
	cd "$root"
}

{
	echo "# From event bytes to a match"
	echo
	echo "$(nproc) cores ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)), Linux $(uname -r), $(go version | cut -d' ' -f3), load $(cut -d' ' -f1-3 /proc/loadavg)."
	echo "Commit $(git describe --always --dirty --exclude '*'); \`bash bench/gateway/end_to_end.sh\`: processor time, medians of $RUNS runs."
	echo
	echo "| bytes of vLLM 0.32 messages → decoding → index; every stored block is removed later (\`BenchmarkMessage\` in \`kvfeed\`) | block operations (stored and removed blocks) a second on one core |"
	echo "|---|---|"
	for c in 1:400000 32:20000 512:2000; do
		blocks=${c%:*}
		each kvfeed "Message/blocks=$blocks\$" "${c#*:}" | awk -v b="$blocks" '{printf "| %d blocks a message | %.2f M |\n", b, 2 * b / $1 * 1000}'
	done
	echo
	echo "| match of 512 blocks, 1 M blocks in the index, random prompts (\`BenchmarkMatch\` in \`kvindex\`) | µs |"
	echo "|---|---|"
	for c in 1_of_8 8_of_8; do
		each kvindex "Match/^512_blocks,_${c}_holders" 400000 | awk -v c="${c//_/ }" '{printf "| %s holders have it | %.1f |\n", c, $1 / 1000}'
	done
	echo
	echo "| memory (\`BenchmarkBytes\` in \`kvindex\`) | bytes for each block | bytes for each pair of holder and block |"
	echo "|---|---|---|"
	(cd kvindex && "$work/kvindex" -test.run '^$' -test.bench Bytes -test.benchtime 1x) | awk '/^BenchmarkBytes/ {
		name = $1; sub(/^BenchmarkBytes\//, "", name); sub(/-[0-9]+$/, "", name); gsub(/_/, " ", name)
		for (i = 2; i <= NF; i++) { if ($i == "B/block") block = $(i-1); if ($i == "B/membership") pair = $(i-1) }
		printf "| %s | %s | %s |\n", name, block, pair }'
} | tee "$OUT"
