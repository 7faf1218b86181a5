#!/usr/bin/env bash
# traces.sh FOLDER: downloads the public traces that are too large for the repository. It does not download a file
# again.
#   toolagent_trace.jsonl        kvcache-ai/Mooncake, Apache-2.0, 23,608 requests
#   qwen_traceA_blksz_16.jsonl   alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0
set -euo pipefail
folder=${1:?usage: traces.sh FOLDER}
mkdir -p "$folder"

fetch() {
  local file=$folder/${1##*/}
  [ -s "$file" ] && return
  echo "traces: $1"
  curl -fL --retry 3 -o "$file.part" "https://github.com/$1"
  mv "$file.part" "$file"
}

fetch kvcache-ai/Mooncake/raw/main/FAST25-release/traces/toolagent_trace.jsonl
fetch alibaba-edu/qwen-bailian-usagetraces-anon/raw/main/qwen_traceA_blksz_16.jsonl
