#!/usr/bin/env bash
# setup_sglang.sh DIR: installs SGLang for the CPU from PyPI into DIR/venv, and makes a tiny model in DIR/tiny-llama.
# PyPI has no sgl-kernel for the CPU. The package sglang_stub/sgl_kernel replaces it: its functions raise an exception,
# and the server uses torch's own kernels instead (--attention-backend torch_native).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DIR=${1:?usage: setup_sglang.sh DIR}
mkdir -p "$DIR"
DIR=$(cd "$DIR" && pwd)
fits() { "$1" -c 'import sys,ensurepip; sys.exit(sys.version_info<(3,11))'; }
PY=
for c in ${PYTHON:-python3 python3.12 python3.13 python3.11}; do
  p=$(command -v "$c" || true)
  if [ -n "$p" ] && fits "$p"; then
    PY=$("$p" -c 'import sys; print(sys.executable)')
    break
  fi
done
[ -n "$PY" ] || { echo "setup_sglang.sh: no Python >= 3.11 is on the PATH" >&2; exit 3; }
export UV_CACHE_DIR=${UV_CACHE_DIR:-$DIR/uvcache} UV_PYTHON_DOWNLOADS=never
[ -x "$DIR/tools/bin/uv" ] || { "$PY" -m venv "$DIR/tools"; "$DIR/tools/bin/pip" install -q --disable-pip-version-check uv; }
"$DIR/tools/bin/uv" venv -q --clear -p "$PY" "$DIR/venv"
"$DIR/tools/bin/uv" pip install -q --python "$DIR/venv/bin/python" --no-deps -r "$HERE/requirements-sglang.lock"
UV_LINK_MODE=copy bash "$HERE/make_cuda_stubs.sh" "$DIR/venv"
[ -f "$DIR/tiny-llama/model.safetensors" ] || HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES= "$DIR/venv/bin/python" "$HERE/make_model.py" "$DIR/tiny-llama"
