#!/usr/bin/env bash
# Makes reference results for tests: the results of the reference tokenizers, of CPython's jinja2 and of vLLM's Harmony.
# They take 2.5 GB in the cache folder. A result that exists is not made again. Harmony's results need `make
# test-engines` first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warmpath
[ -d "$cache/tokenizers/ids" ] || bash tokenizer/testdata/golden.sh
if [ ! -d "$cache/templates" ]; then
  python3 -m venv "$cache/jinja"
  "$cache/jinja/bin/pip" install -q transformers==5.19.0 jinja2==3.1.6
  "$cache/jinja/bin/python" tokenizer/jinja/testdata/gather.py --download
fi
vllm=$cache/engines/vllm/venv/bin/python
if [ ! -f "$cache/harmony.json" ] && [ -x "$vllm" ]; then
  VLLM_TARGET_DEVICE=cpu "$vllm" internal/tokens/inprocess/testdata/harmony.py >"$cache/harmony.part"
  mv "$cache/harmony.part" "$cache/harmony.json"
fi
