#!/usr/bin/env bash
# Installs the engines for `make test-engines` from PyPI: vLLM 0.32.0 (2.6 GB) and SGLang 0.5.23 (3.2 GB) for the CPU,
# NIXL (210 MB), LMCache's controller (82 MB), and the official OpenAI client (60 MB). It also makes tiny random models
# with two LoRA adapters (20 MB). Everything goes into $WARMPATH_ENGINES, or ~/.cache/warmpath/engines, except what
# test/interop.sh installs: the client and python3-zmq. A second run uses the files again; remove the folder to free the
# space. Needs Linux x86-64, Python 3.11 to 3.14, gcc, binutils. Fails if an engine cannot be installed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scripts=$here/scripts
root=${WARMPATH_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/warmpath/engines}
for tool in gcc nm readelf; do
  command -v $tool >/dev/null || { echo "engines: $tool is missing: apt-get install gcc binutils" >&2; exit 3; }
done
bash "$here/../interop.sh"
mkdir -p "$root"
quiet() { grep -v 'Writing model shards' || true; }

echo "engines: vLLM in $root/vllm (2.6 GB)"
SLIM=1 bash "$scripts/setup.sh" "$root/vllm" 2>&1 | quiet
python=$root/vllm/venv/bin/python
"$python" -c 'import vllm' 2>/dev/null || { echo "engines: vLLM is not installed: the lines above say why" >&2; exit 1; }
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=
models() {
  [ -f "$root/vllm/gemma3/model.safetensors" ] || "$python" "$scripts/make_model.py" "$root/vllm/gemma3" gemma3 2>/dev/null
  # the tiny model with a chat template that also supports reasoning, documents and developer messages
  local turns=$root/vllm/tiny-turns seed=0 family name
  mkdir -p "$turns" && cp -r "$root/vllm/tiny-llama/." "$turns" && cp "$here/turns.jinja" "$turns/chat_template.jinja"
  for family in qwen2vl llava gemma3; do
    [ -f "$root/vllm/images-$family/model.safetensors" ] ||
      "$python" "$here/multimodal.py" "$root/vllm/tiny-llama" "$root/vllm/images-$family" "$family" 2>/dev/null
  done
  for name in a b; do
    seed=$((seed + 1))
    [ -f "$root/vllm/lora-$name/adapter_model.safetensors" ] ||
      "$python" "$scripts/make_lora.py" "$root/vllm/tiny-llama" "$root/vllm/lora-$name" $seed
  done
}

# vLLM's connector NIXL moves blocks between a prefill and a decode server, here through the CPU's memory. Its wheels
# also ask for those of another CUDA, which --no-deps leaves out.
if ! (cd / && "$python" -c 'from nixl._api import nixl_agent') 2>/dev/null; then
  echo "engines: NIXL in $root/vllm (210 MB)"
  UV_CACHE_DIR=$root/vllm/uvcache "$root/vllm/tools/bin/uv" pip install -q --no-deps --python "$python" nixl==1.5.1 nixl-cu13==1.5.1 ||
    { echo "engines: NIXL 1.5.1 is not installed: the lines above say why" >&2; exit 1; }
fi

# LMCache's controller runs without a GPU and uses the packages that were installed with vLLM. In the tests a script
# plays the engines that report to the controller.
if [ ! -d "$root/lmcache/lmcache-0.5.6.dist-info" ]; then
  echo "engines: LMCache's controller in $root/lmcache (82 MB)"
  "$root/vllm/tools/bin/uv" pip install -q --no-deps --python "$python" --target "$root/lmcache" lmcache==0.5.6 ||
    { echo "engines: LMCache 0.5.6 is not installed: the lines above say why" >&2; exit 1; }
fi

models & made=$! # on one core, while the packages of SGLang are downloaded
echo "engines: SGLang in $root/sglang (3.2 GB)"
if [ ! -f "$root/sglang/.warmpath-ready" ]; then
  bash "$scripts/setup_sglang.sh" "$root/sglang" 2>&1 | quiet
  [ -f "$root/sglang/tiny-llama/model.safetensors" ] || { echo "engines: SGLang is not installed: the lines above say why" >&2; exit 1; }
  touch "$root/sglang/.warmpath-ready"
fi
wait $made || { echo "engines: a tiny model was not made: remove the folder of the last one and run this again" >&2; exit 1; }
echo "engines: ready in $root ($(du -sh "$root" | cut -f1))"
