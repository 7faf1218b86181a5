package kvfeed

import (
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// bound is the handler of one stream of an engine that connected to the router. The topic names the worker, the first
// batch the rank. Until both are known, messages are dropped and count as missing history.
type bound struct {
	feed   *Feed
	origin Origin

	mu         sync.Mutex // guards what follows; the listener calls one method at a time, the feed may end the stream
	f          *follower
	first      bool // a message was seen
	missing    bool // messages were dropped
	unnumbered bool // messages carry no sequence numbers
}

// accept accepts a stream of the listener.
func (feed *Feed) accept(o Origin) (Handler, string) {
	if o.Address == "" {
		feed.log.Warn("KV events refused: the topic must be kv@<host:port of the worker>@<model>", "topic", o.Topic, "peer", o.Peer)
		return nil, ""
	}
	return &bound{feed: feed, origin: o}, ""
}

// Message implements Handler.
func (b *bound) Message(seq uint64, payload []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.f != nil && b.f.closed() {
		b.f, b.missing = nil, true // the fleet changed: the stream may belong to another holder now
	}
	if b.f == nil && !b.adopt(payload) {
		b.missing = true
		return
	}
	whole := seq == 0 && !b.missing
	if !b.first && !whole {
		b.f.Lost(0, seq)
	}
	if !b.first && b.unnumbered {
		b.f.Unnumbered()
	}
	b.first = true
	b.f.Message(seq, payload)
	if whole {
		b.f.Complete()
	}
}

// take makes f the holder's stream, unless it already has a working one. A stream whose endpoint was never reached does
// not count: older engines do not report that they connect to the router, so that their default port was tried.
func (feed *Feed) take(f *follower) bool {
	feed.mu.Lock()
	old := feed.streams[f.holder]
	feed.mu.Unlock()
	if old != nil {
		old.mu.Lock()
		up := old.everUp
		old.mu.Unlock()
		if old.bound || up {
			return false
		}
		feed.end(old, "the engine dialled us")
	}
	feed.mu.Lock()
	defer feed.mu.Unlock()
	if feed.streams[f.holder] != nil {
		return false
	}
	feed.streams[f.holder] = f
	return true
}

// closed reports whether all goroutines of the stream have ended.
func (f *follower) closed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// close ends a bound follower. The handler's lock is held.
func (f *follower) close() {
	if !f.closed() {
		close(f.done)
	}
}

// adopt finds the holder of this stream and makes it the holder's. b.mu is held.
func (b *bound) adopt(payload []byte) bool {
	feed := b.feed
	snap := feed.fleet.Snapshot()
	w := workerAt(snap, b.origin.Address)
	if w == nil {
		return false
	}
	var d kvevent.Decoder
	var batch kvevent.Batch
	if err := d.Decode(payload, &batch); err != nil {
		return false
	}
	h, ok := w.Rank(batch.Rank)
	if single := w.Facts.Ranks == 1; !batch.HasRank || single {
		h, ok = w.Holders[0], single
	}
	if !ok || feed.router.Generation(h) == 0 {
		return false
	}
	s := feed.newStream(w, h, fleet.EventSource{Endpoint: "bound " + b.origin.Peer, Topic: b.origin.Topic})
	s.wire = func() StreamStats { return StreamStats{} }
	s.model = b.origin.Model
	if _, known := snap.Pool(s.model); !known {
		s.model = ""
	}
	f := &follower{stream: s, done: make(chan struct{}), bound: true}
	f.stop = func() {
		s.closing.Store(true)
		// This waits until the present message is applied: nothing may be stored after the holder is forgotten.
		b.mu.Lock()
		defer b.mu.Unlock()
		f.close()
	}
	if !feed.take(f) {
		return false
	}
	b.f, b.first = f, false
	s.State(true, nil)
	s.log.Info("following KV events of an engine that dialled us", "topic", b.origin.Topic, "peer", b.origin.Peer)
	return true
}

// workerAt returns the worker with that host and port, or the only worker at that host.
func workerAt(snap *fleet.Snapshot, address string) *fleet.Worker {
	var byHost *fleet.Worker
	several := false
	for _, w := range snap.Workers() {
		u, err := url.Parse(w.URL)
		if err != nil {
			continue
		}
		if u.Host == address {
			return w
		}
		if u.Hostname() == address {
			several = byHost != nil
			byHost = w
		}
	}
	if several {
		return nil
	}
	return byHost
}

// Restarted implements Handler.
func (b *bound) Restarted(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing = false
	if b.f != nil {
		b.f.Restarted(why)
	}
}

// Lost implements Handler.
func (b *bound) Lost(from, to uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing = true
	if b.f != nil {
		b.f.Lost(from, to)
	}
}

// Unnumbered implements Unnumbered. It passes the call on with the first message, when the holder is known.
func (b *bound) Unnumbered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unnumbered, b.first = true, false
}

// Complete implements Handler.
func (b *bound) Complete() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.f != nil && !b.missing {
		b.f.Complete()
	}
}

// State implements Handler. The stream ends with its connection: a new one begins without history.
func (b *bound) State(connected bool, err error) {
	b.mu.Lock()
	f, feed := b.f, b.feed
	if f == nil || connected {
		b.mu.Unlock()
		return
	}
	b.f = nil
	ended := f.closed()
	f.close()
	b.mu.Unlock()
	if ended {
		return // the feed gave the holder to another stream
	}
	feed.end(f, fmt.Sprintf("the engine's connection ended: %v", err))
	feed.fleet.SetTrust(f.holder, fleet.TrustApproximate, "no events since "+time.Now().UTC().Format(time.TimeOnly)+": learned from requests")
}
