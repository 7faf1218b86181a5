#!/usr/bin/env python3
"""Record the KV events of vLLM and SGLang servers as JSON lines.

usage: dump_events.py OUT.jsonl NAME=PORT [NAME=PORT...]

Each line is {desc, src, port, recv_ts, n_frames, topic, seq, payload_hex, decoded}. desc is the content of
the file OUT.jsonl.desc at that moment, if the file exists. The program that sends requests to the servers can write there what it does.
"""
import json
import sys
import time

import msgspec
import zmq


def plain(value):
    """Return value in a form that JSON can express."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    if isinstance(value, dict):
        return {(k if isinstance(k, str) else repr(k)): plain(v) for k, v in value.items()}
    return value


def description(path):
    try:
        return open(path).read().strip()
    except OSError:
        return ""


out, context, poller, servers = sys.argv[1], zmq.Context(), zmq.Poller(), {}
for argument in sys.argv[2:]:
    name, port = argument.split("=")
    sub = context.socket(zmq.SUB)
    sub.set_hwm(0)
    sub.connect(f"tcp://127.0.0.1:{port}")
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    poller.register(sub, zmq.POLLIN)
    servers[sub] = (name, int(port))
with open(out, "a") as f:
    while True:
        for sub, _ in poller.poll():
            frames = sub.recv_multipart()
            name, port = servers[sub]
            record = {
                "desc": description(out + ".desc"), "src": name, "port": port, "recv_ts": round(time.time(), 4),
                "n_frames": len(frames), "topic": frames[0].decode(), "seq": int.from_bytes(frames[-2], "big", signed=True),
                "payload_hex": frames[-1].hex(), "decoded": plain(msgspec.msgpack.decode(frames[-1])) if frames[-1] else None}
            f.write(json.dumps(record) + "\n")
            f.flush()
