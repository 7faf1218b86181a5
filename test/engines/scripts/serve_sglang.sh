#!/usr/bin/env bash
# serve_sglang.sh NAME HTTP_PORT PUB_PORT REPLAY_PORT [SGLang options…]: starts an SGLang server on the CPU and prints
# its PID.
#
#   SGL_DIR    the folder that setup_sglang.sh made                (this folder)
#   MODEL      the model's folder                                  (SGL_DIR/tiny-llama)
#   WAIT       seconds to wait for /health; unset: does not wait
#   PAGE       page size in tokens                                 (32)
#   TOPIC      topic of the KV events                              (kv-events)
#   FORK       1: its processes are forked (serve_forked.py), so it starts with a third of the CPU time
#   KVX        more fields of --kv-events-config, beginning with a comma
set -eu
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/healthy.sh"
ROOT=${SGL_DIR:-$HERE}
name=$1 port=$2 pub=$3 rep=$4
shift 4
mkdir -p "$ROOT/logs"
log=$ROOT/logs/$name.log
export PYTHONPATH=$HERE/sglang_stub CUDA_VISIBLE_DEVICES= SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1
events="{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:$pub\",\"replay_endpoint\":\"tcp://*:$rep\",\"topic\":\"${TOPIC-kv-events}\"${KVX-}}"
if [ -n "${FORK-}" ]; then run=("$HERE/serve_forked.py"); else run=(-m); fi
nohup "$ROOT/venv/bin/python" "${run[@]}" sglang.launch_server --model-path "${MODEL:-$ROOT/tiny-llama}" --served-model-name tiny --device cpu \
  --attention-backend torch_native --host 127.0.0.1 --port "$port" --mem-fraction-static 0.1 --disable-cuda-graph --disable-overlap-schedule \
  --max-total-tokens 65536 --dtype bfloat16 --page-size "${PAGE:-32}" --enable-metrics --enable-cache-report \
  --kv-events-config "$events" "$@" >"$log" 2>&1 &
pid=$!
echo "$pid" | tee "$ROOT/logs/$name.pid"
healthy serve_sglang.sh "$name" "$port" "$pid" "$log"
