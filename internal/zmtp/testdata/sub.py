"""A libzmq SUB: sub.py bind|connect ENDPOINT HEARTBEAT_MS. Prints its endpoint, subscribes to "kv", then prints each message as
hex frames. A line on stdin cancels the subscription."""
import sys
import threading

import zmq

mode, endpoint, heartbeat = sys.argv[1], sys.argv[2], int(sys.argv[3])
sock = zmq.Context().socket(zmq.SUB)
sock.setsockopt(zmq.IPV6, 1)
if heartbeat:
    sock.setsockopt(zmq.HEARTBEAT_IVL, heartbeat)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * heartbeat)
    sock.setsockopt(zmq.HEARTBEAT_TTL, 5 * heartbeat)
sock.subscribe(b"kv")
getattr(sock, mode)(endpoint)
print(sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), flush=True)
lines = []
threading.Thread(target=lambda: lines.extend(sys.stdin), daemon=True).start()
while True:
    if lines:
        lines.clear()
        sock.unsubscribe(b"kv")
        print("cancelled", flush=True)
    if sock.poll(20):
        print(" ".join(f.hex() or "-" for f in sock.recv_multipart()), flush=True)
