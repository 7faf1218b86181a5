"""A client of the index service, over gRPC, with the code that the protobuf compiler makes of indexer.proto.

client.py PROTO ADDRESS KEY: prints what the service answers, as JSON, for the test that started it.
"""
import json
import os
import sys
import tempfile

import grpc
from google.protobuf.json_format import MessageToDict
from grpc_tools import protoc

proto, address, key = sys.argv[1:]
made = tempfile.mkdtemp()
folder = os.path.dirname(proto)
if protoc.main(["protoc", f"-I{folder}", f"--python_out={made}", f"--grpc_python_out={made}", proto]):
    sys.exit("protoc failed")
sys.path.insert(0, made)
import indexer_pb2 as pb  # noqa: E402
import indexer_pb2_grpc as rpc  # noqa: E402

channel = grpc.insecure_channel(address)
index = rpc.IndexStub(channel)
metadata = [("authorization", "Bearer " + key)]


def call(method, request):
    try:
        return method(request, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        return {"error": error.code().name, "details": error.details()}


def shown(message):
    return message if isinstance(message, dict) else MessageToDict(message, preserving_proto_field_name=True)


def answer(name, message):
    print(json.dumps({"name": name, "answer": shown(message)}), flush=True)


tokens = list(range(1000000, 1000200))
changes = index.Changes(pb.ChangesRequest(model="m"), metadata=metadata, timeout=60)
answer("begin", next(changes))
answer("tokens", call(index.Score, pb.ScoreRequest(model="m", token_ids=tokens)))
answer("workers asked for", call(index.Score, pb.ScoreRequest(model="m", token_ids=tokens, workers=["http://b"])))
answer("big", call(index.Score, pb.ScoreRequest(model="m", token_ids=[2**32 - 1] * 100000)))
answer("no prompt", call(index.Score, pb.ScoreRequest(model="m")))
answer("unknown model", call(index.Score, pb.ScoreRequest(model="other", token_ids=tokens)))
answer("prompt", call(index.Score, pb.ScoreRequest(model="m", prompt="hello")))
asked = index.Ask(iter([
    pb.ScoreRequest(model="m", tokens=tokens, id=7), pb.ScoreRequest(model="other", tokens=tokens, id=2**64 - 1),
    pb.ScoreRequest(model="m", prompt="hello", id=9), pb.ScoreRequest(model="m", token_ids=tokens)]), metadata=metadata, timeout=60)
answer("ask", {"answers": [shown(one) for one in asked]})
runs = [shown(run) for run in index.Dump(pb.DumpRequest(model="m"), metadata=metadata, timeout=60)]
answer("dump", {"runs": runs})
keys = [int(k) for k in runs[0]["keys"]]
answer("keys", call(index.Score, pb.ScoreRequest(model="m", keys=keys, block_size=16)))
answer("other keys", call(index.Score, pb.ScoreRequest(model="m", keys=keys, block_size=32)))
answer("register", call(index.Register, pb.RegisterRequest(
    worker="c", models=[pb.Model(id="m"), pb.Model(id="sql", parent="m")], engine="sglang", block_size=32, ranks=2, first_rank=4,
    sources=[pb.Source(rank=5, endpoint="tcp://127.0.0.1:9", replay="tcp://127.0.0.1:10", topic="t")], lease_seconds=60)))
answer("bad register", call(index.Register, pb.RegisterRequest(worker="d")))
answer("workers", call(index.Workers, pb.WorkersRequest()))
answer("unregister", call(index.Unregister, pb.UnregisterRequest(worker="c", rank_plus_one=6)))
answer("unregister again", call(index.Unregister, pb.UnregisterRequest(worker="c")))
metadata = [("authorization", "Bearer wrong")]
answer("wrong key", call(index.Score, pb.ScoreRequest(model="m", token_ids=tokens)))
print(json.dumps({"name": "store"}), flush=True)
sys.stdin.readline()  # the test has stored a block
answer("change", next(changes))
changes.cancel()
channel.close()
