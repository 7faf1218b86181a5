#!/usr/bin/env bash
# Measures requests in two legs (NIXL, pull) through the gateway, nginx and vllm-router in one run, with the mock workers
# of ./mock and the client of ./load, and writes bench/results/legs.md.
#
#   bash bench/gateway/legs.sh           # about three minutes; PASSES=5 for steadier medians
#
#   PASSES   number of passes over all rows; the table shows medians                       (3)
#   ROWS     rows to measure: nginx, vllm-router, legs, alone                              (all)
#   BINARY   a warmpath binary to measure in place of one that is built                    (none)
#   OUT      file of the table; the raw lines are in the same file name with .jsonl        (bench/results/legs.md)
#   ROUTER   virtual environment with vllm-router 0.1.17; the script makes a missing one   (~/.cache/warmpath/vllm-router)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
PASSES=${PASSES:-3}
ROWS=${ROWS:-nginx vllm-router legs alone}
OUT=${OUT:-$root/bench/results/legs.md}
ROUTER=${ROUTER:-$HOME/.cache/warmpath/vllm-router}
PORT=${PORT:-19500} # first of 20 ports
export CGO_ENABLED=0

# shellcheck source=processes.sh
source "$here/processes.sh"

say "building"
(cd "$root/bench" && go build -o "$work/" ./gateway/mock ./gateway/load && go build -o "$work/table" ./gateway)
if [[ -n ${BINARY:-} ]]; then cp "$BINARY" "$work/warmpath"; else (cd "$root" && go build -trimpath -ldflags '-s -w' -o "$work/warmpath" ./cmd/warmpath); fi

prefill=127.0.0.1:$((PORT + 1)) decode=127.0.0.1:$((PORT + 2))
start p "$work/mock" -addr "$prefill" -name p
start d "$work/mock" -addr "$decode" -name d
ready p "http://$prefill/health"
ready d "http://$decode/health"

nginx_row() {
	if ! command -v nginx >/dev/null; then say "skipping nginx: it is not installed (apt-get install nginx-light)"; drop nginx; return; fi
	local paths
	paths=$(printf '%s_temp_path %s; ' client_body "$work/body" proxy "$work/proxy" fastcgi "$work/fastcgi" uwsgi "$work/uwsgi" scgi "$work/scgi")
	cat >"$work/nginx.conf" <<-CONF
		worker_processes auto;
		pid $work/nginx.pid;
		error_log $work/nginx-error.log;
		daemon off;
		events { worker_connections 4096; }
		http {
			access_log off;
			$paths
			client_body_buffer_size 1m;
			client_max_body_size 64m;
			keepalive_requests 1000000;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
			upstream prefill { server $prefill; keepalive 256; keepalive_requests 1000000; }
			upstream decode { server $decode; keepalive 256; keepalive_requests 1000000; }
			server { listen 127.0.0.1:$((PORT + 3)); location / { proxy_pass http://prefill; } }
			server { listen 127.0.0.1:$((PORT + 4)); location / { proxy_pass http://decode; } }
		}
	CONF
	start nginx nginx -e "$work/nginx-error.log" -c "$work/nginx.conf"
	address[nginx]=127.0.0.1:$((PORT + 3))/127.0.0.1:$((PORT + 4))
	ready nginx "http://127.0.0.1:$((PORT + 4))/health"
}

router_row() {
	if [[ ! -x $ROUTER/bin/vllm-router ]]; then
		if ! { python3 -m venv "$ROUTER" && "$ROUTER/bin/pip" install -q vllm-router==0.1.17; } >"$work/install.log" 2>&1; then
			say "skipping vllm-router: it cannot be installed ($(tail -1 "$work/install.log"))"
			drop vllm-router
			return
		fi
	fi
	address[vllm-router]=127.0.0.1:$((PORT + 5))
	start vllm-router "$ROUTER/bin/vllm-router" --vllm-pd-disaggregation --prefill "http://$prefill" none --decode "http://$decode" \
		--kv-connector nixl --policy round_robin --host 127.0.0.1 --port $((PORT + 5)) --prometheus-port $((PORT + 6)) --log-level warning
	ready vllm-router "http://127.0.0.1:$((PORT + 5))/health"
}

# warmpath_row NAME PORT MODE
warmpath_row() {
	address[$1]=127.0.0.1:$2
	start "$1" "$work/warmpath" serve --listen "127.0.0.1:$2" --admin-listen "127.0.0.1:$(($2 + 1))" --policy kv_aware --disaggregation "$3" \
		--worker "http://$prefill,events=none,role=prefill,connector=nixl" --worker "http://$decode,events=none,role=decode,connector=nixl"
	ready "$1" "http://127.0.0.1:$2/readiness"
}

for row in $ROWS; do
	case $row in
	nginx) nginx_row ;;
	vllm-router) router_row ;;
	legs) warmpath_row legs $((PORT + 8)) always ;;
	alone) warmpath_row alone $((PORT + 10)) never ;;
	*) say "there is no row $row" && exit 1 ;;
	esac
done
read -ra rows <<<"$ROWS"

lines=$work/lines.jsonl
load() { "$work/load" "$@" -maxdur 120s -out "$lines" >/dev/null; }
pace() { for w in "$prefill" "$decode"; do curl -fsS -o /dev/null "http://$w/setdelay?d=$1"; done; }

declare -A closed=([a]=3000 [b]=1500) cycle=([a]=600 [b]=400)
for r in "${rows[@]}"; do echo "{\"mode\":\"start\",\"target\":\"$r\",\"mb\":$(resident "$r")}" >>"$lines"; done
say "once over all bodies, unmeasured: tokens are cached from here on"
for wl in a b; do
	for r in "${rows[@]}"; do "$work/load" -mode closed -c 2 -targets "$r=${address[$r]}" -wl $wl -n "${closed[$wl]}" >/dev/null; done
done
direct=direct=$prefill/$decode
for pass in $(seq "$PASSES"); do
	say "pass $pass of $PASSES, load $(cut -d' ' -f1-3 /proc/loadavg)"
	order=("${rows[@]:pass % ${#rows[@]}}" "${rows[@]:0:pass % ${#rows[@]}}")
	for wl in a b; do
		targets=$direct
		for r in "${order[@]}"; do targets+=",$r=${address[$r]}"; done
		load -mode cycle -targets "$targets" -wl $wl -n "${cycle[$wl]}" -warm 30
		load -mode closed -c 32 -targets "$direct" -wl $wl -n "${closed[$wl]}"
		for r in "${order[@]}"; do
			load -mode closed -c 32 -targets "$r=${address[$r]}" -pids "router=${pid[$r]}" -wl $wl -n "${closed[$wl]}"
		done
		pace 5ms
		for r in "${order[@]}"; do
			load -mode open -rate 60 -dur 5s -targets "$r=${address[$r]}" -pids "router=${pid[$r]}" -wl $wl
		done
		pace 0
	done
done

mkdir -p "$(dirname "$OUT")"
commit=$(git -C "$root" describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
"$work/table" -legs -passes "$PASSES" -commit "$commit" -nginx "$(nginx -v 2>&1 | sed 's/.*: //' || true)" <"$lines" | tee "$OUT"
cp "$lines" "${OUT%.md}.jsonl"
