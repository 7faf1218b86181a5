#!/usr/bin/env bash
# Measures the gateway, nginx and SMG in one run, with the mock workers of ./mock and the client of ./load, and writes
# bench/results/gateway.md.
#
#   bash bench/gateway/run.sh            # about five minutes; PASSES=5 for steadier medians
#
# This script starts all processes, so that all of them are in one scheduler group. Processes of separate login sessions
# have separate groups (autogroup), which distorts CPU figures at saturation. At its end the script stops all processes.
#
#   PASSES   number of passes over all rows; the table shows medians                   (3)
#   ROWS     rows to measure: nginx, smg, cached, cold, rr, local, and cached with one part of a production gateway on
#            each: tenants, access, decisions, traces                                  (all)
#   MODEL    folder with tokenizer.json and a chat template, for the row local         (the tiny model of make test-engines)
#   BINARY   a warmpath binary to measure in place of one that is built                (none)
#   OTHER    a second warmpath binary, measured as the row "other", for comparisons    (none)
#   OUT      file of the table; the raw lines are in the same file name with .jsonl    (bench/results/gateway.md)
#   SMG      virtual environment with smg 1.13.0; the script makes a missing one       (~/.cache/warmpath/smg)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
PASSES=${PASSES:-3}
ROWS=${ROWS:-nginx smg cached cold rr local tenants access decisions traces}
MODEL=${MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/warmpath/engines/vllm/tiny-llama}
OUT=${OUT:-$root/bench/results/gateway.md}
SMG=${SMG:-$HOME/.cache/warmpath/smg}
PORT=${PORT:-19400} # first of 39 ports
export CGO_ENABLED=0

# shellcheck source=processes.sh
source "$here/processes.sh"
has() { [[ " $ROWS " == *" $1 "* ]]; }

say "building"
(cd "$root/bench" && go build -o "$work/" ./gateway/mock ./gateway/load && go build -o "$work/table" ./gateway)
if [[ -n ${BINARY:-} ]]; then cp "$BINARY" "$work/warmpath"; else (cd "$root" && go build -trimpath -ldflags '-s -w' -o "$work/warmpath" ./cmd/warmpath); fi

# The last two workers give no token ids, because theirs are not those of MODEL. They serve the row local.
workers=()
for i in 1 2 3 4; do
	p=$((PORT + 20 + i))
	start "mock$i" "$work/mock" -addr "127.0.0.1:$p" -name "w$i" -tokens=$([[ $i -le 2 ]] && echo true || echo false)
	workers+=("127.0.0.1:$p")
done
for i in 1 2 3 4; do ready "mock$i" "http://${workers[i - 1]}/health"; done

# temp_paths NAME: the folders of an nginx for temporary files. Without them it would write into the machine's folders.
temp_paths() {
	printf '%s_temp_path %s; ' client_body "$work/$1-body" proxy "$work/$1-proxy" fastcgi "$work/$1-fastcgi" uwsgi "$work/$1-uwsgi" scgi "$work/$1-scgi"
}

nginx_row() {
	if ! command -v nginx >/dev/null; then say "skipping nginx: it is not installed (apt-get install nginx-light)"; drop nginx; return; fi
	address[nginx]=127.0.0.1:$((PORT + 3))
	cat >"$work/nginx.conf" <<-CONF
		worker_processes auto;
		pid $work/nginx.pid;
		error_log $work/nginx-error.log;
		daemon off;
		events { worker_connections 4096; }
		http {
			access_log off;
			$(temp_paths nginx)
			client_body_buffer_size 1m;
			client_max_body_size 64m;
			keepalive_requests 1000000;
			upstream workers {
				server ${workers[0]};
				server ${workers[1]};
				keepalive 256;
				keepalive_requests 1000000;
			}
			server {
				listen ${address[nginx]};
				location / {
					proxy_pass http://workers;
					proxy_http_version 1.1;
					proxy_set_header Connection "";
					proxy_buffering off;
				}
			}
		}
	CONF
	start nginx nginx -e "$work/nginx-error.log" -c "$work/nginx.conf"
	ready nginx "http://${address[nginx]}/health"
}

smg_row() {
	if [[ ! -x $SMG/bin/smg ]]; then
		if ! { python3 -m venv "$SMG" && "$SMG/bin/pip" install -q smg==1.13.0; } >"$work/smg-install.log" 2>&1; then
			say "skipping smg: it cannot be installed ($(tail -1 "$work/smg-install.log"))"
			drop smg
			return
		fi
	fi
	address[smg]=127.0.0.1:$((PORT + 4))
	start smg "$SMG/bin/smg" launch --host 127.0.0.1 --port $((PORT + 4)) --worker-urls "http://${workers[0]}" "http://${workers[1]}" \
		--policy cache_aware --prometheus-port $((PORT + 5))
	ready smg "http://${address[smg]}/health"
}

# warmpath_row NAME PORT BINARY POLICY [CONFIG LINE]…: starts a gateway as the row NAME.
warmpath_row() {
	local name=$1 port=$2 binary=$3 policy=$4
	shift 4
	printf '%s\n' "$@" >"$work/$name.yaml"
	address[$name]=127.0.0.1:$port
	start "$name" "$binary" serve --listen "127.0.0.1:$port" --admin-listen "127.0.0.1:$((port + 1))" --policy "$policy" \
		--config "$work/$name.yaml" --worker "http://${workers[0]},events=none" --worker "http://${workers[1]},events=none"
	ready "$name" "http://${address[$name]}/readiness"
}

local_row() {
	if [[ ! -f $MODEL/tokenizer.json ]]; then say "skipping local: $MODEL has no tokenizer.json (MODEL, or make test-engines)"; drop local; return; fi
	local workers=("${workers[@]:2}")
	warmpath_row local $((PORT + 14)) "$work/warmpath" kv_aware "models: [{name: mock, path: $MODEL}]" 'tokens: {cache_bytes: 0}'
}

# traces_row: every request is recorded. An nginx takes the place of the collector: it reads the spans, and answers 200.
traces_row() {
	if ! command -v nginx >/dev/null; then say "skipping traces: nginx is not installed (apt-get install nginx-light)"; drop traces; return; fi
	local sink=127.0.0.1:$((PORT + 38))
	cat >"$work/sink.conf" <<-CONF
		worker_processes 1;
		pid $work/sink.pid;
		daemon off;
		events {}
		http {
			access_log off;
			$(temp_paths sink)
			client_max_body_size 64m;
			server { listen $sink; location / { return 200; } }
		}
	CONF
	start sink nginx -e "$work/sink-error.log" -c "$work/sink.conf"
	ready sink "http://$sink/"
	warmpath_row traces $((PORT + 36)) "$work/warmpath" kv_aware "telemetry: {traces: {endpoint: \"http://$sink\"}}"
}

# spans_line: prints a line for the table, with how many of the row's spans the sink has. The router drops spans if they
# come faster than it can send them.
spans_line() {
	sleep 6 # the router sends at least every 5 s
	curl -fsS "http://127.0.0.1:$((PORT + 37))/metrics" | awk -F'"|} ' '
		/^warmpath_trace_spans_total/ { n[$2] = $4 + 0 }
		END {
			printf "{\"mode\":\"spans\",\"target\":\"traces\",\"n\":%d,\"ok\":%d,", n["ended"], n["sent"]
			printf "\"errors\":{\"dropped\":%d,\"failed\":%d}}\n", n["ended"] - n["sent"] - n["failed"], n["failed"]
		}'
}

if has nginx; then nginx_row; fi
if has smg; then smg_row; fi
if has cached; then warmpath_row cached $((PORT + 6)) "$work/warmpath" kv_aware; fi
if has cold; then warmpath_row cold $((PORT + 8)) "$work/warmpath" kv_aware 'tokens:' '  cache_bytes: 0'; fi
if has rr; then warmpath_row rr $((PORT + 10)) "$work/warmpath" round_robin; fi
if has local; then local_row; fi
# The clients of ./load send the key "sk-x" to all targets; this is its SHA-256.
key=$(printf sk-x | sha256sum | cut -d' ' -f1)
if has tenants; then
	warmpath_row tenants $((PORT + 30)) "$work/warmpath" kv_aware 'tenants:' \
		"  - {name: bench, keys_sha256: [$key], requests_per_second: 1000000, burst: 1000000, max_concurrent: 100000, tokens_per_minute: 2000000000, models: [\"m*\"], cache_salt: off}"
fi
if has access; then warmpath_row access $((PORT + 32)) "$work/warmpath" kv_aware "telemetry: {access_log: {file: $work/access.jsonl}}"; fi
if has decisions; then warmpath_row decisions $((PORT + 34)) "$work/warmpath" kv_aware "telemetry: {decision_log: {file: $work/decisions.jsonl}}"; fi
if has traces; then traces_row; fi
if [[ -n ${OTHER:-} ]]; then
	cp "$OTHER" "$work/other"
	ROWS="$ROWS other"
	warmpath_row other $((PORT + 12)) "$work/other" kv_aware
fi
read -ra rows <<<"$ROWS"

lines=$work/lines.jsonl
load() { "$work/load" "$@" -maxdur 120s -out "$lines" >/dev/null; }
pace() { for w in "${workers[@]}"; do curl -fsS -o /dev/null "http://$w/setdelay?d=$1"; done; }

# Numbers of requests of a run, by workload. All bodies of workload b (34 KB of tokens each) must fit in the token cache
# of 64 MiB.
declare -A closed=([a]=4000 [b]=1800 [8k]=1500 [64k]=600 [512k]=120) cycle=([a]=800 [b]=500 [8k]=300 [64k]=150 [512k]=60)

for r in "${rows[@]}"; do echo "{\"mode\":\"start\",\"target\":\"$r\",\"mb\":$(resident "$r")}" >>"$lines"; done
# With more clients at once the router would ask for the ids of some prompts only: an engine gets at most two questions.
say "once over all bodies, unmeasured: tokens are cached from here on"
for wl in a b; do
	for r in "${rows[@]}"; do "$work/load" -mode closed -c 2 -targets "$r=${address[$r]}" -wl $wl -n "${closed[$wl]}" >/dev/null; done
done

direct="direct=${workers[0]}+${workers[1]}"
for pass in $(seq "$PASSES"); do
	say "pass $pass of $PASSES, load $(cut -d' ' -f1-3 /proc/loadavg)"
	order=("${rows[@]:pass % ${#rows[@]}}" "${rows[@]:0:pass % ${#rows[@]}}")
	for wl in a b; do
		targets=direct=${workers[0]}
		for r in "${order[@]}"; do targets+=",$r=${address[$r]}"; done
		load -mode cycle -targets "$targets" -wl $wl -n "${cycle[$wl]}" -warm 30
		load -mode closed -c 32 -targets "$direct" -wl $wl -n "${closed[$wl]}"
		for r in "${order[@]}"; do
			load -mode closed -c 32 -targets "$r=${address[$r]}" -pids "router=${pid[$r]}" -wl $wl -n "${closed[$wl]}"
		done
		pace 5ms
		for r in "${order[@]}"; do
			load -mode open -rate 100 -dur 5s -targets "$r=${address[$r]}" -pids "router=${pid[$r]}" -wl $wl
		done
		pace 0
	done
	if has local; then
		for wl in 8k 64k 512k; do
			targets=direct=${workers[0]}
			some=()
			for r in nginx rr local; do if has $r; then some+=($r) && targets+=",$r=${address[$r]}"; fi; done
			load -mode cycle -targets "$targets" -wl $wl -n "${cycle[$wl]}" -warm 10
			load -mode closed -c 8 -targets "$direct" -wl $wl -n "${closed[$wl]}"
			for r in "${some[@]}"; do
				load -mode closed -c 8 -targets "$r=${address[$r]}" -pids "router=${pid[$r]}" -wl $wl -n "${closed[$wl]}"
			done
		done
	fi
done
if has traces; then spans_line >>"$lines"; fi

mkdir -p "$(dirname "$OUT")"
commit=$(git -C "$root" describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
"$work/table" -passes "$PASSES" -commit "$commit" -nginx "$(nginx -v 2>&1 | sed 's/.*: //' || true)" <"$lines" | tee "$OUT"
cp "$lines" "${OUT%.md}.jsonl"
