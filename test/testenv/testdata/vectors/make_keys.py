#!/usr/bin/env python3
"""Makes fnv1a_chain and llmd_request_keys from the published formulas. It shares no code with Warmpath or llm-d.
usage, with SGLang's Python, which has cbor2 and xxhash: make_keys.py [--write]

- fnv1a_chain has the formula of "vLLM Router v0.12.0: Routing on Real KV Cache Events" (barrahome.org, 2026-04-24).
- llmd_request_keys has the two formulas of llm-d. cbor-fnv (TokenProcessor in package kvblock of llm-d-kv-cache):
  FNV-64a of the canonical CBOR of [parent, tokens, extra keys]. xxh64 (llm-d-router): XXH64 of the parent, the tokens and the
  extra keys, as little-endian numbers, and as texts after their lengths."""
import struct
import cbor2, xxhash
import sections

BASIS, PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
ORIGIN = {"cbor-fnv": "llm-d-kv-cache 7be76e119c (Go) made these keys, and make_keys.py makes the same",
          "xxh64": "llm-d-router ebab68792 (Go) made these keys, and make_keys.py makes the same"}
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

def blocks(tokens, size):
    return [tokens[i:i + size] for i in range(0, len(tokens) - size + 1, size)]

def chained_fnv1a(name, size, start, tokens):
    """The article hashes whole tokens, where the usual FNV-1a hashes bytes. It does not state the parent of the
    first block: `start` is this parent. Warmpath's root is 0. Another start shows how a parent enters the first block."""
    keys, parent = [], start
    for block in blocks(tokens, size):
        h = BASIS ^ (parent * PRIME & MASK)
        for token in block:
            h = (h ^ token) * PRIME & MASK
        keys.append(parent := h)
    return {"id": name, "origin": "make_keys.py: the formula of the article in Python", "block_size": size,
            "start_key": str(start), "tokens": tokens, "keys": [str(k) for k in keys], "keys_hex": [f"{k:016x}" for k in keys]}

def fnv64a(data):
    h = BASIS
    for byte in data:
        h = (h ^ byte) * PRIME & MASK
    return h

def cbor_fnv(parent, tokens, extra):
    return fnv64a(cbor2.dumps([parent, tokens, extra], canonical=True))

def xxh64(parent, tokens, texts):
    data = struct.pack(f"<Q{len(tokens)}I", parent, *tokens)
    for text in texts:
        data += struct.pack("<Q", len(text.encode())) + text.encode()
    return xxhash.xxh64_intdigest(data)

def llmd(algorithm, seed, model, size, tokens, images=None, parent=None):
    """`images` has the identifiers of the images in each block. `parent` replaces the hash of the model's name."""
    v = {"algorithm": algorithm, "origin": ORIGIN[algorithm], "hash_seed": seed, "model_name": model, "block_size": size,
         "tokens": tokens, "mm_hashes": images, "parent": "" if parent is None else str(parent)}
    init = fnv64a(seed.encode()) if algorithm == "cbor-fnv" else xxhash.xxh64_intdigest(seed.encode())
    root = cbor_fnv(init, None, model) if algorithm == "cbor-fnv" else xxh64(init, [], [model])
    keys, last = [], root if parent is None else parent
    for n, block in enumerate(blocks(tokens, size)):
        names = images and images[n] or []
        if algorithm == "cbor-fnv":
            last = cbor_fnv(last, block, [{"Hash": name} for name in names] or None)
        else:
            last = xxh64(last, block, names)
        keys.append(str(last))
    return v | {"init_hash": str(init), "model_hash": str(root), "keys": keys}

def run(first, n):
    return list(range(first, first + n))

sections.finish({
    "fnv1a_chain": [
        chained_fnv1a("bs16_48", 16, 0, run(1000, 48)),
        chained_fnv1a("bs4_12", 4, 0, run(0, 12)),
        chained_fnv1a("bs16_tail", 16, 0, run(0, 40)),
        chained_fnv1a("bs4_nonzero_start", 4, 12345, run(0, 8)),
        chained_fnv1a("bs4_large", 4, 0, [0, 4294967295, 151643, 128000] * 2),
        chained_fnv1a("bs1", 1, 0, [0, 0, 1]),
    ],
    "llmd_request_keys": [vector for algorithm in ("cbor-fnv", "xxh64") for vector in (
        llmd(algorithm, "", LLAMA, 16, run(1000, 50)),
        llmd(algorithm, "42", "m", 4, run(0, 12)),
        llmd(algorithm, "42", "m", 4, [0, 23, 24, 255, 256, 65535, 65536, 4294967295]),
        llmd(algorithm, "42", "m", 4, run(0, 8), [["img-a"], None]),
        llmd(algorithm, "42", "m", 4, run(0, 8), [["img-a", "img-b"], ["img-b"]]),
        llmd(algorithm, "42", "lora-name", 4, run(0, 8), parent=12345678901234567890),
    )],
})
