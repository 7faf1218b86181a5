#!/usr/bin/env bash
# Makes the answers of the reference tokenizers, of CPython's jinja2 and of vLLM's Harmony, for the tests that compare
# with them: 2.5 GB in the cache folder. What is there is not made again. vLLM's part needs `make test-engines`.
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
