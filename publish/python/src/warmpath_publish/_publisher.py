"""The publisher: numbers, the replay buffer, and the one thread that owns the sockets."""

from __future__ import annotations

import atexit
import errno
import functools
import os
import re
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import zmq

from ._encode import MAX_BLOCK_SIZE, ExtraKey, Hash, _text, _within, encode_batch

_END = b"\xff" * 8  # number of a replay's end marker
_ROUND = 256  # messages that are sent before other work has its turn
_MAX_REPLAYS = 64  # replays that are answered at the same time; further requests are refused
_REPLAY_PATIENCE = 30.0  # seconds without progress after which a replay is given up


class PublisherError(RuntimeError):
    """A publisher cannot do what it was asked for."""


class PublisherClosed(PublisherError):
    """The publisher was shut down."""


class PublisherForked(PublisherError):
    """The publisher was made in another process, of which this one is a fork."""


@dataclass(frozen=True)
class Stats:
    """Counters of a publisher."""

    published: int  #: number of published messages, which is also the next sequence number
    dropped: int  #: messages that were not sent because the queue was full; a replay may have them
    queued: int  #: messages that wait to be sent
    kept: int  #: messages that a replay can have
    replays: int  #: replay requests that were answered, or are being answered
    replayed: int  #: messages in the answers to replay requests
    malformed: int  #: replay requests that were not understood
    #: replay requests beyond those that can be answered at the same time, those that a newer one of the same reader
    #: replaced before their answer began, and replays given up
    refused: int


@dataclass
class _Replay:
    identity: bytes
    next: int
    end: int  # the first message that is not wanted
    moved: float  # when it last made progress


class KVPublisher:
    """Publishes the KV cache events of one engine, or of one data-parallel rank of it.

    Messages are numbered from 0. The last of them are kept for replay. Publishing never waits for the network: one
    thread of the publisher sends. Its queue is bounded. Messages beyond the bound are not sent, which subscribers see
    by the numbers, and Stats.dropped counts them; a replay has them if it is large enough. For a subscriber that reads
    too slowly, ZeroMQ drops messages beyond hwm, which this subscriber sees, and can ask for, in the same way.

    All methods may be called from any thread. After a fork, a publisher belongs to the parent: in the child its
    methods raise PublisherForked, except for shutdown, which then does nothing.

    A signal handler, and a finalizer such as __del__, may call shutdown and stats. It must not publish: set a flag
    there, and publish later. If the handler interrupted a call of the same publisher, publish_* raise PublisherError.
    If an exception of a handler, such as KeyboardInterrupt, ends a call, the call's message may be published or not.

    Arguments:
      endpoint: PUB endpoint, such as "tcp://*:5557". Port * is any free port: read the endpoint attribute.
      replay_endpoint: ROUTER endpoint to bind, such as "tcp://*:5657"; None: no replay. A router needs it to know a
        cache exactly.
      topic: first frame of each message. Subscribers choose messages by the beginning of their topic.
      kv_block_size: tokens in a block, for events that do not say it.
      dp_rank: data-parallel rank, which the batches carry. As in vLLM it is added to the ports of both endpoints.
      bind: False makes the publisher connect to endpoint, for a router that binds.
      buffer_steps, buffer_bytes: messages that are kept for replay, and bytes of all messages that are kept or wait for
        the thread. The last message is always kept.
      max_queue_size: messages that wait for the thread.
      hwm: messages that wait in ZeroMQ for one subscriber. Their memory is not part of buffer_bytes: each subscriber
        that does not read adds up to hwm messages.
    """

    def __init__(
        self,
        endpoint: str = "tcp://*:5557",
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        kv_block_size: int = 0,
        dp_rank: int = 0,
        bind: bool = True,
        buffer_steps: int = 10_000,
        buffer_bytes: int = 256 << 20,
        max_queue_size: int = 100_000,
        hwm: int = 100_000,
    ) -> None:
        self._pid = os.getpid()
        self._closed = True  # until everything is open
        self._rank = _within("dp_rank", dp_rank, 0, 1 << 16)
        self._block_size = _within("kv_block_size", kv_block_size, 0, MAX_BLOCK_SIZE)
        self._topic = (_text("topic", topic) or "").encode()
        self._steps = _within("buffer_steps", buffer_steps, 1, 1 << 31) if replay_endpoint is not None else 0
        self._max_bytes = _within("buffer_bytes", buffer_bytes, 1, 1 << 62)
        self._max_queue = _within("max_queue_size", max_queue_size, 1, 1 << 31)
        _within("hwm", hwm, 1, (1 << 31) - 1)
        endpoint = _rank_endpoint(endpoint, self._rank)
        if replay_endpoint is not None:
            replay_endpoint = _rank_endpoint(replay_endpoint, self._rank)

        # Guards the fields down to _awake. A signal handler can interrupt a call that holds the lock. A call in the
        # handler would wait forever for a plain Lock. The handler can also end the interrupted call by an exception, so
        # the thread can use the fields after each single assignment. (_bytes may then be wrong by one message.)
        self._lock = threading.RLock()
        self._kept: dict[int, bytes] = {}  # payloads of the messages from _first to _next-1
        self._first = self._next = 0
        self._cursor = 0  # the next message to send
        self._bytes = 0
        self._counts = dict.fromkeys(("dropped", "replays", "replayed", "malformed", "refused"), 0)
        self._closing: float | None = None  # when the thread must end, in the time of time.monotonic
        self._awake = False  # the thread was told of messages, and has not looked yet

        self._replays: deque[_Replay] = deque()  # used only by the thread
        self._context = zmq.Context()
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None
        try:
            self._pub = self._open(zmq.PUB, endpoint, bind, hwm)
            if replay_endpoint is not None:
                self._router = self._open(zmq.ROUTER, replay_endpoint, True, 1000)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        #: The PUB endpoint, with its real port.
        self.endpoint: str = _last_endpoint(self._pub, endpoint, bind)
        #: The ROUTER endpoint, with its real port; None: no replay.
        self.replay_endpoint: str | None = (
            _last_endpoint(self._router, replay_endpoint, True) if self._router and replay_endpoint else None
        )
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kv-publisher", daemon=True)
        self._thread.start()
        self._at_exit = functools.partial(_shutdown_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    def _open(self, kind: int, endpoint: str, bind: bool, hwm: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, 64 << 10)  # peers send only subscriptions and requests
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        if endpoint.startswith("tcp://") and endpoint.count(":") > 2:
            socket.setsockopt(zmq.IPV6, 1)
        if kind == zmq.ROUTER:
            # Mandatory: sending to a reader that is slow or gone is an error, and loses no message silently.
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            if bind:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as e:
            what = "events" if kind == zmq.PUB else "replay"
            hint = ""
            if bind and e.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
                hint = "; the address must be one of this machine: write tcp://*:PORT"
            raise PublisherError(f"{what}: {'bind' if bind else 'connect to'} {endpoint}: {e.strerror}{hint}") from e
        return socket

    def publish_stored(
        self,
        token_ids: Sequence[int],
        num_block_tokens: int | Sequence[int] | None,
        block_hashes: Sequence[Hash],
        parent_hash: Hash | None = None,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        lora_id: int | None = None,
        extra_keys: Sequence[Sequence[ExtraKey] | None] | None = None,
        medium: str | None = None,
        group_idx: int | None = None,
        kv_cache_spec_kind: str | None = None,
        kv_cache_spec_sliding_window: int | None = None,
    ) -> int:
        """Publish that blocks are cached, and return the number of the message.

        token_ids has the tokens of the blocks, without those of earlier blocks. An empty list makes a placeholder:
        blocks that an earlier event described are now also on medium. num_block_tokens is the block size, or the size
        of each block, of which those from the first partial one on are left out, or None for kv_block_size.
        block_hashes has a hash for each block; numbers and byte strings do not mix. parent_hash is the hash of the
        block before; None: the tokens begin a prompt.

        cache_salt is part of a prompt's first block, so the event of a later block does not need it. extra_keys has,
        for each block, None or a list of items (identifier, offset of its first token from the block's) and digests of
        prompt embeddings. medium is where the blocks are: "GPU" (the default), "CPU", "STORAGE" or another name that
        routers know (see the README). group_idx and the kind are those of the cache group of a model with several; in
        groups without full attention the number of tokens need not fit the hashes.

        Wrong arguments raise ValueError or TypeError, and then nothing is published.
        """
        return self.publish_batch(
            [
                {
                    "type": "stored",
                    "token_ids": token_ids,
                    "num_block_tokens": num_block_tokens,
                    "block_hashes": block_hashes,
                    "parent_hash": parent_hash,
                    "lora_name": lora_name,
                    "cache_salt": cache_salt,
                    "lora_id": lora_id,
                    "extra_keys": extra_keys,
                    "medium": medium,
                    "group_idx": group_idx,
                    "kv_cache_spec_kind": kv_cache_spec_kind,
                    "kv_cache_spec_sliding_window": kv_cache_spec_sliding_window,
                }
            ]
        )

    def publish_removed(
        self, block_hashes: Sequence[Hash], *, medium: str | None = None, group_idx: int | None = None
    ) -> int:
        """Publish that one copy of each block is gone, and return the number of the message."""
        return self.publish_batch(
            [{"type": "removed", "block_hashes": block_hashes, "medium": medium, "group_idx": group_idx}]
        )

    def publish_cleared(self) -> int:
        """Publish that every block on the GPU is gone, and return the number of the message."""
        return self.publish_batch([{"type": "cleared"}])

    def publish_batch(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Publish events in one message, and return its number.

        Each event is a mapping with its type, "stored", "removed" or "cleared", and the arguments of the method of
        this name. Readers apply the events in their order. If one of them is wrong, nothing is published.
        """
        self._check()
        payload = encode_batch(events, ts=time.time(), dp_rank=self._rank, kv_block_size=self._block_size)
        with self._lock:
            if self._closed or self._closing is not None:
                raise PublisherClosed("the publisher was shut down")
            seq = self._next
            self._kept[seq] = payload
            self._bytes += len(payload)
            self._next = seq + 1  # last: the thread takes all messages before _next from _kept
            self._trim()
            self._wake()
        return seq

    def stats(self) -> Stats:
        """Return the counters."""
        if os.getpid() != self._pid:
            self._check()
        with self._lock:
            return Stats(
                published=self._next, queued=self._next - self._cursor, kept=self._next - self._first, **self._counts
            )

    def shutdown(self, timeout: float = 1.0) -> None:
        """Send what is queued, for at most timeout seconds, and close the endpoints.

        It may be called more than once. In a fork of the process that made the publisher it does nothing. If a signal
        handler interrupted a call of this publisher, shutdown in this handler may return before the end, because the
        interrupted call may hold the lock that the thread needs. The thread then ends after the handler, and the process
        ends after the thread.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closing is None:
                self._closing = time.monotonic() + max(timeout, 0.0)
            if not self._closed:
                self._write_wake()
        if threading.current_thread() is self._thread or self._interrupted():
            return
        self._thread.join()
        atexit.unregister(self._at_exit)

    def __enter__(self) -> KVPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _check(self) -> None:
        # Before the lock: in a fork, another thread of the parent may have held it.
        if os.getpid() != self._pid:
            raise PublisherForked(
                f"this publisher was made in process {self._pid}, and this is process {os.getpid()}, a fork of it:"
                " make a publisher in the process that publishes, with endpoints of its own"
            )
        if self._closed:
            raise PublisherClosed("the publisher was shut down")
        if self._interrupted():
            raise PublisherError(
                "a signal handler or a finalizer that interrupted a call of this publisher cannot publish:"
                " set a flag there, and publish later"
            )

    def _interrupted(self) -> bool:
        """Return whether a handler interrupted a call of this thread that holds the lock. The caller must not hold it."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # what threading.Condition calls

    def _wake(self) -> None:
        """Tell the thread to look. The lock is held."""
        if not self._awake:
            self._write_wake()
            self._awake = True  # last: if an exception ends the call before it, the next call tells the thread

    def _write_wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:  # the thread has enough to read
            pass

    def _trim(self) -> None:
        """Keep the bounds of the queue and of the buffer. The lock is held."""
        unsent = self._next - self._cursor
        if unsent > self._max_queue:
            self._cursor += unsent - self._max_queue
            self._counts["dropped"] += unsent - self._max_queue
        while self._next - self._first > 1 and self._bytes > self._max_bytes:
            if self._first == self._cursor:
                self._cursor += 1
                self._counts["dropped"] += 1
            self._forget_first()
        while self._next - self._first > self._steps and self._first < self._cursor:
            self._forget_first()

    def _forget_first(self) -> None:
        self._first += 1  # first: the thread takes all messages from _first on from _kept
        self._bytes -= len(self._kept.pop(self._first - 1))

    def _run(self) -> None:
        """The thread: send messages, answer replays, and close everything at the end."""
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        try:
            wait: float | None = None  # seconds
            while True:
                poller.poll(None if wait is None else int(wait * 1000))
                more, closing = self._send()
                wait = 0.0 if more else None
                if closing is not None and (not more or time.monotonic() >= closing):
                    return
                if self._router is not None:
                    self._receive_requests(self._router)
                    waiting = self._answer(self._router)
                    if wait is None:
                        wait = waiting
        finally:
            self._close()

    def _send(self) -> tuple[bool, float | None]:
        """Send some queued messages. Return whether there are more, and when the thread must end."""
        assert self._pub is not None
        try:
            while len(os.read(self._wake_read, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
        with self._lock:
            self._awake = False
            seq = self._cursor
            end = self._cursor = min(self._next, seq + _ROUND)
            payloads = [self._kept[n] for n in range(seq, end)]
            self._trim()
            more, closing = self._cursor < self._next, self._closing
        for n, payload in enumerate(payloads, seq):
            try:
                self._pub.send_multipart((self._topic, struct.pack(">Q", n), payload), zmq.DONTWAIT, copy=False)
            except zmq.ZMQError:  # a PUB socket drops rather than fails; the numbers show a loss in any case
                with self._lock:
                    self._counts["dropped"] += 1
        return more, closing

    def _receive_requests(self, router: zmq.Socket[bytes]) -> None:
        for _ in range(_MAX_REPLAYS):
            try:
                identity, *request = router.recv_multipart(zmq.DONTWAIT)
            except zmq.ZMQError:
                return
            good = len(request) == 2 and not request[0] and len(request[1]) <= 8
            with self._lock:
                if not good:
                    self._counts["malformed"] += 1
                    continue
                replay = _Replay(identity, int.from_bytes(request[1], "big"), self._next, time.monotonic())
                # One replay of a reader is answered, and one waits: no reader takes the room of all others.
                own = [i for i, other in enumerate(self._replays) if other.identity == identity]
                if len(own) > 1:
                    self._replays[own[1]] = replay
                    self._counts["refused"] += 1
                    continue
                if len(self._replays) >= _MAX_REPLAYS:
                    self._counts["refused"] += 1
                    continue
                self._counts["replays"] += 1
            self._replays.append(replay)

    def _answer(self, router: zmq.Socket[bytes]) -> float | None:
        """Go on with the replays. Return how many seconds later to call again; None: there are none."""
        wait: float | None = None
        served = set()
        for _ in range(len(self._replays)):
            replay = self._replays.popleft()
            if replay.identity in served:  # the answers to one reader come one after the other
                self._replays.append(replay)
                continue
            served.add(replay.identity)
            before = replay.next
            try:
                done = self._answer_some(router, replay)
            except zmq.Again:  # the reader is slow
                done = False
            except zmq.ZMQError:  # the reader is gone
                continue
            now = time.monotonic()
            if done:
                wait = 0.0
                continue
            if replay.next != before:
                replay.moved, wait = now, 0.0
            elif now - replay.moved > _REPLAY_PATIENCE:
                with self._lock:
                    self._counts["refused"] += 1
                continue
            self._replays.append(replay)
            wait = 0.01 if wait is None else wait
        return wait if self._replays else None

    def _answer_some(self, router: zmq.Socket[bytes], replay: _Replay) -> bool:
        """Send some messages of a replay. Return whether it has ended."""
        with self._lock:
            replay.next = max(replay.next, self._first)
            last = min(replay.end, replay.next + _ROUND)
            payloads = [self._kept[n] for n in range(replay.next, last)]
        sent = 0
        try:
            for payload in payloads:
                router.send_multipart(
                    (replay.identity, b"", self._topic, struct.pack(">Q", replay.next), payload), zmq.DONTWAIT, copy=False
                )
                replay.next += 1
                sent += 1
        finally:
            with self._lock:
                self._counts["replayed"] += sent
        if replay.next < replay.end:
            return False
        router.send_multipart((replay.identity, b"", b"", _END, b""), zmq.DONTWAIT)
        return True

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            left = 0.0 if self._closing is None else self._closing - time.monotonic()
            os.close(self._wake_read)
            os.close(self._wake_write)
        # What ZeroMQ still has for subscribers may use the rest of the time.
        self._context.destroy(linger=max(int(left * 1000), 0))


def _shutdown_at_exit(ref: weakref.ref[KVPublisher]) -> None:
    publisher = ref()
    if publisher is not None:
        publisher.shutdown()


def _last_endpoint(socket: zmq.Socket[bytes], endpoint: str, bind: bool) -> str:
    """Return the endpoint with its real port, and with its host as it was given."""
    if not bind or not endpoint.startswith("tcp://"):
        return endpoint
    port = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode().rpartition(":")[2]  # type: ignore[union-attr]
    return f"{endpoint.rpartition(':')[0]}:{port}"


def _rank_endpoint(endpoint: str, rank: int) -> str:
    """Check an endpoint, and add the rank to its port, as vLLM does. Any free port stays any free port."""
    if not isinstance(endpoint, str):
        raise TypeError(f"an endpoint is a text, not {type(endpoint).__name__}")
    if endpoint.startswith("ipc://") and len(endpoint) > len("ipc://"):
        if rank:
            raise ValueError(f"{endpoint!r} has no port to add rank {rank} to: give each rank a tcp endpoint")
        return endpoint
    match = re.fullmatch(r"tcp://(.+):(\d{1,5}|\*)", endpoint)
    if not match:
        raise ValueError(f"{endpoint!r} is no endpoint: write tcp://HOST:PORT or ipc://PATH")
    host, port = match.groups()
    if port == "*" or int(port) == 0:
        return f"tcp://{host}:*"
    if int(port) + rank > 65535:
        raise ValueError(f"{endpoint!r} leaves no port for rank {rank}")
    return f"tcp://{host}:{int(port) + rank}"
