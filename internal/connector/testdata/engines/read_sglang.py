"""What SGLang's own code reads in the bodies of the script. Needs SGLang; no engine is started."""

import importlib.metadata
import types

from bodies import show
from sglang.srt.disaggregation.decode import DecodePreallocQueue
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.managers import data_parallel_controller as controller
from sglang.srt.managers.io_struct import GenerateReqInput


def rank_of(room, ranks):
    """Returns the rank to which a prefill engine gives a request of this room."""
    sent = []
    of = types.SimpleNamespace(workers=list(range(ranks)), maybe_external_dp_rank_routing=lambda _: False)
    controller.sock_send = lambda worker, _: sent.append(worker)
    controller.DataParallelController.follow_bootstrap_room_scheduler(of, types.SimpleNamespace(bootstrap_room=room))
    return sent[0]


def asked(room, told, ranks):
    """Returns the rank that a decode engine asks for the blocks."""
    info = types.SimpleNamespace(dp_size=ranks, follow_bootstrap_room=True)
    queue = types.SimpleNamespace(kv_manager=types.SimpleNamespace(prefill_info_table=anything(info)))
    req = types.SimpleNamespace(bootstrap_room=room, disagg_prefill_dp_rank=told, bootstrap_host="h", bootstrap_port=1)
    return DecodePreallocQueue._resolve_prefill_dp_rank(queue, req)


def anything(value):
    """Returns a table that has the same value for each key."""
    return types.SimpleNamespace(get=lambda _: value)


def read(name, leg, kind, body):
    if "text" in body:  # /generate
        request = GenerateReqInput(**body)
    else:
        body.setdefault("model", "m")
        of = ChatCompletionRequest if kind == "chat" else CompletionRequest
        parsed = of(**body)
        request = GenerateReqInput(
            text=parsed.prompt if kind == "completion" else "rendered", sampling_params={}, rid=parsed.rid,
            bootstrap_host=parsed.bootstrap_host, bootstrap_port=parsed.bootstrap_port,
            bootstrap_room=parsed.bootstrap_room, routed_dp_rank=parsed.routed_dp_rank,
            disagg_prefill_dp_rank=parsed.disagg_prefill_dp_rank)
    request.normalize_batch_and_arguments()
    many = not request.is_single
    for i in range(request.batch_size if many else 1):
        one = request[i] if many else request
        line = f"rid {one.rid}: room {one.bootstrap_room} at {one.bootstrap_host}:{one.bootstrap_port}"
        told = one.disagg_prefill_dp_rank
        if told is not None:
            ranks = RANKS[told]
            line += f"; of {ranks} ranks, the room goes to {rank_of(one.bootstrap_room, ranks)}"
            line += f", and decode asks {asked(one.bootstrap_room, told, ranks)}"
            line += f" (without being told: {asked(one.bootstrap_room, None, ranks)})"
        yield line


RANKS = {2: 4, 3: 7}  # the ranks of the prefill workers of the script, by the rank that serves the leg

if __name__ == "__main__":
    show(["sglang"], "SGLang " + importlib.metadata.version("sglang"),
         "python internal/connector/testdata/engines/read_sglang.py", read)
