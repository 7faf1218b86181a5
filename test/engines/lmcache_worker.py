"""Plays the engines of an LMCache deployment for its real controller: registers instances and tells that they have cached
prompts. Run with lmcache on PYTHONPATH and the controller's PYTHONHASHSEED, so that both hash chunks alike.

Reads lines of JSON from standard input and answers each with a line:
  {"instance": "one", "worker": 0, "ip": "10.0.0.1", "port": 7001}     registers
  {"instance": "one", "worker": 0, "tokens": [1, 2, 3]}                has cached this prompt
"""
import json
import sys

import msgspec
import zmq
from lmcache.v1.cache_controller.message import BatchedKVOperationMsg, KVOpEvent, OpType, RegisterMsg
from lmcache.v1.token_database import ChunkedTokenDatabase

pull, reply = sys.argv[1:3]
context = zmq.Context()
push = context.socket(zmq.PUSH)
push.connect(f"tcp://127.0.0.1:{pull}")
ask = context.socket(zmq.REQ)
ask.connect(f"tcp://127.0.0.1:{reply}")
chunks = ChunkedTokenDatabase()
sequence = 0
print("ready", flush=True)
for line in sys.stdin:
    told = json.loads(line)
    if "tokens" in told:
        operations = []
        for _, _, key in chunks.process_tokens(told["tokens"], make_key=False):
            operations.append(KVOpEvent(op_type=OpType.ADMIT, key=key, seq_num=sequence))
            sequence += 1
        push.send(msgspec.msgpack.encode(BatchedKVOperationMsg(
            instance_id=told["instance"], worker_id=told["worker"], location="LocalCPUBackend", operations=operations)))
        print(len(operations), flush=True)
        continue
    ask.send(msgspec.msgpack.encode(RegisterMsg(
        instance_id=told["instance"], worker_id=told["worker"], ip=told["ip"], port=told["port"], peer_init_url=None)))
    ask.recv()
    print("registered", flush=True)
