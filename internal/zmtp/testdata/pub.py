"""A libzmq PUB: pub.py bind|connect ENDPOINT HEARTBEAT_MS. Prints its endpoint. Then publishes [b"other", b"no"] and
[b"kv", n, 1000 bytes] every 5 ms; n counts these pairs. A line on stdin pauses the publishing, and the next line
continues it."""
import select
import struct
import sys

import zmq

mode, endpoint, heartbeat = sys.argv[1], sys.argv[2], int(sys.argv[3])
sock = zmq.Context().socket(zmq.PUB)
sock.setsockopt(zmq.IPV6, 1)
if heartbeat:
    sock.setsockopt(zmq.HEARTBEAT_IVL, heartbeat)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * heartbeat)
    sock.setsockopt(zmq.HEARTBEAT_TTL, 5 * heartbeat)
getattr(sock, mode)(endpoint)
print(sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), flush=True)
n, paused = 0, False
while True:
    if select.select([sys.stdin], [], [], 0.005)[0]:
        if not sys.stdin.readline():
            break
        paused = not paused
        print("paused" if paused else "goes on", flush=True)
    if not paused:
        sock.send_multipart([b"other", b"no"])
        sock.send_multipart([b"kv", struct.pack(">Q", n), b"x" * 1000])
        n += 1
