"""From calls to the bytes of a message: the checks of events, and vLLM's map form of them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

#: A hash of a block: a number (taken modulo 2**64, so negative ones are allowed), or a byte string of 8 to 64 bytes.
Hash = int | bytes
#: A digest of prompt embeddings, of 1 to 64 bytes.
Digest = bytes
#: A key of a block besides its tokens: an item with the offset of its first token in the block, or a digest.
ExtraKey = tuple[str, int] | Digest

# These bounds are those of the readers: a larger value would make a reader skip the event or cut the connection.
MAX_BLOCK_SIZE = 65536
MAX_GROUP = 1 << 16
MAX_INT32 = (1 << 31) - 1
MAX_TEXT = 1024  # bytes
MAX_PAYLOAD = (64 << 20) - 1024

#: The media that routers know: GPU memory, host memory (2 names), disks (3) and shared or remote storage (3).
MEDIA = ("GPU", "CPU", "CPU_PINNED", "DISK", "FS", "STORAGE", "OBJ", "EXTERNAL", "SHARED_STORAGE")

_FULL = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
_STORED = frozenset(
    [
        "type",
        "token_ids",
        "num_block_tokens",
        "block_hashes",
        "parent_hash",
        "lora_name",
        "cache_salt",
        "lora_id",
        "extra_keys",
        "medium",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ]
)
_REMOVED = frozenset(["type", "block_hashes", "medium", "group_idx"])


def encode_batch(events: Iterable[Mapping[str, Any]], *, ts: float, dp_rank: int = 0, kv_block_size: int = 0) -> bytes:
    """Return the payload of a message with the events, as KVPublisher.publish_batch sends it.

    ts is the time of the batch in Unix seconds. A wrong event raises ValueError or TypeError.
    """
    form: list[type] = []  # the form of the hashes of the batch: int or bytes, once it is known
    wire = []
    for i, event in enumerate(events):
        try:
            wire.append(_event(event, kv_block_size, form))
        except (ValueError, TypeError) as e:
            raise type(e)(f"event {i}: {e}") from None
    if not wire:
        raise ValueError("a batch without events")
    payload: bytes = msgpack.packb([float(ts), wire, _within("dp_rank", dp_rank, 0, MAX_INT32)], use_bin_type=True)
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"the batch has {len(payload)} bytes, {MAX_PAYLOAD} are allowed: publish its events in several batches"
        )
    return payload


def _event(event: Mapping[str, Any], block_size: int, form: list[type]) -> dict[str, Any]:
    if not isinstance(event, Mapping):
        raise TypeError(f"an event is a mapping, not {type(event).__name__}")
    kind = event.get("type")
    if kind == "stored":
        _known(event, _STORED)
        return _stored(event, block_size, form)
    if kind == "removed":
        _known(event, _REMOVED)
        hashes = _hashes(event.get("block_hashes"), form)
        if not hashes:
            raise ValueError("a removed event without block_hashes")
        out = {"type": "BlockRemoved", "block_hashes": hashes, "medium": _medium(event)}
        _group(event, out)
        return out
    if kind == "cleared":
        _known(event, frozenset({"type"}))
        return {"type": "AllBlocksCleared"}
    raise ValueError(f"the type of an event is 'stored', 'removed' or 'cleared', not {kind!r}")


def _stored(event: Mapping[str, Any], block_size: int, form: list[type]) -> dict[str, Any]:
    tokens = _tokens(event.get("token_ids"))
    hashes = _hashes(event.get("block_hashes"), form)
    size, tokens, hashes = _full_blocks(event.get("num_block_tokens"), block_size, tokens, hashes)
    parent = event.get("parent_hash")
    if parent is not None:
        parent = _hashes([parent], form)[0]
    kind = _text("kv_cache_spec_kind", event.get("kv_cache_spec_kind"))
    aligned = bool(tokens) and len(tokens) == len(hashes) * size
    if not tokens and not hashes:
        raise ValueError("a stored event without token_ids and block_hashes")
    if tokens:
        if size == 0:
            raise ValueError("no block size: set the publisher's kv_block_size, or num_block_tokens")
        if kind in _FULL and not hashes:
            raise ValueError("a stored event without block_hashes")
        if kind in _FULL and not aligned:
            raise ValueError(
                f"{len(tokens)} token_ids for {len(hashes)} blocks of {size} tokens: only full blocks can be announced"
            )
    lora = _text("lora_name", event.get("lora_name"))
    salt = _text("cache_salt", event.get("cache_salt"))
    lora_id = event.get("lora_id")
    out: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None if lora_id is None else _within("lora_id", lora_id, 0, (1 << 63) - 1),
        "medium": _medium(event),
        "lora_name": lora,
    }
    extra = event.get("extra_keys")
    if extra is not None or aligned:
        out["extra_keys"] = _extra_keys(extra, hashes, tokens, lora, salt if aligned and parent is None else None)
    _group(event, out)
    if kind:
        out["kv_cache_spec_kind"] = kind
    window = event.get("kv_cache_spec_sliding_window")
    if window is not None and _within("kv_cache_spec_sliding_window", window, 0, MAX_INT32):
        out["kv_cache_spec_sliding_window"] = operator.index(window)
    return out


def _full_blocks(
    sizes: int | Sequence[int] | None, block_size: int, tokens: list[int], hashes: list[Hash]
) -> tuple[int, list[int], list[Hash]]:
    """Return the block size, and the tokens and hashes of the blocks before the first partial one."""
    if sizes is None:
        return _within("kv_block_size", block_size, 0, MAX_BLOCK_SIZE), tokens, hashes
    if hasattr(sizes, "__index__"):
        return _within("num_block_tokens", sizes, 0, MAX_BLOCK_SIZE) or block_size, tokens, hashes
    sizes = [_within("num_block_tokens", n, 0, MAX_BLOCK_SIZE) for n in sizes]
    if len(sizes) != len(hashes):
        raise ValueError(f"num_block_tokens has {len(sizes)} elements for {len(hashes)} blocks")
    size = block_size or max(sizes, default=0)
    full = next((i for i, n in enumerate(sizes) if n < size), len(sizes))
    if any(n > size for n in sizes):
        raise ValueError(f"num_block_tokens has a block of more than {size} tokens")
    if full == 0:
        raise ValueError("no full block to announce")
    if sum(sizes) != len(tokens):
        raise ValueError(f"{len(tokens)} token_ids for num_block_tokens of {sum(sizes)} tokens")
    return size, tokens[: full * size], hashes[:full]


def _extra_keys(
    extra: Any, hashes: list[Hash], tokens: list[int], lora: str | None, salt: str | None
) -> list[Any]:
    """Return the extra keys of each block: the adapter's name, items, the salt of the first block, and digests."""
    if extra is None:
        extra = [None] * len(hashes)
    elif isinstance(extra, (str, bytes, Mapping)):
        raise TypeError("extra_keys is a list with one element for each block")
    elif len(extra) != len(hashes):
        raise ValueError(f"extra_keys has {len(extra)} elements for {len(hashes)} blocks")
    elif not tokens:
        raise ValueError("extra_keys without token_ids")
    out: list[Any] = []
    for i, keys in enumerate(extra):
        items: list[Any] = [lora] if lora else []
        digests = []
        for key in keys or ():
            if isinstance(key, (bytes, bytearray, memoryview)):
                if not 1 <= len(key) <= 64:
                    raise ValueError(f"an extra key of {len(key)} bytes is not within 1..64")
                digests.append(bytes(key))
            elif isinstance(key, (tuple, list)) and len(key) == 2:
                if not _text("an extra key", key[0]):
                    raise ValueError("an extra key without an identifier")
                items.append([key[0], _within("the offset of an extra key", key[1], -MAX_INT32, MAX_INT32)])
            else:
                raise TypeError(
                    "an extra key is a pair (identifier, offset) or bytes; adapters and salts have arguments of their own"
                )
        if salt and i == 0:
            items.append(salt)
        out.append(items + digests or None)
    return out


def _known(event: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in event:
        if key not in known:
            raise ValueError(f"{event['type']} has no field {key!r}: known are {', '.join(sorted(known))}")


def _tokens(tokens: Any) -> list[int]:
    values = _list("token_ids", tokens)
    if not set(map(type, values)) <= {int}:
        values = [operator.index(t) for t in values]
    if values and not (0 <= min(values) and max(values) < 1 << 32):
        raise ValueError("a token id is not within 0..4294967295")
    return values


def _hashes(hashes: Any, form: list[type]) -> list[Hash]:
    values = _list("block_hashes", hashes)
    out: list[Hash] = []
    if set(map(type, values)) == {int} and 0 <= min(values) and max(values) < 1 << 64:
        out, values = values, []  # the usual case, without a loop in Python
    for h in values:
        if isinstance(h, (bytes, bytearray, memoryview)):
            if not 8 <= len(h) <= 64:
                raise ValueError(f"a hash of {len(h)} bytes is not within 8..64")
            out.append(bytes(h))
        else:
            n = operator.index(h)
            if not -(1 << 63) <= n < 1 << 64:
                raise ValueError("a hash is not within -2**63..2**64-1: use bytes for longer hashes")
            out.append(n & ((1 << 64) - 1))
    for t in {type(h) for h in out}:
        if not form:
            form.append(t)
        if form[0] is not t:
            raise ValueError("block_hashes are numbers and byte strings: use one form for all events of a batch")
    return out


def _list(name: str, values: Any) -> list[Any]:
    if values is None:
        return []
    if isinstance(values, list):
        return values
    if isinstance(values, (str, bytes, bytearray, Mapping)):
        what = "hashes" if name == "block_hashes" else "numbers"
        hint = ": write [hash] for a single one" if what == "hashes" else ""
        raise TypeError(f"{name} is a sequence of {what}, not {type(values).__name__}{hint}")
    tolist = getattr(values, "tolist", None)  # arrays of numpy, torch and array
    values = tolist() if tolist else list(values)
    if not isinstance(values, list):
        raise TypeError(f"{name} is a sequence, not a single value")
    return values


def _within(name: str, value: Any, low: int, high: int) -> int:
    n = operator.index(value)
    if not low <= n <= high:
        raise ValueError(f"{name} {n} is not within {low}..{high}")
    return n


def _text(name: str, value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {type(value).__name__}")
    try:
        n = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not UTF-8") from None
    if n > MAX_TEXT:
        raise ValueError(f"{name} has {n} bytes, {MAX_TEXT} are allowed")
    return value


def _medium(event: Mapping[str, Any]) -> str:
    medium = _text("medium", event.get("medium")) or "GPU"
    if medium not in MEDIA:
        raise ValueError(
            f"medium {medium[:60]!r} is not known to routers: use one of {', '.join(MEDIA)}, in capital letters"
        )
    return medium


def _group(event: Mapping[str, Any], out: dict[str, Any]) -> None:
    if event.get("group_idx") is not None:
        out["group_idx"] = _within("group_idx", event["group_idx"], 0, MAX_GROUP)
