"""Picks the committed sample of the chats that harmony.py rendered with vLLM: every fourth chat, without its ids.

    python testdata/harmony_sample.py < ~/.cache/warmpath/harmony.json
"""

import gzip
import json
import os
import sys

chats = json.load(sys.stdin)[::4]
for chat in chats:
    chat.pop("ids", None)
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harmony.json.gz")
with open(path, "wb") as f, gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=9, mtime=0) as z:
    z.write(json.dumps(chats, ensure_ascii=False, indent=0).encode())
