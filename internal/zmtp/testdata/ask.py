"""A libzmq DEALER or REQ that sends one request to a ROUTER: ask.py DEALER|REQ ENDPOINT IDENTITY. Prints each reply as
hex frames."""
import sys

import zmq

kind, endpoint, identity = sys.argv[1], sys.argv[2], sys.argv[3].encode()
sock = zmq.Context().socket(getattr(zmq, kind))
if identity:
    sock.setsockopt(zmq.IDENTITY, identity)
sock.connect(endpoint)
sock.send_multipart([b"question"] if kind == "REQ" else [b"", b"question"])
while True:
    print(" ".join(f.hex() or "-" for f in sock.recv_multipart()), flush=True)
    if kind == "REQ":
        break
