#!/usr/bin/env python3
"""Makes zmq_frames and zmtp_transcripts: what an engine's ZmqEventPublisher sends to a SUB, a DEALER and a REQ socket
of libzmq, as frames of messages and as bytes of the TCP connections.
usage, with the engine's Python: make_frames.py vllm|sglang [--write]

The publishers are those of vLLM 0.32.0 and SGLang 0.5.23, with pyzmq 27.3.0 and libzmq 4.3.5. Each publisher sends four
batches and keeps three, so a replay from message 1 on returns three. Older versions replayed without the topic. For them the
program replaces one method of the publisher (WithoutTopic). A proxy between the sockets and the publisher records
the bytes. A transcript has all bytes of each direction in one chunk, since TCP cuts the bytes differently each time."""
import socket, sys, threading, time
from typing import Any, Optional
import msgspec, zmq
import sections

TIME, TOPIC, BUFFER, FROM = 1761955200.125, "kv-events", 3, (1).to_bytes(8, "big")
engine = sys.argv[1]
if engine == "vllm":
    from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher
else:
    from sglang.srt.disaggregation.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher

class WithoutTopic(ZmqEventPublisher):
    """Replays as vLLM did before 0.26 (#45177) and SGLang until August 2026: the reply does not have the topic."""
    def _service_replay(self):
        client, empty, first = self._replay.recv_multipart()
        for seq, payload in self._buffer:
            if seq >= int.from_bytes(first, "big"):
                self._replay.send_multipart((client, b"", seq.to_bytes(8, "big"), payload))
        self._replay.send_multipart((client, b"", self.END_SEQ, b""))

class OldCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    """The event of SGLang until 0.5.18: an array."""

class OldBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    attn_dp_rank: Optional[int] = None

class Recorder:
    """A TCP proxy for one connection to a port, which keeps the bytes of both directions."""
    def __init__(self, port):
        self.bytes, self.target = {"client_to_server": b"", "server_to_client": b""}, port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "tcp://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        client, _ = self.listener.accept()
        server = socket.create_connection(("127.0.0.1", self.target))
        threading.Thread(target=self.copy, args=(server, client, "server_to_client"), daemon=True).start()
        self.copy(client, server, "client_to_server")

    def copy(self, source, sink, direction):
        while data := source.recv(65536):
            self.bytes[direction] += data
            sink.sendall(data)

    def chunks(self):
        return [{"direction": d, "hex": data.hex()} for d, data in self.bytes.items()]

def until(done):
    end = time.monotonic() + 10
    while not done():
        if time.monotonic() > end:
            sys.exit("the publisher did not answer within 10 seconds")
        time.sleep(0.01)

def free_port(rank):
    """A free port; the port that is `rank` higher, which the publisher uses, is also free."""
    while True:
        with socket.create_server(("", 0)) as s:
            port = s.getsockname()[1]
            try:
                with socket.create_server(("", port + rank)) if rank else s:
                    return port
            except OSError:
                pass  # another program has it

def texts(frames):
    return [f.hex() for f in frames]

def record(name, publisher, rank, note, origin, cleared=AllBlocksCleared, batch=KVEventBatch):
    port = replay_port = free_port(rank)
    while abs(port - replay_port) <= rank:
        replay_port = free_port(rank)
    p = publisher(rank, f"tcp://*:{port}", f"tcp://*:{replay_port}", buffer_steps=BUFFER, topic=TOPIC)
    live, replay = Recorder(port + rank), Recorder(replay_port + rank)
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, TOPIC.encode())
    sub.connect(live.endpoint)
    until(lambda: TOPIC.encode() in live.bytes["client_to_server"])
    time.sleep(0.3)  # until the publisher has read the subscription
    for n in range(4):
        b = batch(TIME + n, [cleared()])
        if "attn_dp_rank" in b.__struct_fields__:
            b.attn_dp_rank = rank
        p.publish(b)
    messages = [sub.recv_multipart() for _ in range(4)]
    dealer = context.socket(zmq.DEALER)
    dealer.connect(replay.endpoint)
    request = [b"", FROM]
    dealer.send_multipart(request)
    replies = [dealer.recv_multipart()]
    while replies[-1][-1]:
        replies.append(dealer.recv_multipart())
    req = context.socket(zmq.REQ)
    req.connect(f"tcp://127.0.0.1:{replay_port + rank}")
    req.send(FROM)
    to_req = req.recv_multipart()
    time.sleep(0.1)  # until the proxy has the last bytes
    frames = {"id": name, "origin": origin, "note": note, "config": {"topic": TOPIC, "buffer_steps": BUFFER, "rank": rank},
              "live_multipart_frames_hex": [texts(m) for m in messages], "replay_request_from_dealer_frames_hex": texts(request),
              "replay_reply_multipart_frames_at_dealer_hex": [texts(m) for m in replies],
              "replay_reply_at_REQ_socket_hex": [texts(to_req)],
              "port_offset_observed": int(p._endpoint.rsplit(":", 1)[1]) - port}
    def transcript(ending, client, server, chunks, **more):
        return {"id": f"{name}/{ending}",
                "origin": f"TCP bytes between a {client} socket (client) and the publisher's {server} socket", "client_socket": client, "server_socket": server, **more, "chunks": chunks}
    made["zmq_frames"].append(frames)
    made["zmtp_transcripts"] += [transcript("sub_to_pub", "SUB", "PUB", live.chunks(), subscription=TOPIC),
                                 transcript("dealer_to_router", "DEALER", "ROUTER", replay.chunks())]
    p.shutdown()
    context.destroy(linger=0)

made = {"zmq_frames": [], "zmtp_transcripts": []}
if engine == "vllm":
    own = "ZmqEventPublisher of vLLM 0.32.0"
    record("vllm_head_topic_in_replay", ZmqEventPublisher, 0,
           ">=0.26.0 (#45177): replay reply = ['', topic, seq, payload], terminator ['', '', ff*8, '']", own)
    record("vllm_head_dp_rank2", ZmqEventPublisher, 2, "port = base + 2, batch carries 2", own)
    record("vllm_0_24_no_topic_in_replay", WithoutTopic, 0,
           "<=0.25.x: replay reply = ['', seq, payload], terminator ['', ff*8, '']",
           own + ", with the replay of 0.24 from make_frames.py")
else:
    own = "ZmqEventPublisher of SGLang 0.5.23"
    record("sglang_head_dp_rank1", WithoutTopic, 1, "SGLang <= 2026-08: replay reply without topic",
           own + ", with the replay and the event of 0.5.18 from make_frames.py", OldCleared, OldBatch)
    record("sglang_0_5_23_dp_rank1", ZmqEventPublisher, 1, "replay reply with the topic, event as a map", own)
sections.finish(made, lambda name: name.startswith(engine))
