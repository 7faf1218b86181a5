"""Write a tiny model with random weights, a BPE tokenizer with Qwen2's pre-tokenizer, and a chat template with tools.

usage: make_model.py OUT [llama|gemma3|mistral-sw|qwen2-sw|gptoss]

It needs no network. The tokenizer is trained on the source of the transformers package, so it depends only on the
versions in requirements.lock, or for SGLang in requirements-sglang.lock. All models of one installation have the same
tokenizer. Two runs make the same weights.
"""
import glob
import hashlib
import os
import sys

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MAX_LENGTH = 32768
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>"]
# Qwen2's pre-tokenizer.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

out, kind = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "llama"
here = os.path.dirname(os.path.abspath(__file__))
os.makedirs(out, exist_ok=True)

source = os.path.dirname(transformers.__file__)
files = sorted(glob.glob(source + "/*.py"))[:30] + sorted(glob.glob(source + "/generation/*.py"))
lines = [line for f in files for line in open(f, encoding="utf-8")]  # in a fixed order, so that the trainer gets the same lines on every machine
bpe = Tokenizer(models.BPE())
bpe.normalizer = normalizers.NFC()
bpe.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator(lines, trainers.BpeTrainer(
    vocab_size=4096 - len(SPECIALS), special_tokens=[], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
bpe.add_special_tokens(SPECIALS)
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=bpe, bos_token="<|bos|>", eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=MAX_LENGTH)
tokenizer.chat_template = open(os.path.join(here, "chat_template.jinja")).read()
tokenizer.save_pretrained(out)
ids = {s: tokenizer.convert_tokens_to_ids(s) for s in SPECIALS}

common = dict(
    vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=2, head_dim=64,
    max_position_embeddings=MAX_LENGTH, bos_token_id=ids["<|bos|>"], eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"],
    dtype="bfloat16")
alternating = ["sliding_attention", "full_attention"] * 2
torch.manual_seed(0)
if kind == "llama":
    from transformers import LlamaConfig as Config, LlamaForCausalLM as Model
    config = Config(**common, num_hidden_layers=2, tie_word_embeddings=False)
elif kind == "gemma3":
    from transformers import Gemma3TextConfig as Config, Gemma3ForCausalLM as Model
    config = Config(**common, num_hidden_layers=4, sliding_window=128, query_pre_attn_scalar=64, layer_types=alternating)
elif kind == "mistral-sw":
    from transformers import MistralConfig as Config, MistralForCausalLM as Model
    config = Config(**common, num_hidden_layers=2, sliding_window=128)
elif kind == "qwen2-sw":
    from transformers import Qwen2Config as Config, Qwen2ForCausalLM as Model
    del common["head_dim"]
    config = Config(**common, num_hidden_layers=4, sliding_window=128, use_sliding_window=True, max_window_layers=2)
elif kind == "gptoss":
    from transformers import GptOssConfig as Config, GptOssForCausalLM as Model
    config = Config(
        **common, num_hidden_layers=4, sliding_window=128, num_local_experts=4, num_experts_per_tok=2, layer_types=alternating)
else:
    sys.exit(f"make_model.py: there is no kind {kind}")
model = Model(config).to(torch.bfloat16)
model.save_pretrained(out, safe_serialization=True)


def digest(name):
    return hashlib.sha256(open(os.path.join(out, name), "rb").read()).hexdigest()[:16]


print(kind, "vocabulary", len(tokenizer), "parameters", sum(p.numel() for p in model.parameters()), "special tokens", ids,
      {name: digest(name) for name in ("tokenizer.json", "model.safetensors")})
