"""Signal handlers that interrupt a call of the publisher. Each case is a process of its own, so that none can hang."""

import itertools
import linecache
import random
import signal
import subprocess
import sys
import time
import unittest

from warmpath_publish import KVPublisher, PublisherClosed, PublisherError

ANY = "tcp://127.0.0.1:*"
PUBLISHER = KVPublisher.publish_batch.__code__.co_filename


def small_publisher():
    """Return a publisher whose next message makes it drop and forget others."""
    publisher = KVPublisher(ANY, ANY, buffer_steps=3, max_queue_size=2, buffer_bytes=100)
    for _ in range(4):
        publisher.publish_cleared()
    return publisher


class Interrupt(BaseException):
    pass


def interrupted(call, at, step="opcode"):
    """Run call, and send a signal at its at-th opcode or line in the publisher. Return whether it has so many."""
    left = at

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != PUBLISHER:
            return None
        frame.f_trace_opcodes = step == "opcode"
        # Python itself raises no handler's exception between the end of a with statement's block and its exit.
        if event != step or (step == "line" and "with " in linecache.getline(PUBLISHER, frame.f_lineno)):
            return trace
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    try:
        call()
    except (PublisherClosed, Interrupt):
        pass
    finally:
        sys.settrace(None)
    return left <= 0


def shutdown_at_each_instruction():
    publisher = None
    waited = []

    def handler(*_):
        publisher.shutdown(5.0)
        waited.append(not publisher._thread.is_alive())

    signal.signal(signal.SIGUSR1, handler)
    for name in ("publish_cleared", "stats", "shutdown"):
        for at in itertools.count(1):
            publisher = small_publisher()
            if not interrupted(getattr(publisher, name), at):
                publisher.shutdown()
                break
            publisher._thread.join(60)
            assert not publisher._thread.is_alive(), f"{name}: the thread goes on after a signal at instruction {at}"
    assert set(waited) == {False, True}, waited  # it waits, except where it cannot


def stats_and_publish_at_each_instruction():
    publisher = small_publisher()
    published = list(range(4))
    refused = 0

    def publish(*_):
        published.append(publisher.publish_cleared())

    def handler(*_):
        nonlocal refused
        publisher.stats()
        try:
            publish()
        except PublisherError as e:
            assert "set a flag" in str(e), e
            refused += 1

    signal.signal(signal.SIGUSR1, handler)
    for call in (publish, publisher.stats):
        for at in itertools.count(1):
            if not interrupted(call, at):
                break
    assert refused > 0
    assert sorted(published) == list(range(publisher.stats().published)), "a number was given twice, or never"
    publisher.shutdown()


def interrupt(*_):
    raise Interrupt


def sends_all(publisher):
    """Check that the thread sends what is queued."""
    until = time.monotonic() + 60
    while publisher.stats().queued:
        assert time.monotonic() < until, "the thread sends no more"
        time.sleep(0.0001)


def exceptions_at_each_line():
    signal.signal(signal.SIGUSR1, interrupt)
    for name in ("publish_cleared", "stats", "shutdown"):
        for at in itertools.count(1):
            publisher = small_publisher()
            sends_all(publisher)
            more = interrupted(getattr(publisher, name), at, "line")
            if name != "shutdown":
                publisher.publish_cleared()
                sends_all(publisher)
                assert 1 <= publisher.stats().kept <= 3, publisher.stats()
            publisher.shutdown()
            assert not publisher._thread.is_alive()
            if not more:
                break


def exceptions_at_any_time():
    publisher = small_publisher()
    signal.signal(signal.SIGALRM, interrupt)
    rng = random.Random(1)
    for _ in range(3000):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-4))
            while True:
                publisher.publish_cleared()
        except Interrupt:
            pass
    publisher.publish_cleared()
    sends_all(publisher)
    assert publisher.stats().kept <= 3, publisher.stats()
    publisher.shutdown()


@unittest.skipUnless(hasattr(signal, "setitimer"), "needs POSIX signals")
class Signals(unittest.TestCase):
    def passes(self, case):
        run = [sys.executable, "-X", "dev", __file__, case.__name__]
        # The bound is long, because the machine may be busy.
        process = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
        self.assertEqual((process.returncode, process.stdout), (0, ""))

    def test_shutdown_in_a_handler_does_not_hang(self):
        self.passes(shutdown_at_each_instruction)

    def test_other_calls_in_a_handler_do_not_hang(self):
        self.passes(stats_and_publish_at_each_instruction)

    def test_a_handler_may_raise(self):
        self.passes(exceptions_at_each_line)
        self.passes(exceptions_at_any_time)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
