# Functions of run.sh and legs.sh, which read this file: they start processes, wait for them, and stop them at the end.
# shellcheck shell=bash

work=$(mktemp -d)
pids=()
cleanup() {
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

say() { echo "$*" >&2; }
drop() { ROWS=$(tr ' ' '\n' <<<"$ROWS" | grep -vx "$1" | tr '\n' ' '); }

# start NAME COMMAND…: runs COMMAND in the background. Its output is in $work/NAME.log, and its process id in pid[NAME].
declare -A pid address
start() {
	local name=$1
	shift
	"$@" >"$work/$name.log" 2>&1 &
	pid[$name]=$!
	pids+=($!)
}

# ready NAME URL: waits until URL answers.
ready() {
	for _ in $(seq 300); do
		if curl -fsS -o /dev/null "$2" 2>/dev/null; then return; fi
		if ! kill -0 "${pid[$1]}" 2>/dev/null; then break; fi
		sleep 0.1
	done
	say "$1 did not come up:"
	tail -20 "$work/$1.log" >&2
	exit 1
}

resident() { # resident NAME: prints the resident memory of all processes of NAME in MB
	local p kb=0 list="${pid[$1]} $(pgrep -P "${pid[$1]}" || true)"
	for p in $list; do kb=$((kb + $(awk '/^VmRSS/ {print $2}' "/proc/$p/status"))); done
	echo $((kb / 1024))
}
