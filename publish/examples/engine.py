#!/usr/bin/env python3
"""An engine of one's own, without a model: it has a cache of blocks with LRU eviction, publishes what it stores and
removes, and answers completions of token ids with the number of cached tokens.

    pip install ./publish/python        # in the repository's root, until warmpath-publish is released
    python publish/examples/engine.py   # --help lists the flags
    go run ./cmd/warmpath serve --worker http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5657
"""

import argparse
import json
import random
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

from warmpath_publish import KVPublisher, hash_blocks


class Engine:
    """The cache of an engine. The hash of a block is the key of its entry."""

    def __init__(self, publisher, size, capacity):
        self.publisher, self.size, self.capacity = publisher, size, capacity
        self.lock = threading.Lock()  # guards the cache, and keeps the events in the order of the changes
        self.cached = OrderedDict()  # the least recently used block first

    def run(self, prompt):
        """Take a prompt through the cache, publish what changes, and return the number of cached tokens."""
        hashes = hash_blocks(prompt, self.size)[: self.capacity]
        with self.lock:
            hit = 0
            while hit < len(hashes) and hashes[hit] in self.cached:
                hit += 1
            # The beginning of a prompt is used last, so that a block is never evicted before the blocks after it.
            for h in reversed(hashes):
                self.cached[h] = True
                self.cached.move_to_end(h)
            removed = [self.cached.popitem(last=False)[0] for _ in range(len(self.cached) - self.capacity)]
            events = []
            if removed:
                events.append({"type": "removed", "block_hashes": removed})
            if hit < len(hashes):
                events.append(
                    {
                        "type": "stored",
                        "token_ids": prompt[hit * self.size : len(hashes) * self.size],
                        "block_hashes": hashes[hit:],
                        "parent_hash": hashes[hit - 1] if hit else None,
                    }
                )
            if events:
                self.publisher.publish_batch(events)
        # An engine always computes the last token, so a block that has it does not count as cached: vLLM reports 48 of 64 tokens.
        return min(hit, max(len(prompt) - 1, 0) // self.size) * self.size

    def flood(self, prompts):
        for _ in range(prompts):
            self.run([random.randrange(50_000) for _ in range(8 * self.size)])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self):
        if self.path == "/health":
            self.answer({})
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": "toy", "object": "model", "owned_by": "me"}]})
        elif self.path == "/published":  # for tests
            stats = self.engine.publisher.stats()
            self.answer({"published": stats.published, "dropped": stats.dropped})
        else:
            self.answer({"error": "not found"}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlparse(self.path)
        if url.path == "/flood":  # for tests: many prompts at once
            self.engine.flood(int(parse_qs(url.query)["prompts"][0]))
            self.answer({})
        elif url.path == "/v1/completions":
            prompt = json.loads(body).get("prompt")
            if not isinstance(prompt, list):
                self.answer({"error": "this engine takes prompts of token ids"}, 400)
                return
            usage = {
                "prompt_tokens": len(prompt),
                "completion_tokens": 1,
                "total_tokens": len(prompt) + 1,
                "prompt_tokens_details": {"cached_tokens": self.engine.run(prompt)},
            }
            choice = {"index": 0, "text": "ok", "finish_reason": "stop"}
            self.answer({"object": "text_completion", "model": "toy", "choices": [choice], "usage": usage})
        else:
            self.answer({"error": "not found"}, 404)

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--listen", default="127.0.0.1:8000")
    p.add_argument("--events", default="tcp://127.0.0.1:5557")
    p.add_argument("--replay", default="tcp://127.0.0.1:5657")
    p.add_argument("--block-size", type=int, default=16)
    p.add_argument("--blocks", type=int, default=4096)
    p.add_argument("--buffer-steps", type=int, default=10_000)
    p.add_argument("--queue", type=int, default=100_000)
    p.add_argument("--hwm", type=int, default=100_000)
    a = p.parse_args()
    with KVPublisher(
        a.events,
        a.replay,
        kv_block_size=a.block_size,
        buffer_steps=a.buffer_steps,
        max_queue_size=a.queue,
        hwm=a.hwm,
    ) as publisher:
        Handler.engine = Engine(publisher, a.block_size, a.blocks)
        host, _, port = a.listen.rpartition(":")
        ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
