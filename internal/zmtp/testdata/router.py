"""A libzmq ROUTER: router.py bind ENDPOINT HEARTBEAT_MS. Answers each request [id, "", x] with three messages
[id, "", x, i]; i is 0, 1 and 2. Prints its endpoint, then each request as hex frames."""
import sys

import zmq

mode, endpoint, heartbeat = sys.argv[1], sys.argv[2], int(sys.argv[3])
sock = zmq.Context().socket(zmq.ROUTER)
if heartbeat:
    sock.setsockopt(zmq.HEARTBEAT_IVL, heartbeat)
getattr(sock, mode)(endpoint)
print(sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), flush=True)
while True:
    frames = sock.recv_multipart()
    print(" ".join(f.hex() or "-" for f in frames), flush=True)
    for i in range(3):
        sock.send_multipart(frames + [b"%d" % i])
