"""The bytes of messages, and the checks of events."""

import array
import hashlib
import json
import os
import pathlib
import unittest
from unittest import mock

from warmpath_publish import encode_batch, hash_blocks

DEFAULT = pathlib.Path(__file__).parents[2] / "testdata" / "vectors.json"
VECTORS = pathlib.Path(os.environ.get("WARMPATH_VECTORS", DEFAULT))


def one(h):
    return bytes.fromhex(h) if isinstance(h, str) else h


def events(case):
    """Return the events of a case as publish_batch takes them."""
    for event in case["events"]:
        e = dict(event)
        if e["type"] == "stored":
            below = e.pop("tokens_below", 0)
            e["token_ids"] = list(range(below)) or e.get("token_ids", [])
            if "block_size" in e:
                e["num_block_tokens"] = e.pop("block_size")
            if e.get("parent_hash") is not None:
                e["parent_hash"] = one(e["parent_hash"])
            if e.get("extra_keys") is not None:
                e["extra_keys"] = [
                    keys and [bytes.fromhex(k["digest"]) if isinstance(k, dict) else tuple(k) for k in keys]
                    for keys in e["extra_keys"]
                ]
        if e["type"] != "cleared":
            e["block_hashes"] = list(range(e.pop("hashes_below", 0))) or [one(h) for h in e.get("block_hashes", [])]
        yield e


@unittest.skipUnless(VECTORS.exists(), "the vectors are not in the source distribution")
class Vectors(unittest.TestCase):
    def setUp(self):
        self.vectors = json.loads(VECTORS.read_text())

    def test_payloads(self):
        for case in self.vectors["cases"]:
            with self.subTest(case["name"]):
                payload = encode_batch(
                    events(case), ts=case["ts"], dp_rank=case["rank"], kv_block_size=case["block_size"]
                )
                if case.get("sha256"):
                    self.assertEqual(hashlib.sha256(payload).hexdigest(), case["sha256"])
                else:
                    self.assertEqual(payload.hex(), case["payload"])
        self.assertGreater(len(self.vectors["cases"]), 20)

    def test_refused(self):
        for case in self.vectors["refused"] or ():
            with self.subTest(case["name"]), self.assertRaises((ValueError, TypeError)):
                encode_batch(events(case), ts=0, kv_block_size=case["block_size"])

    def test_hashes(self):
        for case in self.vectors["hashes"] or ():
            with self.subTest(case["name"]):
                parent = case["parent_hash"] and bytes.fromhex(case["parent_hash"])
                got = hash_blocks(
                    case["token_ids"],
                    case["block_size"],
                    parent,
                    lora_name=case["lora_name"],
                    cache_salt=case["cache_salt"],
                )
                self.assertEqual([h.hex() for h in got], case["hashes"])


def stored(**changes):
    event = {"type": "stored", "token_ids": [1, 2, 3, 4], "num_block_tokens": 2, "block_hashes": [5, 6]}
    event.update(changes)
    return encode_batch([event], ts=0)


class Arguments(unittest.TestCase):
    def test_equal_forms(self):
        want = stored()
        self.assertEqual(stored(token_ids=(1, 2, 3, 4), block_hashes=(5, 6)), want)
        self.assertEqual(stored(token_ids=array.array("I", [1, 2, 3, 4]), block_hashes=iter([5, 6])), want)
        self.assertEqual(stored(num_block_tokens=[2, 2]), want)
        self.assertEqual(stored(medium="GPU", lora_name="", cache_salt=None, extra_keys=[None, []]), want)
        self.assertEqual(stored(parent_hash=-1), stored(parent_hash=2**64 - 1))
        self.assertEqual(stored(parent_hash=-(2**63)), stored(parent_hash=2**63))

    def test_partial_blocks_are_left_out(self):
        tokens = [1, 2, 3, 4, 5]
        self.assertEqual(stored(token_ids=tokens, num_block_tokens=[2, 2, 1], block_hashes=[5, 6, 7]), stored())

    def test_wrong_arguments(self):
        for name, changes, error in [
            ("tokens as a text", {"token_ids": "1234"}, TypeError),
            ("tokens as bytes", {"token_ids": b"1234"}, TypeError),
            ("a number for tokens", {"token_ids": 7}, TypeError),
            ("a fraction", {"token_ids": [1, 2, 3, 4.0]}, TypeError),
            ("a negative token", {"token_ids": [1, 2, 3, -1]}, ValueError),
            ("a large token", {"token_ids": [1, 2, 3, 2**32]}, ValueError),
            ("a hash as a text", {"block_hashes": ["a", "b"]}, TypeError),
            ("hashes as bytes", {"block_hashes": b"12345678"}, TypeError),
            ("a large hash", {"block_hashes": [1, 2**64]}, ValueError),
            ("a small hash", {"block_hashes": [1, -(2**63) - 1]}, ValueError),
            ("an unknown field", {"salt": "x"}, ValueError),
            ("a number for a salt", {"cache_salt": 5}, TypeError),
            ("a text that is not UTF-8", {"lora_name": "\udc80"}, ValueError),
            ("a salt as an extra key", {"extra_keys": [["salt"], None]}, TypeError),
            ("extra keys as a text", {"extra_keys": "ab"}, TypeError),
            ("sizes that do not fit", {"num_block_tokens": [2]}, ValueError),
            ("sizes of other tokens", {"num_block_tokens": [2, 1]}, ValueError),
            ("a large block among small ones", {"num_block_tokens": [2, 3]}, ValueError),
            ("no full block", {"num_block_tokens": [0, 0]}, ValueError),
            ("a fraction as a size", {"num_block_tokens": 2.0}, TypeError),
            ("an unknown type", {"type": "moved"}, ValueError),
        ]:
            with self.subTest(name), self.assertRaisesRegex(error, "event 0: "):
                stored(**changes)
        with self.assertRaises(TypeError):
            encode_batch(["stored"], ts=0)
        with mock.patch("warmpath_publish._encode.MAX_PAYLOAD", 100):
            with self.assertRaisesRegex(ValueError, "several batches"):
                encode_batch([{"type": "removed", "block_hashes": [2**63] * 20}], ts=0)
        with self.assertRaises(ValueError):
            hash_blocks([1], 0)
        with self.assertRaises(ValueError):
            hash_blocks([1], 1, b"short")
