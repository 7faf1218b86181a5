#!/usr/bin/env python3
"""Makes kv_event_payloads: batches of events as each version of each engine writes them, and batches made by hand.
usage, with the engine's Python: make_payloads.py vllm|sglang [--write]

msgspec encodes all batches. The structs of the installed engine (vLLM 0.32.0, SGLang 0.5.23) make its own wire format.
The structs of older formats are declared here, field by field, as vllm/distributed/kv_events.py and
python/sglang/srt/disaggregation/kv_events.py had them at the commit in FORMATS. When the vectors were first made, the
engines' own files at these commits made the same bytes. Run with vllm, the program also makes the batches by hand."""
import struct, sys
from typing import Any, Optional, Union
import msgspec
import sections

encode, TIME = msgspec.msgpack.encode, 1761955200.125
ROOT, SECOND, THIRD = 15760518052499183552, 2141435625894055276, 2**63
DIGEST = bytes.fromhex("7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed")
DIGEST2 = bytes.fromhex("3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3")
PARENT_DIGEST = bytes.fromhex("8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f")
T16, T32 = list(range(100, 116)), list(range(100, 132))
STRUCTS = "structs declared in make_payloads.py, encoded by msgspec"
OWN = {"vllm": "structs of vLLM 0.32.0, encoded by msgspec", "sglang": "structs of SGLang 0.5.23, encoded by msgspec"}

# An event of a scenario is (type, fields). A format without a field leaves the field out.
def stored(hashes, parent=None, tokens=T16, size=16, medium="GPU", **fields):
    return "BlockStored", {"block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": size,
                           "lora_id": None, "medium": medium, "lora_name": None, **fields}

def full(hashes, *args, **fields):
    """A stored event of vLLM's first group."""
    own = {"extra_keys": [None] * len(hashes), "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    return stored(hashes, *args, **own | fields)

def removed(*hashes, medium="GPU", **fields):
    return "BlockRemoved", {"block_hashes": list(hashes), "medium": medium, **fields}

CLEARED = ("AllBlocksCleared", {})

# The formats: name in the ids, versions, commit, fields of BlockStored after lora_id, fields of BlockRemoved after
# block_hashes, whether a batch has a rank, whether an event is an array.
FORMATS = {
    "vllm": [
        ("vllm_0_9_0", ">=0.9.0,<0.9.1", "0be6d05b5ea92dae61cd83f26fea05a48d227802", "", "", False, True),
        ("vllm_0_9_1", ">=0.9.1,<0.10.2", "b712be98c790794479030313f2c2b9dae17ea7de", "", "", True, True),
        ("vllm_0_10_2", ">=0.10.2,<0.14.0", "82dfb12e52ded608da2a458b2da5f48ba1acecdf", "medium", "medium", True, True),
        ("vllm_0_14", ">=0.14.0,<0.17.0", "39512aba72537d364e0352141cf8c0523115ec09", "medium lora_name", "medium", True, True),
        ("vllm_0_17", ">=0.17.0,<0.20.0", "a0fe7ea2f052bb44820bc06a5635456b8d1383af", "medium lora_name extra_keys",
         "medium", True, True),
        ("vllm_0_20", ">=0.20.0 until #40984 (merged 2026-05-12)", "cc07dad789e9ae3f02ab6a4794800b8c1cc240c6",
         "medium lora_name extra_keys group_idx", "medium group_idx", True, True),
        ("vllm_0_22", "#40984 (2026-05-12) .. 0.23.x", "bcb9c133bafed161b3f4d0ea391c985465429680",
         "medium lora_name extra_keys group_idx kv_cache_spec_kind kv_cache_spec_sliding_window", "medium group_idx", True, True),
        ("vllm_0_24_map", ">=0.24.0 until locality #48281 (2026-07-17)", "5b3807e862fe70f51139ac518a5dd361e57de2e5",
         "medium lora_name extra_keys group_idx kv_cache_spec_kind kv_cache_spec_sliding_window", "medium group_idx", True, False),
    ],
    "sglang": [
        ("sglang_0_4_6_post5", "0.4.6.post5 .. 0.4.6.x", "7adf245ba24f4581bd760cffff5bef4edebc0aee", "", "", False, True),
        ("sglang_0_4_7", ">=0.4.7,<0.5.9", "f0f84975f4a1798654e669fe016644fd9f185118", "", "", True, True),
        ("sglang_0_5_9", ">=0.5.9,<0.5.18", "01e3f4682e2071ae110a593a219685a3ef7e201f", "medium", "medium", True, True),
        ("sglang_0_5_18", ">=0.5.18 until map encoding #37482 (2026-09)", "382343f860c7df8dc43ecefd7902c940d81c99a9",
         "medium", "medium", True, True),
    ],
}
REQUIRED = ("medium", "lora_name")  # vLLM's fields without a default

def declare(stored_fields, removed_fields, has_rank, is_array):
    """The structs of a format: a class for each type of event, and the batch's class."""
    hashed = Union[int, bytes]
    types = {"extra_keys": Optional[list[Any]], "group_idx": Optional[int], "kv_cache_spec_sliding_window": Optional[int]}
    def fields(names):
        kinds = [(name, types.get(name, Optional[str])) for name in names.split()]
        return [k if k[0] in REQUIRED else (*k, None) for k in kinds]
    def event(name, own):
        return msgspec.defstruct(name, own, tag=name, array_like=is_array, omit_defaults=True)
    first = [("block_hashes", list[hashed])]
    middle = [("parent_block_hash", Optional[hashed]), ("token_ids", list[int]), ("block_size", int), ("lora_id", Optional[int])]
    classes = {"BlockStored": event("BlockStored", first + middle + fields(stored_fields)),
               "BlockRemoved": event("BlockRemoved", first + fields(removed_fields)),
               "AllBlocksCleared": event("AllBlocksCleared", [])}
    rank = [("data_parallel_rank", Optional[int], None)] if has_rank else []
    batch = msgspec.defstruct("KVEventBatch", [("ts", float), ("events", list[Union[tuple(classes.values())]]), *rank],
                              array_like=True, omit_defaults=True)
    return classes, batch

def tagged(h):
    return f"b:{h.hex()}" if isinstance(h, bytes) else f"u:{h}" if h >= 0 else f"i:{h}"

def u64(h):
    return str(int.from_bytes(h[-8:], "big") if isinstance(h, bytes) else h & (2**64 - 1))

def plain(key):
    """An extra key as JSON can hold it."""
    if isinstance(key, bytes):
        return {"bytes_hex": key.hex()}
    return [plain(k) for k in key] if isinstance(key, (list, tuple)) else key

def describe(kind, fields):
    """The event in the form of the vectors: every field that an engine may send, or null."""
    f = fields.get
    out = {"type": kind}
    if kind == "AllBlocksCleared":
        return out
    out |= {"block_hashes": [tagged(h) for h in f("block_hashes")], "block_hashes_u64": [u64(h) for h in f("block_hashes")]}
    if kind == "BlockRemoved":
        return out | {"medium": f("medium"), "group_idx": f("group_idx"), "locality": f("locality")}
    parent = f("parent_block_hash")
    out |= {"parent_block_hash": None if parent is None else tagged(parent),
            "parent_block_hash_u64": None if parent is None else u64(parent)}
    for name in ("token_ids", "block_size", "lora_id", "medium", "lora_name"):
        out[name] = f(name)
    out["extra_keys"] = plain(f("extra_keys"))
    for name in ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "cache_salt", "session_id"):
        out[name] = f(name)
    return out

def vector(name, engine, versions, commit, origin, note, payload, expect="ok", events=None, rank=0, ts=TIME, skipped=(), kept=None):
    v = {"id": name, "engine": engine, "versions": versions, "commit": commit, "origin": origin, "note": note,
         "payload_hex": payload.hex(), "expect": expect}
    if expect == "ok":
        v["expected"] = {"ts": ts, "data_parallel_rank": rank, "events": [describe(*e) for e in events],
                         "skipped_event_indexes": list(skipped)}
    if kept is not None:
        v["expected_remaining_events"] = kept
    return v

def from_structs(name, engine, versions, commit, origin, structs, scenario):
    events, note, rank = scenario["events"], scenario.get("note"), scenario.get("rank", 0)
    classes, batch = structs
    made, seen = [], []
    for kind, fields in events:
        c = classes[kind]
        if "cache_salt" in fields and "cache_salt" not in c.__struct_fields__:
            # SGLang 0.5.18 announces a salt as one more element of the array.
            salted = msgspec.defstruct("Salted", [(n, Any) for n in (*c.__struct_fields__, "metadata")], tag=kind, array_like=True)
            own = {n: fields[n] for n in c.__struct_fields__}
            made.append(salted(**own, metadata={"cache_salt": fields["cache_salt"]}))
            seen.append((kind, own | {"cache_salt": fields["cache_salt"]}))
            continue
        own = {n: fields[n] for n in c.__struct_fields__ if n in fields}
        made.append(c(**own))
        seen.append((kind, own))
    has_rank = len(batch.__struct_fields__) == 3
    payload = encode(batch(TIME, made, rank) if has_rank else batch(TIME, made))
    v = vector(name, engine, versions, commit, origin, note, payload, events=seen, rank=rank if has_rank else None)
    try:  # the typed decoder, as a subscriber in Python uses it
        if encode(msgspec.msgpack.decode(payload, type=batch)) == payload:
            v["cross_checked_with_engine_decoder"] = True
    except msgspec.ValidationError:
        pass
    return v

VLLM_SCENARIOS = {  # "needs" names a field of BlockStored that the format must have
    "root_block_int": {"events": [full([ROOT])]},
    "two_blocks_with_parent": {"events": [full([SECOND, THIRD], ROOT, T32)]},
    "removed": {"events": [removed(ROOT, group_idx=0)]},
    "cleared": {"events": [CLEARED]},
    "mixed_batch": {"events": [full([ROOT]), removed(SECOND, group_idx=0), CLEARED]},
    "empty_events": {"events": []},
    "dp_rank_3": {"events": [removed(ROOT, group_idx=0)], "rank": 3, "needs": "rank"},
    "dp_rank_null": {"events": [removed(ROOT, group_idx=0)], "rank": None, "needs": "rank",
                     "note": "rank left None: the array form still carries an explicit nil as third element"},
    "bytes_hashes": {"events": [full([DIGEST, DIGEST2], PARENT_DIGEST, T32)], "needs": "medium",
                     "note": "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"},
    "bytes_removed": {"events": [removed(DIGEST, group_idx=0)], "needs": "medium"},
    "cpu_placeholder": {"events": [stored([ROOT], None, [], 0, "CPU", group_idx=0)], "needs": "medium",
                        "note": "OffloadingConnector placeholder: no tokens, block_size 0 (before 0.2x block_size may be the"
                                " offloaded block size)"},
    "cpu_removed": {"events": [removed(ROOT, SECOND, medium="CPU", group_idx=0)], "needs": "medium"},
    "mooncake_cpu_lowercase": {"events": [stored([ROOT], medium="cpu", group_idx=0)], "needs": "medium"},
    "medium_null": {"events": [stored([ROOT], medium=None)], "needs": "medium"},
    "negative_int_hash": {"events": [stored([-6148914691236517206], -1, [1, 2, 3, 4], 4)],
                          "note": "prefix_caching_hash_algo=builtin publishes signed Python hash()"},
    "lora_id_only": {"events": [full([ROOT], lora_id=7, lora_name="sql-adapter", extra_keys=[["sql-adapter"]])]},
    "extra_keys_mm_salt_lora": {
        "events": [full([ROOT, SECOND], None, T32, lora_id=1, lora_name="l", extra_keys=[
            ["l", ["img-hash-a", 5], "tenant-salt"], ["l", ["img-hash-a", -11], ["img-hash-b", 9]]])], "needs": "extra_keys",
        "note": "tuple mm keys (identifier, offset) as published since #36708; order lora, mm, salt, embeds"},
    "extra_keys_mm_plain": {"events": [stored([ROOT], extra_keys=[["img-hash-a"]], group_idx=0)], "needs": "extra_keys",
                            "note": "bare mm identifier as published before #36708"},
    "extra_keys_embeds_bytes": {"events": [stored([ROOT], extra_keys=[[DIGEST]], group_idx=0)], "needs": "extra_keys",
                                "note": "prompt-embeds sha256 digest as msgpack bin"},
    "sliding_window_group_short_hashes": {
        "events": [full([THIRD], None, list(range(48)), group_idx=1, kv_cache_spec_kind="sliding_window",
                        kv_cache_spec_sliding_window=128)], "needs": "kv_cache_spec_kind",
        "note": "null/masked blocks are skipped: 1 hash for 3 blocks of tokens; not a contiguous chain"},
    "mamba_group": {"events": [full([THIRD], ROOT, group_idx=2, kv_cache_spec_kind="mamba")], "needs": "kv_cache_spec_kind"},
    "mla_group": {"events": [full([THIRD], ROOT, kv_cache_spec_kind="mla_attention")], "needs": "kv_cache_spec_kind"},
    "storage_local": {"events": [stored([ROOT], None, [], 0, "STORAGE", group_idx=0, locality="LOCAL")], "needs": "locality"},
    "storage_remote_removed": {"events": [removed(ROOT, medium="STORAGE", group_idx=0, locality="REMOTE")], "needs": "locality"},
    "storage_fs_label": {"events": [stored([ROOT], None, [], 0, "FS", group_idx=0)], "needs": "locality",
                         "note": "#47923 (2026-07-10) used FS/OBJ until #48123 (2026-07-27) renamed both to STORAGE"},
    "msgpack_int_widths": {"events": [stored(
        [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1], 2**64 - 1,
        [0, 127, 128, 255, 256, 65535, 65536, 151935, 2**32 - 1, 1, 1, 1], 1)]},
}

SGLANG_SCENARIOS = {
    "page1_chain": {"events": [stored([11, -12, 13], None, [7, 8, 9], 1)], "note": "signed int64 hashes"},
    "page16": {"events": [stored([-1234567890123456789], 42)]},
    "removed": {"events": [removed(11, -12)]},
    "cleared": {"events": [CLEARED]},
    "bigram_tokens": {"events": [stored([5, 6], None, [[1, 2], [2, 3], [3, 4], [4, 5]], 2)],
                      "note": "EAGLE: token_ids are [t, t_next] pairs"},
    "dp_rank_2": {"events": [removed(11)], "rank": 2, "needs": "rank"},
    "host_tier_stored": {"events": [stored([11], medium="CPU_PINNED")], "needs": "0.5.18"},
    "host_tier_removed": {"events": [removed(11, medium="CPU_PINNED")], "needs": "0.5.18"},
    "disk_and_external": {"events": [stored([11], medium="DISK"), stored([12], 11, medium="EXTERNAL")], "needs": "0.5.18"},
    "salted_metadata": {"events": [stored([11], cache_salt="tenant-a")], "needs": "0.5.18", "note": "8th array element is a map"},
    "salted_and_plain_mixed": {"events": [stored([11], cache_salt="tenant-a"), stored([12])], "needs": "0.5.18"},
}

def by_format(engine, scenarios):
    for name, versions, commit, stored_fields, removed_fields, has_rank, is_array in FORMATS[engine]:
        has = {None, "rank" if has_rank else None, "0.5.18" if name == "sglang_0_5_18" else None, *stored_fields.split()}
        for title, scenario in scenarios.items():
            if scenario.get("needs") in has and (title != "negative_int_hash" or name in ("vllm_0_9_0", "vllm_0_9_1")):
                structs = declare(stored_fields, removed_fields, has_rank, is_array)
                yield from_structs(f"{name}/{title}", engine, versions, commit, STRUCTS, structs, scenario)

def engine_structs(module):
    return {c: getattr(module, c) for c in ("BlockStored", "BlockRemoved", "AllBlocksCleared")}, module.KVEventBatch

def vllm():
    from vllm.distributed import kv_events
    yield from by_format("vllm", VLLM_SCENARIOS)
    for title, scenario in VLLM_SCENARIOS.items():
        if title != "negative_int_hash":
            yield from_structs(f"vllm_head_map/{title}", "vllm", ">=0.28 (locality, STORAGE)", None, OWN["vllm"],
                               engine_structs(kv_events), scenario)
    yield from by_hand()

def sglang():
    from sglang.srt.disaggregation import kv_events
    yield from by_format("sglang", SGLANG_SCENARIOS)
    yield from_structs("sglang_map/stored_salt_session", "sglang", "after #37482 (merged 2026-09)", None, OWN["sglang"],
                       engine_structs(kv_events), {"events": [
                           stored([123], None, [1, 2], 2, cache_salt="tenant-a", session_id="s-1"),
                           removed(-9, medium="CPU_PINNED"), CLEARED]})

def array(event, *more):
    """An event as an array: the type, the values of all fields, and more elements."""
    return [event[0], *event[1].values(), *more]

def as_map(event, *without, **more):
    return {"type": event[0], **{k: v for k, v in event[1].items() if k not in without}, **more}

def by_hand():
    """Batches of other senders, unusual batches that a reader should understand, and bad ones."""
    def ok(name, engine, versions, origin, note, batch, events, **more):
        payload = batch if isinstance(batch, bytes) else encode(batch)
        return vector(name, engine, versions, None, origin, note, payload, "ok", events, **more)
    hand, one = "made by hand", stored([ROOT])
    s = stored([123], None, [1, 2], 2)
    yield ok("sglang_map/nested_metadata_variant", "sglang", "draft #37271 (not merged)", hand + " from the pull request", None,
             [TIME, [as_map(s, "lora_name", metadata={"cache_salt": "tenant-a"})], None],
             [(s[0], s[1] | {"cache_salt": "tenant-a"})], rank=None)
    s, r = stored([-7, 8], None, list(range(64)), 32), removed(-7)
    yield ok("trtllm_stream/stored_removed", "tensorrt-llm", "1.3.0rc (kv_events_config, KVCacheManagerV2 python backend)",
             hand + " from TensorRT-LLM's source", "hashes are signed int64, always int; batches coalesce chained stores",
             [TIME, [as_map(s), as_map(r)], 1], [s, r], rank=1)
    s = stored([-7], None, list(range(32)), 32, None, lora_name="l", cache_salt="x")
    yield ok("trtllm_dynamo_zmq/stored", "tensorrt-llm via dynamo", "dynamo 2026-08",
             hand + " from dynamo components/src/dynamo/trtllm/publisher.py", "medium/lora_id keys absent",
             [TIME, [as_map(s, "medium", "lora_id", block_mm_infos=[{"mm_objects": [{"mm_hash": 5, "offsets": []}]}])], 0], [s])
    yield vector("mooncake_master/stored_removed", "mooncake-store master", "main 2026-08-22", None,
                 hand + " from mooncake-store/src/kv_event/kv_event_publisher.cpp",
                 "ts is an integer in milliseconds; BlockStored with token_ids null and block_size null: nothing to index by"
                 " token, only a hash",
                 encode([1761955200125, [{
                     "event_id": 1, "timestamp": 1761955200125, "event_type": "stored", "type": "BlockStored", "model_name": None,
                     "block_size": None, "additional_salt": None, "lora_name": None, "tenant_id": "default", "backend_id": "pool-a",
                     "group_id": None, "medium": "cpu", "dp_rank": None, "object_key": "m@0@ff", "seq_hashes": [2**63],
                     "block_hashes": [-2**63], "base_block_idx": 0, "parent_hash": None, "token_ids": None,
                     "parent_block_hash": None}], 0]), "skip_event", kept=[])
    s = stored([ROOT], None, [], 0, "SHARED_STORAGE")
    yield ok("llmd_fs_backend/shared_storage", "llm-d fs backend", "2026-05", hand + " from llm-d-kv-cache #571",
             "2-element batch, positional, bytes hashes truncated to low 64 bits", [TIME, [array(s)]], [s], rank=None)
    yield ok("tolerance/map_envelope_draft", "vllm", "PR branch of #42892 only (0181ea3173)",
             hand + "; the merged version keeps the array envelope", "accepting it costs nothing",
             {"ts": TIME, "events": [as_map(CLEARED)], "data_parallel_rank": 0}, [CLEARED])
    s = full([ROOT], None, [151644, 872, 198, 9064, 374, 279, 6722, 315, 5616, 30, 151645, 198, 151644, 77091, 198, 151667])
    yield ok("tolerance/live_capture_0_26", "vllm", "0.26.0",
             "values from a live capture quoted in volcano-sh/kthena#1535, re-encoded", None,
             [1789095808.8378847, [as_map(s)], 0], [s], ts=1789095808.8378847)

    def tolerance(title, note, batch, events, versions="-", engine="synthetic", **more):
        return ok(f"tolerance/{title}", engine, versions, hand, note, batch, events, **more)
    s, r = full([ROOT]), removed(ROOT, group_idx=0)
    yield tolerance("extra_trailing_fields_array", None, [
        TIME, [array(s, None, None, "future", {"x": 1}, [1, 2]), array(r, None, "future"), ["AllBlocksCleared", "future"]], 0,
        "future-batch-field"], [s, r, CLEARED])
    yield tolerance("unknown_map_keys", None, [
        TIME, [{"type": "BlockStored", "event_version": 1, **one[1], "ownership": "x", "nested": {"a": [1, {"b": None}]}}], 0], [one])
    s = stored([ROOT], SECOND)
    yield tolerance("map_key_order", "tag is not the first key", [
        TIME, [{k: as_map(s)[k] for k in ("token_ids", "medium", "block_size", "block_hashes", "type", "parent_block_hash")}], 0], [s])
    yield tolerance("unknown_tag_array_and_map", "unknown tags are skipped, the rest of the batch is kept", [
        TIME, [["BlockMigrated", [1], 2], {"type": "Ignored", "x": 1}, ["AllBlocksCleared"], as_map(removed(ROOT, medium=None))], 0],
        [CLEARED, removed(ROOT, medium=None)], skipped=[0, 1])
    s, r = stored([ROOT], medium=None), removed(ROOT, medium=None)
    yield tolerance("short_array_min", "5-slot BlockStored and 1-field BlockRemoved (no medium); msgspec never emits this for"
                    " typed structs, some re-publishers do", [TIME, [array(s)[:5], array(r)[:2]]], [s, r], rank=None)
    r = removed(ROOT, group_idx=0)
    yield tolerance("mixed_array_and_map_events", None, [TIME, [["AllBlocksCleared"], as_map(r)], 0], [CLEARED, r])
    yield tolerance("int_timestamp", None, [1761955200, [["AllBlocksCleared"]], 0], [CLEARED], ts=1761955200)
    yield tolerance("float32_timestamp", None, b"\x93\xca" + struct.pack(">f", 1.5) + encode([["AllBlocksCleared"]]) + b"\0",
                    [CLEARED], ts=1.5)
    s = stored([DIGEST[:16]], DIGEST2[:16])
    yield tolerance("xxhash_16_byte_hashes", None, [TIME, [as_map(s)], 0], [s],
                    ">=0.13 with xxhash*, VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0", "vllm")
    s = stored([ROOT, SECOND], None, T16 + [1])
    yield tolerance("token_count_mismatch", "decodes; must not be indexed by token (17 tokens, 2 hashes, block_size 16)",
                    [TIME, [as_map(s)], 0], [s])

    start = b"\x93" + encode(TIME)  # an array of three, and its first element
    def malformed(title, note, payload, expect="reject_batch"):
        return vector(f"malformed/{title}", "synthetic", "-", None, hand, note, payload, expect)
    yield malformed("truncated", "cut inside the batch", encode([TIME, [["AllBlocksCleared"]], 0])[:-3])
    yield malformed("empty_payload", "this is also the replay terminator's payload; never a batch", b"")
    yield malformed("not_a_container", None, encode(5))
    yield malformed("one_element_batch", None, encode([TIME]))
    yield malformed("events_not_array", None, encode([TIME, {"a": 1}, 0]))
    yield malformed("garbage", "0xc1 is never valid msgpack", bytes(range(0xC1, 0xD1)))
    yield malformed("deep_nesting", "2000 nested arrays: bound the depth; rejecting the batch or skipping event 0 are both fine",
                    start + b"\x91" * 2000 + b"\xc0\0", "reject_or_skip")
    yield malformed("huge_array_header", "array32 length 2^32-1 with no data: must not allocate", start + b"\xdd\xff\xff\xff\xff\0")
    for title, note, event in (
        ("event_is_int", "", 7),
        ("tag_not_string", "", [3, [ROOT]]),
        ("map_without_type", "", {"block_hashes": [ROOT]}),
        ("stored_missing_tokens", "", ["BlockStored", [ROOT], None]),
        ("stored_tokens_null", "token_ids null (LMCache/Mooncake can produce it)", array(stored([ROOT], None, None))[:-1]),
        ("negative_token", "", array(stored([ROOT], None, [1, -1], 2))[:-1]),
        ("hash_is_string", "", array(stored(["abc"], None, [1, 2], 2))[:-1]),
        ("empty_event_array", "", []),
    ):
        yield vector(f"malformed_event/{title}", "synthetic", "-", None, hand,
                     f"{note} (event 0 must be dropped and counted, event 1 kept)",
                     encode([TIME, [event, ["AllBlocksCleared"]], 0]), "skip_event", kept=["AllBlocksCleared"])

def of_sglang(name):
    return name.startswith("sglang_") and name != "sglang_map/nested_metadata_variant"

engine = sys.argv[1]
sections.finish({"kv_event_payloads": list({"vllm": vllm, "sglang": sglang}[engine]())},
                lambda name: of_sglang(name) == (engine == "sglang"))
