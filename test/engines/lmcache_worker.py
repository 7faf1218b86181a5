"""Play the engines that report to a real LMCache controller.

usage: lmcache_worker.py PULL_PORT REPLY_PORT, with lmcache on PYTHONPATH, and with the controller's PYTHONHASHSEED, so
that both compute the same hashes of chunks. It reads commands from standard input, one JSON object a line, and answers each with a line:
  {"instance": "one", "worker": 0, "ip": "10.0.0.1", "port": 7001}     registers an engine
  {"instance": "one", "worker": 0, "tokens": [1, 2, 3]}                reports that the engine has cached a prompt
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
    command = json.loads(line)
    if "tokens" in command:
        operations = []
        for _, _, key in chunks.process_tokens(command["tokens"], make_key=False):
            operations.append(KVOpEvent(op_type=OpType.ADMIT, key=key, seq_num=sequence))
            sequence += 1
        push.send(msgspec.msgpack.encode(BatchedKVOperationMsg(
            instance_id=command["instance"], worker_id=command["worker"], location="LocalCPUBackend", operations=operations)))
        print(len(operations), flush=True)
        continue
    ask.send(msgspec.msgpack.encode(RegisterMsg(
        instance_id=command["instance"], worker_id=command["worker"], ip=command["ip"], port=command["port"], peer_init_url=None)))
    ask.recv()
    print("registered", flush=True)
