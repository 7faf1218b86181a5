#!/usr/bin/env python3
"""What SGLang's own radix tree hits, stores and drops, the events that it sends in its two formats, without and with
EAGLE, and its LoadStat.  usage, with SGLang's Python: make_sglang.py > sglang-0.5.23.json
Made with sglang 0.5.23 (srt/mem_cache/radix_cache.py, srt/mem_cache/events.py, srt/disaggregation/kv_events.py,
srt/managers/scheduler_components/load_publisher.py)."""
import json, random
from array import array
import msgspec
from sglang.srt.disaggregation.kv_events import KVEventBatch
from sglang.srt.managers.scheduler_components.load_publisher import LoadStat
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

SIZE, ROOM, STEPS = 16, 40 * 16, 80
encode = msgspec.msgpack.Encoder().encode

class Allocator:
    device = "cpu"
    def free_segment(self, *_, **__): pass
    def free(self, *_, **__): pass

def prompt(draw, before, scopes):
    old = draw.choice(before) if before and draw.random() < 0.8 else {"tokens": [], "salt": None, "extra": None}
    cut = draw.randint(0, len(old["tokens"]))
    if draw.random() < 0.7:
        cut = min(cut // SIZE * SIZE + draw.randint(0, 3), len(old["tokens"]))
    new = draw.choice([draw.randint(1, 4 * SIZE), SIZE * draw.randint(1, 3) - cut % SIZE, SIZE * draw.randint(1, 3) - cut % SIZE + 1])
    salt, extra = (old["salt"], old["extra"]) if cut else draw.choice(scopes)
    if cut and draw.random() < 0.2:
        salt, extra = draw.choice(scopes)  # the same tokens for somebody else
    return {"tokens": old["tokens"][:cut] + [draw.randint(0, 2) for _ in range(max(new, 1))], "salt": salt, "extra": extra}

def run(name, seed, eagle, dynamo, scopes):
    draw = random.Random(seed)
    tree = RadixCache(CacheInitParams(disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=Allocator(), page_size=SIZE,
                                      enable_kv_cache_events=True, dynamo_kv_event_format=dynamo, is_eagle=eagle))
    tree.kv_events.take()
    prompts, steps = [], []
    for n in range(STEPS):
        p = prompt(draw, prompts[-12:], scopes)
        prompts.append(p)
        key = lambda tokens: RadixKey(array("q", tokens), extra_key=p["extra"], cache_salt=p["salt"])
        # The scheduler computes at least a prompt's last token (schedule_batch.py: init_next_round_input).
        hit = tree.match_prefix(MatchPrefixParams(key=key(p["tokens"][:-1] if not eagle else p["tokens"]))).device_prefix_len
        tree.insert(InsertParams(key=key(p["tokens"])))
        if tree.evictable_size_ > ROOM:
            tree.evict(EvictParams(num_tokens=tree.evictable_size_ - ROOM))
        events = tree.kv_events.take()
        payload = encode(KVEventBatch(ts=1763700000.0 + n, events=events, attn_dp_rank=0)).hex() if events else ""
        steps.append({**p, "hit": hit, "payload": payload})
    return {"name": name, "ahead": int(eagle), "size": SIZE, "steps": steps}

plain = [(None, None)]
keyed = [(None, None)] * 2 + [("tenant", None), (None, "a"), (None, "b"), ("tenant", "a")]
runs = [run("default", 1, False, False, plain + [("tenant", None)]), run("default, EAGLE", 2, True, False, plain), run("dynamo", 3, False, True, keyed), run("dynamo, EAGLE", 4, True, True, keyed)]
stats = [LoadStat(num_running_reqs=3, num_waiting_reqs=2, num_tokens=1000, max_total_num_tokens=65536, attn_dp_rank=1, num_waiting_uncached_tokens=700,
                  num_total_tokens=1900, max_running_requests=2048, total_prefill_uncached_tokens=17000, total_prefill_busy_us=900000),
         LoadStat(num_running_reqs=0, num_waiting_reqs=0, num_tokens=0, max_total_num_tokens=0)]
loads = [{"payload": encode(s).hex(), "fields": [getattr(s, f) for f in s.__struct_fields__]} for s in stats]
print(json.dumps({"version": "0.5.23", "runs": runs, "loads": loads}, separators=(",", ":")).replace('{"tokens"', '\n{"tokens"'))
