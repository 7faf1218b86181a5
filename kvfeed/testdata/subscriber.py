"""A subscriber on real libzmq as vLLM's examples have it: subscriber.py PUB_ENDPOINT REPLAY_ENDPOINT START. Asks for a replay
from START first and prints "replay SEQ LENGTH" for each message and "end"; then prints "live TOPIC SEQ LENGTH"."""
import struct
import sys

import zmq

context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.setsockopt(zmq.HEARTBEAT_IVL, 100)
sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 300)
sub.subscribe(b"")
sub.connect(sys.argv[1])
dealer = context.socket(zmq.DEALER)
dealer.set_hwm(100_000)
dealer.connect(sys.argv[2])
dealer.send_multipart([b"", struct.pack(">Q", int(sys.argv[3]))])
while True:
    *_, seq, payload = dealer.recv_multipart()
    if seq == b"\xff" * 8:
        print("end" if not payload else "end with a payload", flush=True)
        break
    print("replay", struct.unpack(">Q", seq)[0], len(payload), flush=True)
while True:
    topic, seq, payload = sub.recv_multipart()
    print("live", topic.decode(), struct.unpack(">Q", seq)[0], len(payload), flush=True)
