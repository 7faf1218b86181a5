#!/usr/bin/env python3
"""Write a model that always gives the same answer: with random weights no model calls a tool.

usage: parrot.py TINY OUT

TINY is a model that make_model.py has made. The new model has TINY's tokenizer with one more token for each piece of the
answer. Its layers add nothing, so the next token depends on the last token only: each piece is followed by the next one.
The prompt of a chat ends with a newline, which is followed by the first piece. The pieces cut a character and the marks of
the parser (hermes) in two.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tiny, out = sys.argv[1:3]
t = AutoTokenizer.from_pretrained(tiny)
pieces = [
    "Let", " me", " lo", "ok – na", "ïve", " 漢", "字 😀", " Spa", b"\xc3", b"\xb1", "a fir", "st.\n", "<tool", "_call>\n", '{"na', 'me":', ' "get_', "weat",
    'her",', ' "argu', 'ments"', ': {"ci', 'ty": "', "Ber", "lin \\", '"x\\"', ' é", ', '"days"', ": 3", "}}", "\n</to", "ol_call>", "\n<to", 'ol_call', '>\n{"', 'name"',
    ': "g', "et_ti", 'me", ', '"arg', 'uments', '": {"zo', 'ne": ', '"CE', 'T"}', "}\n", "</tool", "_ca", "ll>"]
chain = []
for piece in pieces:
    if isinstance(piece, bytes):  # a byte has a token of its own in the byte alphabet: Ã and ±
        chain.append(t.convert_tokens_to_ids(piece.decode("latin-1")))
        continue
    if piece not in t.get_vocab():
        t.add_tokens([piece])
    chain.append(t.convert_tokens_to_ids(piece))
assert len(set(chain)) == len(chain), "a token is followed by one other token only"
chain = [t.encode("assistant\n", add_special_tokens=False)[-1], *chain, t.convert_tokens_to_ids("<|im_end|>")]
assert chain[0] not in chain[1:]

m = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
m.resize_token_embeddings(len(t))
torch.manual_seed(0)
with torch.no_grad():
    for layer in m.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    m.model.norm.weight.fill_(1)
    m.model.embed_tokens.weight.normal_()
    head = m.get_output_embeddings().weight
    head.normal_(std=0.01)
    for token, following in zip(chain, chain[1:]):
        head[following] += m.model.embed_tokens.weight[token]
m.config.dtype = torch.float32
m.save_pretrained(out, safe_serialization=True)
t.save_pretrained(out)
