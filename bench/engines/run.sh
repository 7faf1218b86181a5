#!/usr/bin/env bash
# Measures routers on real engines, and writes bench/results/engines.md. The engines are two vLLM (or SGLang) servers on
# the CPU with a tiny random model. The routers, in turn, are nginx, SMG 1.13 cache_aware, vllm-router 0.1.17
# cache_aware and kv_aware, and Warmpath with no setting but the engines' URLs.
#
#   bash bench/engines/run.sh                              # everything; prints first how long that takes
#   bash bench/engines/run.sh -sets chats -routers smg,warmpath -rounds 1 -scale 0.3      # a smoke run: 3 minutes
#   bash bench/engines/run.sh -engine sglang -scale 0.5 -routers nginx,smg,warmpath \
#     -sets chats,agents-heavy,prefix-heavy,two-routers,crowded      # the second kind of engine, as on the page
#   bash bench/engines/run.sh -sets chats -routers warmpath,warmpath-asking      # the cost of asking engines for token ids
#   bash bench/engines/run.sh list                         # sets and routers
#   bash bench/engines/run.sh fit                          # a profile of the engines, for the simulator's table on the page
#   bash bench/engines/run.sh report                       # the page again, from the existing lines
#
# Results are lines in bench/results/engines.jsonl (OUT). A run that is in the file is not played again, so the same
# command continues after an interruption. Ctrl-C stops all started processes. The machine should be idle: the page
# shows how much of it other processes used.
#
#   OUT       file of results; the page is the file beside it with .md        (bench/results/engines.jsonl)
#             the page begins with the file …-notes.md beside it, which is written by hand
#   BINARY    a warmpath binary to measure in place of one that is built                  (none)
#   WARMPATH_COMMIT   the name of BINARY in the results                               (its path)
#   CACHE     where engines (5.8 GB) and peers (0.3 GB) are installed                (~/.cache/warmpath)
#
# Needs Linux x86-64, two cores, 16 GB of memory, Go, Python >= 3.11, gcc, binutils, taskset (util-linux), nginx
# (apt-get install nginx-light).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/warmpath}
OUT=${OUT:-$root/bench/results/engines.jsonl}
export CGO_ENABLED=0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$root/bench" && go build -o "$work/engines" ./engines)
command=play
case ${1:-play} in
list)
	"$work/engines" list
	exit
	;;
report)
	"$work/engines" report -in "$OUT" -out "${OUT%.jsonl}.md" -profile "${OUT%.jsonl}-profile.json"
	exit
	;;
fit) command=fit && shift ;;
play) [ $# -gt 0 ] && shift || true ;;
esac

if ! command -v nginx >/dev/null && [ ! -x /usr/sbin/nginx ]; then
	echo "engines: nginx is missing: apt-get install nginx-light" >&2
	exit 3
fi
# Engines are those of test/engines: installed once, by its script.
for kind in vllm sglang; do
	if [ ! -x "$cache/engines/$kind/venv/bin/python" ]; then
		WARMPATH_ENGINES=$cache/engines bash "$root/test/engines/setup.sh"
		break
	fi
done
# peer NAME VERSION: its wheel in an environment of its own.
peer() {
	local dir=$cache/routers/$1
	if [ "$(cat "$dir/.version" 2>/dev/null)" != "$2" ]; then
		echo "engines: $1 $2 in $dir" >&2
		rm -rf "$dir"
		python3 -m venv "$dir"
		"$dir/bin/pip" install -q --disable-pip-version-check "$1==$2"
		echo "$2" >"$dir/.version"
	fi
}
peer smg 1.13.0
peer vllm-router 0.1.17
if [ -n "${BINARY:-}" ]; then
	cp "$BINARY" "$work/warmpath"
	export WARMPATH_COMMIT=${WARMPATH_COMMIT:-$BINARY}
else
	WARMPATH_COMMIT=$(git -C "$root" describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
	export WARMPATH_COMMIT
	(cd "$root" && go build -trimpath -ldflags '-s -w' -o "$work/warmpath" ./cmd/warmpath)
fi

mkdir -p "$(dirname "$OUT")" "$work/logs"
into=(-out "$OUT")
if [ $command = fit ]; then into=(-profile "${OUT%.jsonl}-profile.json"); fi
# In the background, so that a signal to this script reaches it too and its engines are stopped before this script ends.
"$work/engines" $command -scripts "$root/test/engines/scripts" -engines "$cache/engines" -peers "$cache/routers" -warmpath "$work/warmpath" \
	-logs "$work/logs" "${into[@]}" "$@" &
child=$!
trap 'kill -TERM $child 2>/dev/null || true' INT TERM HUP
status=0
wait $child || status=$?
while kill -0 $child 2>/dev/null; do wait $child || status=$?; done
if [ $status -ne 0 ]; then
	[ ! -d "$work/logs" ] || { rm -rf "${OUT%.jsonl}-logs" && cp -r "$work/logs" "${OUT%.jsonl}-logs" && echo "engines: logs in ${OUT%.jsonl}-logs" >&2; }
	exit $status
fi
[ -s "$OUT" ] || exit 0
"$work/engines" report -in "$OUT" -out "${OUT%.jsonl}.md" -profile "${OUT%.jsonl}-profile.json"
echo "engines: wrote ${OUT%.jsonl}.md" >&2
