package kvfeed

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// counter is a Handler that counts messages and their bytes.
type counter struct{ messages, bytes int }

func (c *counter) Message(_ uint64, payload []byte) { c.messages++; c.bytes += len(payload) }
func (c *counter) Restarted(string)                 {}
func (c *counter) Lost(uint64, uint64)              {}
func (c *counter) Behind(bool)                      {}
func (c *counter) Complete()                        {}
func (c *counter) Unnumbered()                      {}
func (c *counter) State(bool, error)                {}

// inOrder returns a function that gives a stream its next message.
func inOrder(h Handler, size int) (feed func()) {
	s := newSequence(quickStream.withDefaults(), "", h)
	s.connect()
	parts := [][]byte{[]byte("kv-events"), make([]byte, 8), make([]byte, size)}
	seq := uint64(0)
	return func() {
		binary.BigEndian.PutUint64(parts[1], seq)
		seq++
		s.receive(parts)
	}
}

func TestAMessageInOrderAllocatesNothing(t *testing.T) {
	c := &counter{}
	if n := testing.AllocsPerRun(1000, inOrder(c, 1000)); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
	if c.messages != 1001 {
		t.Errorf("%d messages handed over", c.messages)
	}
}

// BenchmarkStream measures sequence tracking and hashing.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1000, 20_000} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			feed := inOrder(&counter{}, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				feed()
			}
		})
	}
}

// BenchmarkReplay measures a subscriber that reads 10,000 messages of history over loopback.
func BenchmarkReplay(b *testing.B) {
	for _, size := range []int{1000, 20_000} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			e := startEngine(b, "a", withReplay())
			for range 10_000 {
				e.Publish(make([]byte, size))
			}
			for b.Loop() {
				d := newWaiter()
				_, stop := subscribeTo(b, e.source(), d)
				<-d.done
				stop()
			}
			b.ReportMetric(10_000*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// waiter is a counter that also reports when the history is whole.
type waiter struct {
	counter
	done chan struct{}
}

func newWaiter() *waiter { return &waiter{done: make(chan struct{})} }

func (w *waiter) Complete() { close(w.done) }

func subscribeTo(b *testing.B, src fleet.EventSource, h Handler) (*Subscriber, func()) {
	b.Helper()
	s := NewSubscriber(src, quickStream, h)
	return s, runUntilStopped(b, s.Run)
}
