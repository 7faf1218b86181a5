#!/usr/bin/env python3
"""Makes block_pool_traces: small scenarios that vLLM's own BlockPool runs, with the events of each step.
usage, with vLLM's Python: make_pools.py [--write]
Made with vllm/v1/core/block_pool.py of vLLM 0.32.0, msgspec 0.22.0. The events' fields come from the structs that the
pool made, and the payload is the encoded batch of the step."""
import os
os.environ["PYTHONHASHSEED"] = "0"  # vLLM hashes this text into the root of each chain
import msgspec
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_block_hash, get_request_block_hasher, init_none_hash, maybe_convert_block_hash
from vllm.v1.request import Request
import sections

TIME, SIZE = 1761955200.125, 4
init_none_hash(sha256_cbor)

def request(tokens, **more):
    hasher = get_request_block_hasher(SIZE, sha256_cbor)
    return Request("r", tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher, **more)

def describe(event):
    out = {"type": type(event).__name__}
    if out["type"] == "AllBlocksCleared":
        return out
    out |= {"block_hashes": [f"u:{h}" for h in event.block_hashes], "block_hashes_u64": [str(h) for h in event.block_hashes]}
    if out["type"] == "BlockRemoved":
        return out | {name: getattr(event, name) for name in ("medium", "group_idx", "locality")}
    parent = event.parent_block_hash
    out |= {"parent_block_hash": parent and f"u:{parent}", "parent_block_hash_u64": parent and str(parent)}
    for name in ("token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
                 "kv_cache_spec_sliding_window", "locality"):
        out[name] = getattr(event, name)
    # SGLang has cache_salt; vLLM's salt is an extra key.
    return out | {"cache_salt": None, "session_id": event.session_id}

class Trace:
    """A pool of `blocks` blocks, one of which is vLLM's null block, and the steps so far."""
    def __init__(self, name, note, blocks):
        self.pool = BlockPool(blocks, enable_caching=True, hash_block_size=SIZE, enable_kv_cache_events=True)
        self.steps = []
        self.vector = {"id": name, "origin": "BlockPool of vLLM 0.32.0", "algo": "sha256_cbor",
                       "pythonhashseed": "0", "note": note, "pool_blocks": blocks, "steps": self.steps}

    def step(self, text, **more):
        events = self.pool.take_events()
        payload = msgspec.msgpack.encode(KVEventBatch(TIME, events, 0))
        self.steps.append({"step": text, "events": [describe(e) for e in events], "payload_hex": payload.hex(), **more})

    def cached(self):
        """The hashes that the pool has, as its events name them."""
        hashes = {maybe_convert_block_hash(get_block_hash(b.block_hash)) for b in self.pool.blocks if b.block_hash is not None}
        return sorted(str(h) for h in hashes)

def duplicates():
    t = Trace("duplicate_blocks_and_eviction", "BlockStored and BlockRemoved are per physical block: a hash stored twice is removed"
              " twice. A set-based index drops it too early; reference counting is exact.", 7)
    pool = t.pool
    a, b = pool.get_new_blocks(3), pool.get_new_blocks(3)
    pool.cache_full_blocks(request(list(range(12))), a, 0, 3, SIZE, 0)
    t.step("request A caches 3 blocks")
    pool.cache_full_blocks(request([*range(8), *range(90, 94)]), b, 0, 3, SIZE, 0)
    t.step("request B (same first 8 tokens, computed concurrently, no sharing) caches 3 blocks")
    pool.free_blocks(reversed(a))  # vLLM frees the end of a request first
    pool.free_blocks(reversed(b))
    t.step("free A then B")
    c = pool.get_new_blocks(1)
    t.step("allocate 1 block: oldest freed block evicted")
    c += pool.get_new_blocks(2)
    t.step("allocate 2 more: A's first copies evicted; copies of the same hashes from B are still cached",
           still_cached_external_u64=t.cached())
    assert not pool.reset_prefix_cache()  # refused while blocks are in use
    pool.free_blocks(c)
    assert pool.reset_prefix_cache()
    t.step("reset_prefix_cache", still_cached_external_u64=t.cached())
    return t.vector

def null_blocks():
    t = Trace("null_blocks_skipped", "token_ids covers 16 tokens but only 2 hashes are listed and parent is None: positions cannot be"
              " derived from the event alone.", 10)
    blocks = [t.pool.null_block] * 2 + t.pool.get_new_blocks(2)
    t.pool.cache_full_blocks(request(list(range(16))), blocks, 0, 4, SIZE, 1)
    t.step("4 blocks of tokens, first two are null (out of window)")
    t.step("no-op")
    return t.vector

def coarse():
    t = Trace("coarse_and_partial_blocks", "block_size in one stream can differ between events (8, 4, 8)", 10)
    t.pool.cache_full_blocks(request(list(range(16))), t.pool.get_new_blocks(2), 0, 2, 2 * SIZE, 0)
    t.step("group block size 8 over hash_block_size 4")
    r, block = request(list(range(100, 108))), t.pool.get_new_blocks(1)
    t.pool.cache_partial_block(r, block[0], num_tokens=SIZE, kv_cache_group_id=0, block_size=2 * SIZE)
    t.step("partial entry at 4 tokens of an 8-token block")
    t.pool.cache_full_blocks(r, block, 0, 1, 2 * SIZE, 0)
    t.step("the block becomes full: partial hash removed, full hash stored")
    return t.vector

def reannounce():
    t = Trace("lora_salt_mm_and_reannounce", "extra_keys per block; re-announcement must not be counted as another copy", 10)
    image = MultiModalFeatureSpec(None, "image", "img-a", PlaceholderRange(2, 4))  # tokens 2 to 5: in both blocks
    r = request(list(range(8)), cache_salt="s", lora_request=LoRARequest("l", 1, "/adapter"), mm_features=[image])
    blocks = t.pool.get_new_blocks(2)
    t.pool.cache_full_blocks(r, blocks, 0, 1, SIZE, 0)
    t.step("first block")
    t.pool.cache_full_blocks(r, blocks, 1, 2, SIZE, 0)
    t.step("second block, parent set")
    t.pool.emit_cached_block_events(r, 2, SIZE, 0)
    t.step("kv_cache_report_mode=full re-announces both (no new physical block)")
    t.pool.evict_blocks({blocks[1].block_id})
    t.step("connector evicts the second block")
    return t.vector

sections.finish({"block_pool_traces": [duplicates(), null_blocks(), coarse(), reannounce()]})
