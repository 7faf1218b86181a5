"""The event side of an engine on real libzmq, as vLLM's ZmqEventPublisher does it (vllm/distributed/kv_events.py):

    engine.py RUN PUB_ENDPOINT REPLAY_ENDPOINT BUFFER_STEPS topic|plain [connect]

Prints its two endpoints. Commands on stdin: "publish N", "drop N" (numbered and buffered, not sent). Each is answered with the
next sequence number. Replays carry the topic with "topic" and not with "plain". With "connect" it connects to PUB_ENDPOINT,
and each message is a batch of vLLM's events that clears the cache."""
import collections
import struct
import sys
import threading

import zmq

run, pub_endpoint, replay_endpoint, steps, form = sys.argv[1:6]
context = zmq.Context()
pub = context.socket(zmq.PUB)
pub.set_hwm(100_000)
pub.setsockopt(zmq.HEARTBEAT_IVL, 200)
pub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 600)
getattr(pub, "connect" if "connect" in sys.argv else "bind")(pub_endpoint)
router = context.socket(zmq.ROUTER)  # with libzmq's default limit of 1000 messages, like vLLM's
router.bind(replay_endpoint)
for s in (pub, router):
    print(s.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), flush=True)
topic = b"kv@a:1@m"
cleared = b"\x93\xcb" + struct.pack(">d", 1) + b"\x91\x91\xb0AllBlocksCleared\x00"  # [1.0, [["AllBlocksCleared"]], rank 0]
buffer = collections.deque(maxlen=int(steps))
commands = collections.deque()
threading.Thread(target=lambda: commands.extend(sys.stdin), daemon=True).start()
n = 0
while True:
    if router.poll(2):
        frames = router.recv_multipart()
        if len(frames) == 3:
            start = int.from_bytes(frames[2], "big")
            head = [frames[0], b""]
            for seq, payload in buffer:
                if seq >= start:
                    router.send_multipart(head + ([topic] if form == "topic" else []) + [struct.pack(">Q", seq), payload])
            router.send_multipart(head + ([b""] if form == "topic" else []) + [b"\xff" * 8, b""])
    if commands:
        verb, count = commands.popleft().split()
        for _ in range(int(count)):
            payload = cleared if "connect" in sys.argv else b"%s %d %s" % (run.encode(), n, b"x" * (n % 100))
            buffer.append((n, payload))
            if verb == "publish":
                pub.send_multipart([topic, struct.pack(">Q", n), payload])
            n += 1
        print(n, flush=True)
