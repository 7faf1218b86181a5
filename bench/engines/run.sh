#!/usr/bin/env bash
# Measures routers on real engines, and writes bench/results/engines.md. The engines are two vLLM (or SGLang) servers on
# the CPU with a tiny random model. The routers are nginx, SMG 1.13 cache_aware, vllm-router 0.1.17 cache_aware and
# kv_aware, and Warmpath, whose only settings are the engines' URLs. They are measured one after another.
#
#   bash bench/engines/run.sh                              # all runs; first prints how long they take
#   bash bench/engines/run.sh -sets chats -routers smg,warmpath -rounds 1 -scale 0.3      # a smoke run: 3 minutes
#   bash bench/engines/run.sh -engine sglang -scale 0.5 -routers nginx,smg,warmpath \
#     -sets chats,agents-heavy,prefix-heavy,two-routers,full-caches      # SGLang, as on the page
#   bash bench/engines/run.sh -sets chats -routers warmpath,warmpath-asking      # cost of asking engines for ids
#   bash bench/engines/run.sh list                         # prints sets and routers
#   bash bench/engines/run.sh fit                          # makes the profile for the simulator's table
#   bash bench/engines/run.sh report                       # writes the page again from the existing results
#
# Results are lines in bench/results/engines.jsonl (OUT). If the file has the result of a run, the run is not played
# again. So the same command continues after an interruption. Ctrl-C stops all processes that were started. The machine
# should be idle: the page shows how many cores other processes used.
#
#   OUT       file of results; the page has the same name with .md            (bench/results/engines.jsonl)
#             the page begins with the file …-notes.md in the same folder, which was written by hand
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
# The script of test/engines installs the engines, once.
for kind in vllm sglang; do
	if [ ! -x "$cache/engines/$kind/venv/bin/python" ]; then
		WARMPATH_ENGINES=$cache/engines bash "$root/test/engines/setup.sh"
		break
	fi
done
# peer NAME VERSION: installs the Python package NAME in a virtual environment of its own.
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
# Run the command in the background, so that the trap below can pass signals to it. It then stops its engines, and this
# script waits for this.
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
