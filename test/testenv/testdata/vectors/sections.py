"""Reads engine_vectors.json.gz for the programs beside this file, compares what they make with it, and writes it."""
import gzip, json, os, sys
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine_vectors.json.gz")

META = {
    "made_by": {
        "kv_event_payloads": "make_payloads.py", "zmq_frames": "make_frames.py", "zmtp_transcripts": "make_frames.py",
        "block_pool_traces": "make_pools.py", "fnv1a_chain": "make_keys.py", "llmd_request_keys": "make_keys.py",
        "vllm_block_hashes": "functions of vLLM 017e9f4448b7; check.py makes the hashes of the present algorithms again",
        "sglang_page_hashes": "functions of SGLang 382343f860; check.py makes the hashes again, except bigrams"},
    "made_with": "vLLM 0.32.0 and SGLang 0.5.23 for the CPU, msgspec 0.22.0, pyzmq 27.3.0, libzmq 4.3.5, cbor2 6.2.1, xxhash 4.1.0",
    "u64_strings": "64-bit values are decimal strings",
    "hash_tag": "u:<unsigned> i:<negative signed> b:<hex bytes>",
    "normalization": "hash -> u64: int & 2^64-1; bytes -> big-endian value of the last 8 bytes",
}

def read():
    with gzip.open(path) as f:
        return json.load(f)

def finish(made, mine=lambda name: True):
    """Compares made vectors with the kept ones, prints each vector that differs, and exits with status 1 if one does.
    `made` maps the name of a section to its vectors. `mine` tells by a vector's id whether this run makes the vector.
    With the argument --write, finish writes the made vectors into the file instead."""
    file, bad = read(), 0
    made = json.loads(json.dumps(made))  # tuples become lists, as in the file
    for section, vectors in made.items():
        new = {v.get("id", n): v for n, v in enumerate(vectors)}
        old = {v.get("id", n): v for n, v in enumerate(file[section])}
        gone = [name for name in old if mine(name) and name not in new]
        different = [name for name in new if old.get(name) != new[name]]
        for name in different:
            print(f"{section} {name} differs:\n  kept {json.dumps(old.get(name))}\n  made {json.dumps(new[name])}")
        print(f"{section}: {len(new)} vectors made, {len(different)} differ, {len(gone)} are no longer made {gone or ''}")
        bad += len(different) + len(gone)
        file[section] = list({name: v for name, v in (old | new).items() if name not in gone}.values())
    if "--write" in sys.argv:
        file["meta"] = META
        with open(path, "wb") as f:
            f.write(gzip.compress((json.dumps(file, indent=1, ensure_ascii=False) + "\n").encode(), 9, mtime=0))
    else:
        sys.exit(bad > 0)
