"""Publish the KV cache events of an inference engine of your own, so that a KV-aware router knows its cache.

    from warmpath_publish import KVPublisher, hash_blocks

    with KVPublisher("tcp://*:5557", "tcp://*:5657", kv_block_size=16) as publisher:
        hashes = hash_blocks(tokens, 16)  # or the engine's own hashes
        publisher.publish_stored(tokens[:16 * len(hashes)], None, hashes)
        publisher.publish_removed(hashes[:1])

The wire format is that of vLLM 0.33: ZeroMQ messages of the topic, an 8-byte big-endian number and a MessagePack
batch, and the replay protocol of vLLM's ZmqEventPublisher.
"""

from ._encode import Digest, ExtraKey, Hash, encode_batch
from ._hash import hash_blocks
from ._publisher import KVPublisher, PublisherClosed, PublisherError, PublisherForked, Stats

__version__ = "0.1.0"
__all__ = [
    "Digest",
    "ExtraKey",
    "Hash",
    "KVPublisher",
    "PublisherClosed",
    "PublisherError",
    "PublisherForked",
    "Stats",
    "encode_batch",
    "hash_blocks",
]
