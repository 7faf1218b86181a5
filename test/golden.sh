#!/usr/bin/env bash
# Makes reference results for tests: the results of the reference tokenizers, of CPython's jinja2 and of vLLM's Harmony.
# They take 2.5 GB in the cache folder. Harmony's results need `make test-engines` first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warmpath

# once FOLDER COMMAND FILE… runs COMMAND, which makes results in FOLDER from the FILEs. It does nothing if COMMAND
# succeeded before with the same FILEs. A file in FOLDER says so: the folder alone can come from a run that was stopped.
once() {
  local made=$1/made-from command=$2 sum
  shift 2
  sum=$(cat "$@" | sha256sum)
  if [ -f "$made" ] && [ "$(cat "$made")" = "$sum" ]; then return; fi
  "$command"
  echo "$sum" >"$made"
}

tokenizers() { bash tokenizer/testdata/golden.sh; }
templates() {
  python3 -m venv "$cache/jinja"
  "$cache/jinja/bin/pip" install -q transformers==5.19.0 jinja2==3.1.6
  "$cache/jinja/bin/python" tokenizer/jinja/testdata/gather.py --download
}

# Each of the two takes minutes and uses one core, so they run at the same time. If one fails, the other ends first.
once "$cache/tokenizers" tokenizers tokenizer/testdata/golden.sh tokenizer/testdata/{golden,features}.mjs & first=$!
once "$cache/templates" templates test/golden.sh tokenizer/jinja/testdata/{gather.py,conversations.json} & second=$!
failed=
wait $first || failed=1
wait $second || failed=1
[ -z "$failed" ]
vllm=$cache/engines/vllm/venv/bin/python
if [ ! -f "$cache/harmony.json" ] && [ -x "$vllm" ]; then
  VLLM_TARGET_DEVICE=cpu "$vllm" internal/tokens/inprocess/testdata/harmony.py >"$cache/harmony.part"
  mv "$cache/harmony.part" "$cache/harmony.json"
fi
