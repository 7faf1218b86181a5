#!/usr/bin/env bash
# serve.sh NAME HTTP_PORT PUB_PORT REPLAY_PORT [vLLM options…]: starts a vLLM server on the CPU and prints its PID.
# Stop it with SIGTERM to that PID: SIGKILL leaves its EngineCore processes behind.
#
#   VLLM_DIR   the folder that setup.sh made, with venv/ and tiny-llama/   (this folder)
#   MODEL, SERVED      the model's folder; the name under which it is served    (VLLM_DIR/tiny-llama; tiny)
#   LOGDIR     folder of NAME.log and NAME.pid                             (VLLM_DIR/logs)
#   WAIT       seconds to wait for /health; unset: does not wait
#   BLOCK, KVBYTES     block size in tokens; bytes of the KV cache             (32; 64M)
#   MAXLEN, MAXSEQS    longest request in tokens; requests at once             (32768; 16)
#   TOPIC      topic of the KV events                                      (kv-events)
#   KV_JSON    value of --kv-events-config; empty: no events
#   FORK       1: its processes are forked (serve_forked.py), so it starts with a third of the CPU time
#   PYTHONHASHSEED     seed of the block hashes; empty: unset                   (0)
set -eu
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/healthy.sh"
ROOT=${VLLM_DIR:-$HERE}
MODEL=${MODEL:-$ROOT/tiny-llama}
LOGDIR=${LOGDIR:-$ROOT/logs}
name=$1 port=$2 pub=$3 rep=$4
shift 4
mkdir -p "$LOGDIR"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_SERVER_DEV_MODE=${VLLM_SERVER_DEV_MODE-1} # opens /reset_prefix_cache
if [ -n "${PYTHONHASHSEED-0}" ]; then export PYTHONHASHSEED=${PYTHONHASHSEED-0}; else unset PYTHONHASHSEED; fi
export VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND-nobind} OMP_NUM_THREADS=${OMP_NUM_THREADS-1}
export VLLM_TARGET_DEVICE=cpu CUDA_VISIBLE_DEVICES= VLLM_CACHE_ROOT=$ROOT/cache XDG_CACHE_HOME=$ROOT/cache PATH=$ROOT/venv/bin:$PATH
export VLLM_HOST_IP=${VLLM_HOST_IP-127.0.0.1}
events="{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:$pub\""
events="$events,\"replay_endpoint\":\"tcp://*:$rep\",\"topic\":\"${TOPIC-kv-events}\"}"
events=${KV_JSON-$events}
args=(--model "$MODEL" --served-model-name "${SERVED:-tiny}" --host 127.0.0.1 --port "$port" --dtype bfloat16
  --max-model-len "${MAXLEN:-32768}" --enable-prefix-caching --enforce-eager --enable-prompt-tokens-details
  --max-num-seqs "${MAXSEQS:-16}" --kv-cache-memory-bytes "${KVBYTES:-64M}")
[ -n "${BLOCK-32}" ] && args+=(--block-size "${BLOCK-32}")
[ -n "$events" ] && args+=(--kv-events-config "$events")
if [ -n "${FORK-}" ]; then run=("$HERE/serve_forked.py"); else run=(-m); fi
nohup "$ROOT/venv/bin/python" "${run[@]}" vllm.entrypoints.openai.api_server "${args[@]}" "$@" >"$LOGDIR/$name.log" 2>&1 &
pid=$!
echo "$pid" | tee "$LOGDIR/$name.pid"
healthy serve.sh "$name" "$port" "$pid" "$LOGDIR/$name.log"
