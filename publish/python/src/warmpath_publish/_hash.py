"""A chain of block hashes, for engines that have no hashes of their own."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from ._encode import MAX_BLOCK_SIZE, _text, _tokens, _within


def hash_blocks(
    token_ids: Sequence[int],
    block_size: int,
    parent_hash: bytes | None = None,
    *,
    lora_name: str | None = None,
    cache_salt: str | None = None,
) -> list[bytes]:
    """Return the hashes of the full blocks of the tokens, 32 bytes each.

    The chain is vLLM's sha256_cbor with its default seed, and with an adapter's path of "" (vLLM 0.32,
    v1/core/kv_cache_utils.py): a hash is the SHA-256 of the canonical CBOR of the list of the parent's hash, the
    tokens, and the keys. The keys are null, or a list of ["lora", lora_name, ""] in each block of an adapter, and of
    ["cache_salt", cache_salt] in the first block of a prompt.

    parent_hash is the hash of the block before the tokens; None: they begin a prompt. The salt counts only then.
    """
    tokens = _tokens(token_ids)
    size = _within("block_size", block_size, 1, MAX_BLOCK_SIZE)
    lora, salt = _text("lora_name", lora_name), _text("cache_salt", cache_salt)
    if parent_hash is None:
        parent = hashlib.sha256(_cbor_text("vllm-none-hash")).digest()
    else:
        parent, salt = bytes(parent_hash), None
        if len(parent) != 32:
            raise ValueError(f"the parent's hash has {len(parent)} bytes, not 32")
    hashes = []
    for start in range(0, len(tokens) - size + 1, size):
        keys = []
        if lora:
            keys.append(b"\x83" + _cbor_text("lora") + _cbor_text(lora) + _cbor_text(""))
        if salt and start == 0:
            keys.append(b"\x82" + _cbor_text("cache_salt") + _cbor_text(salt))
        extra = _cbor_head(4, len(keys)) + b"".join(keys) if keys else b"\xf6"
        block = b"".join([_cbor_head(0, t) for t in tokens[start : start + size]])
        parent = hashlib.sha256(b"\x83\x58\x20" + parent + _cbor_head(4, size) + block + extra).digest()
        hashes.append(parent)
    return hashes


def _cbor_head(major: int, n: int) -> bytes:
    if n < 24:
        return bytes([major << 5 | n])
    if n < 1 << 8:
        return struct.pack(">BB", major << 5 | 24, n)
    if n < 1 << 16:
        return struct.pack(">BH", major << 5 | 25, n)
    return struct.pack(">BI", major << 5 | 26, n)


def _cbor_text(s: str) -> bytes:
    data = s.encode()
    return _cbor_head(3, len(data)) + data
