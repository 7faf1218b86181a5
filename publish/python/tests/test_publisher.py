"""A publisher on real sockets: numbers, replay, bounds, forks and the end."""

import os
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

import msgpack
import zmq

from warmpath_publish import KVPublisher, PublisherClosed, PublisherError, PublisherForked

ANY = "tcp://127.0.0.1:*"
END = 2**64 - 1


class Reader:
    """A subscriber as vLLM's examples have it."""

    def __init__(self, publisher, topic=""):
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.set_hwm(0)
        self.sub.subscribe(topic)
        self.sub.connect(publisher.endpoint)
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.set_hwm(0)
        if publisher.replay_endpoint:
            self.dealer.connect(publisher.replay_endpoint)
        for socket in (self.sub, self.dealer):
            socket.setsockopt(zmq.RCVTIMEO, 20_000)
            socket.setsockopt(zmq.LINGER, 0)

    def live(self):
        topic, number, payload = self.sub.recv_multipart()
        return topic, struct.unpack(">Q", number)[0], payload

    def subscribed(self, publisher):
        """Publish until a message arrives, and return its number."""
        while True:
            seq = publisher.publish_cleared()
            if self.sub.poll(20):
                got = self.live()[1]
                while got < seq:
                    got = self.live()[1]
                return got

    def replay(self, start=0, ask=True):
        if ask:
            self.dealer.send_multipart([b"", struct.pack(">Q", start)])
        numbers = []
        while True:
            empty, topic, number, payload = self.dealer.recv_multipart()
            numbers.append(struct.unpack(">Q", number)[0])
            if numbers[-1] == END:
                assert (empty, topic, payload) == (b"", b"", b"")
                return numbers[:-1]

    def close(self):
        self.context.destroy(linger=0)


class Publishing(unittest.TestCase):
    def publisher(self, *args, **kwargs):
        publisher = KVPublisher(*(args or (ANY, ANY)), **kwargs)
        self.addCleanup(publisher.shutdown, 0)
        return publisher

    def reader(self, publisher, topic=""):
        reader = Reader(publisher, topic)
        self.addCleanup(reader.close)
        return reader

    def test_messages(self):
        p = self.publisher(topic="kv@a", kv_block_size=2)
        self.assertEqual(p.publish_stored([1, 2, 3, 4], None, [10, 11], lora_name="l", cache_salt="s"), 0)
        r = self.reader(p, "kv@")
        self.assertEqual(r.replay(), [0])
        first = r.subscribed(p)
        p.publish_batch([{"type": "removed", "block_hashes": [10]}, {"type": "cleared"}])
        topic, seq, payload = r.live()
        self.assertEqual((topic, seq), (b"kv@a", first + 1))
        ts, events, rank = msgpack.unpackb(payload)
        self.assertAlmostEqual(ts, time.time(), delta=60)
        self.assertEqual(rank, 0)
        self.assertEqual(
            events, [{"type": "BlockRemoved", "block_hashes": [10], "medium": "GPU"}, {"type": "AllBlocksCleared"}]
        )
        self.assertEqual(r.replay(1), list(range(1, first + 2)))
        stats = p.stats()
        self.assertEqual((stats.published, stats.kept, stats.queued, stats.dropped), (first + 2, first + 2, 0, 0))
        self.assertEqual((stats.replays, stats.malformed), (2, 0))

    def test_nothing_of_a_wrong_batch_is_published(self):
        p = self.publisher()
        with self.assertRaisesRegex(ValueError, "event 1: "):
            p.publish_batch([{"type": "cleared"}, {"type": "removed", "block_hashes": []}])
        self.assertEqual(p.stats().published, 0)

    def test_long_replays_come_whole(self):
        """vLLM's ROUTER loses what is beyond its limit of 1000 messages."""
        p = self.publisher()
        for _ in range(9000):
            p.publish_removed([1])
        r = self.reader(p)
        self.assertEqual(r.replay(), list(range(9000)))
        r.dealer.send_multipart([b"", struct.pack(">Q", 8990)])  # two requests of one reader
        self.assertEqual(r.replay(8000), list(range(8990, 9000)))
        self.assertEqual(r.replay(ask=False), list(range(8000, 9000)))
        self.assertEqual(r.replay(20_000), [])

    def test_one_reader_does_not_take_the_room_of_others(self):
        """Of many requests of one reader that takes nothing, one is answered, and the last one waits."""
        p = self.publisher()
        for _ in range(9000):
            p.publish_stored([1] * 320, 16, list(range(20)))
        greedy = zmq.Context()
        self.addCleanup(greedy.destroy, linger=0)
        dealer = greedy.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, 1)
        dealer.setsockopt(zmq.RCVBUF, 4096)
        dealer.connect(p.replay_endpoint)
        for _ in range(100):
            dealer.send_multipart([b"", struct.pack(">Q", 0)])
        until = time.monotonic() + 20
        while p.stats().replays + p.stats().refused < 100 and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual(self.reader(p).replay(), list(range(9000)))
        stats = p.stats()
        self.assertEqual((stats.replays, stats.refused), (3, 98))

    def test_malformed_requests(self):
        p = self.publisher()
        r = self.reader(p)
        for request in ([b"x"], [b"", b"123456789"], [b"", b"", b""], [b"a", b"b"]):
            r.dealer.send_multipart(request)
        self.assertEqual(r.replay(), [])
        self.assertEqual(p.stats().malformed, 4)

    def test_readers_that_vanish(self):
        p = self.publisher()
        for _ in range(9000):
            p.publish_removed([1])
        for _ in range(3):
            gone = Reader(p)
            gone.dealer.setsockopt(zmq.RCVHWM, 1)
            gone.dealer.send_multipart([b"", bytes(8)])
            gone.dealer.recv_multipart()
            gone.close()
        self.assertEqual(len(self.reader(p).replay()), 9000)

    def test_bounds(self):
        p = self.publisher(buffer_steps=5)
        for _ in range(20):
            p.publish_cleared()
        r = self.reader(p)
        while p.stats().queued:
            time.sleep(0.001)
        self.assertEqual(r.replay(), [15, 16, 17, 18, 19])
        p = self.publisher(buffer_bytes=10_000)
        for _ in range(20):
            p.publish_removed(range(1000, 1300))  # some 950 bytes
        self.assertLess(p.stats().kept, 12)
        p.publish_removed(range(100_000))
        self.assertEqual(p.stats().kept, 1)  # the last message is always kept
        self.assertEqual(self.reader(p).replay(), [20])

    def test_a_full_queue_drops_and_counts(self):
        """A dropped message leaves a gap in the numbers, and a replay has it."""
        p = self.publisher(max_queue_size=10)
        r = self.reader(p)
        first = r.subscribed(p)
        with p._lock:  # the thread cannot send meanwhile
            cursor = p._cursor
            for _ in range(50):
                p._kept[p._next] = b"x"
                p._bytes += 1
                p._next += 1
                p._trim()
            p._wake()
        seq = r.subscribed(p)
        stats = p.stats()
        self.assertGreaterEqual(stats.dropped, 40)
        self.assertEqual((cursor, stats.kept, stats.queued), (first + 1, stats.published, 0))
        self.assertEqual(r.replay(), list(range(seq + 1)))

    def test_threads(self):
        p = self.publisher()
        r = self.reader(p)
        first = r.subscribed(p) + 1
        threads = [threading.Thread(target=lambda: [p.publish_cleared() for _ in range(500)]) for _ in range(4)]
        for t in threads:
            t.start()
        self.assertEqual([r.live()[1] for _ in range(2000)], list(range(first, first + 2000)))
        for t in threads:
            t.join()

    def test_connect(self):
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        sub = context.socket(zmq.SUB)
        sub.subscribe("")
        sub.setsockopt(zmq.RCVTIMEO, 20_000)
        port = sub.bind_to_random_port("tcp://127.0.0.1")
        p = self.publisher(f"tcp://127.0.0.1:{port}", bind=False)
        while not sub.poll(20):
            p.publish_cleared()
        self.assertEqual(len(sub.recv_multipart()), 3)
        self.assertIsNone(p.replay_endpoint)
        self.assertLess(p.stats().kept, 3)  # without a replay, only what waits is kept

    def test_ranks_and_wrong_arguments(self):
        base = 20_000 + os.getpid() % 10_000
        p = self.publisher(f"tcp://127.0.0.1:{base}", dp_rank=2)
        self.assertEqual(p.endpoint, f"tcp://127.0.0.1:{base + 2}")
        for args, kwargs, error in [
            ((p.endpoint,), {}, PublisherError),
            ((ANY, p.endpoint), {}, PublisherError),
            (("tcp://127.0.0.1",), {}, ValueError),
            (("udp://127.0.0.1:5",), {}, ValueError),
            (("ipc:///tmp/x",), {"dp_rank": 1}, ValueError),
            (("tcp://*:65535",), {"dp_rank": 1}, ValueError),
            ((ANY,), {"dp_rank": -1}, ValueError),
            ((ANY,), {"kv_block_size": 70_000}, ValueError),
            ((ANY, ANY), {"buffer_steps": 0}, ValueError),
            ((ANY,), {"hwm": 0}, ValueError),
            ((ANY,), {"topic": 5}, TypeError),
            ((5,), {}, TypeError),
        ]:
            with self.subTest(str((args, kwargs))), self.assertRaises(error):
                KVPublisher(*args, **kwargs)
        with self.assertRaisesRegex(PublisherError, r"write tcp://\*:PORT"):
            KVPublisher("tcp://192.0.2.1:5557")  # an address of another machine
        with self.assertRaisesRegex(TypeError, "a sequence of hashes, not bytes"):
            p.publish_removed(b"12345678")

    def test_the_end(self):
        with KVPublisher(ANY, ANY) as p:
            r = self.reader(p)
            seq = r.subscribed(p)
            for _ in range(3000):
                p.publish_cleared()
        for n in range(seq + 1, seq + 3001):  # shutdown sends what is queued
            self.assertEqual(r.live()[1], n)
        p.shutdown()
        with self.assertRaises(PublisherClosed):
            p.publish_cleared()
        self.assertEqual(p.stats().published, seq + 3001)
        self.publisher(p.endpoint, p.replay_endpoint)  # the ports are free
        self.assertFalse(p._thread.is_alive())

    def test_a_process_that_ends_sends_what_is_queued(self):
        script = (
            "from warmpath_publish import KVPublisher\n"
            "p = KVPublisher('tcp://127.0.0.1:*')\n"
            "print(p.endpoint, flush=True)\n"
            "while input() == 'one': p.publish_cleared()\n"
            "for _ in range(500): p.publish_cleared()\n"
        )
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        sub = context.socket(zmq.SUB)
        sub.setsockopt(zmq.RCVTIMEO, 20_000)
        sub.subscribe("")
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process:
            sub.connect(process.stdout.readline().strip())
            n = 0
            while not sub.poll(20):
                process.stdin.write("one\n")
                n += 1
            process.stdin.write("many\n")
            while sub.recv_multipart()[1] != struct.pack(">Q", n + 499):
                pass
            self.assertEqual(process.wait(30), 0)


@unittest.skipUnless(hasattr(os, "fork"), "needs fork")
class Forks(unittest.TestCase):
    def in_child(self, work):
        """Run work in a fork of this process, and return its exit status; -9 if it hangs."""
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                status = work()
            finally:
                os._exit(status)
        for _ in range(2000):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_a_fork_does_not_use_the_publisher(self):
        p = KVPublisher(ANY, ANY)
        self.addCleanup(p.shutdown, 0)
        r = Reader(p)
        self.addCleanup(r.close)
        seq = r.subscribed(p)

        def work():
            for call in (p.publish_cleared, p.stats, lambda: p.publish_removed([1])):
                try:
                    call()
                except PublisherForked as e:
                    assert str(os.getpid()) in str(e) and str(os.getppid()) in str(e)
                else:
                    return 1
            p.shutdown()  # does nothing
            own = KVPublisher(ANY, ANY)  # a publisher of its own works
            reader = Reader(own)
            reader.subscribed(own)
            reader.close()
            own.shutdown()
            return 0

        self.assertEqual(self.in_child(work), 0)
        self.assertEqual(p.publish_cleared(), seq + 1)  # the parent's publisher goes on
        self.assertEqual(r.live()[1], seq + 1)
        self.assertEqual(r.replay(), list(range(seq + 2)))

    def test_forks_while_threads_publish(self):
        p = KVPublisher(ANY, ANY)
        self.addCleanup(p.shutdown, 0)
        r = Reader(p)
        self.addCleanup(r.close)
        first = r.subscribed(p) + 1
        stop = threading.Event()

        def publish():
            while not stop.is_set():
                p.publish_stored(range(64), 16, [1, 2, 3, 4])

        threads = [threading.Thread(target=publish) for _ in range(2)]
        for t in threads:
            t.start()

        def work():
            try:
                p.publish_cleared()
            except PublisherForked:
                return 0
            return 1

        try:
            for _ in range(20):
                self.assertEqual(self.in_child(work), 0)
        finally:
            stop.set()
            for t in threads:
                t.join(20)
        self.assertFalse(any(t.is_alive() for t in threads))
        last = p.publish_cleared()
        got = [r.live()[1] for _ in range(first, last + 1)]
        self.assertEqual(got, list(range(first, last + 1)))


if __name__ == "__main__":
    unittest.main()
