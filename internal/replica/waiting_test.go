package replica

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// speaker is a peer that tells a Sync of requests. The test calls it with the time of its own clock.
type speaker struct {
	s      *Sync
	id     uint64
	number uint64
	open   []uint64
	last   uint64 // id of a request
}

// tell sends a packet with one record.
func (p *speaker) tell(now time.Time, kind byte, fill func([]byte) []byte) {
	p.send(now, appendRecord(nil, kind, fill))
}

func (p *speaker) send(now time.Time, records []byte) {
	p.number++
	h := header{from: p.id, started: 1, number: p.number}
	p.s.take(append(h.begin(nil), records...), now)
}

// begin tells of a request with this many keys.
func (p *speaker) begin(now time.Time, kind byte, url string, keys int) {
	p.last++
	q := warmpath.Placement{ID: p.last, URL: url, Model: "llama", Base: "llama", PromptTokens: 16 * keys, BlockSize: 16,
		Keys: make([]block.Key, keys), Session: policy.Session{Key: fmt.Sprint(p.id, p.last)}}
	p.tell(now, kind, func(to []byte) []byte {
		if kind == recordRecent {
			to = appendAge(to, time.Second)
		} else {
			p.open = append(p.open, p.last)
		}
		to, _ = appendPlacement(to, &q, wholePrompt)
		return to
	})
}

// end tells of the end of a request.
func (p *speaker) end(now time.Time, i int) {
	id := p.open[i]
	p.open = append(p.open[:i], p.open[i+1:]...)
	e := ending{id: id}
	p.send(now, e.append(nil))
}

// waits checks the bytes of what waits, and returns their sum.
func waits(t *testing.T, s *Sync) (bytes int) {
	t.Helper()
	for _, p := range s.peers {
		for _, q := range []*waitingAdds{&p.refused, &p.ended} {
			sum := 0
			for _, w := range q.all() {
				sum += w.bytes()
			}
			if q.bytes != sum || q.order.Len() != len(q.byID) {
				t.Fatalf("%d bytes are counted, and %d wait; %d requests in the list, and %d in the map", q.bytes, sum, q.order.Len(), len(q.byID))
			}
			bytes += sum
		}
		if p.waiting() > s.receiver.budget.peer {
			t.Fatalf("%d bytes wait for one peer", p.waiting())
		}
		for _, w := range p.refused.all() {
			if _, underWay := p.underWay[w.id]; !underWay {
				t.Fatal("a request waits, and is not under way")
			}
		}
	}
	if bytes > s.receiver.budget.all {
		t.Fatalf("%d bytes wait", bytes)
	}
	return bytes
}

// KeysDropped of a peer is counted once.
func TestKeysThatWereDroppedAreCounted(t *testing.T) {
	if testenv.Race() {
		t.Skip("it takes long with the race detector, and has one goroutine")
	}
	s, workers := listener(t, defaultWaiting)
	workers.Put("http://w0", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
	now := time.Unix(1000, 0)
	p := &speaker{s: s, id: 1}
	for range 200 { // 2^21 keys fit
		p.begin(now, recordAdd, "http://w0", warmpath.MaxPlacementKeys)
	}
	s.look(now)
	s.look(now)
	p.tell(now, recordGoodbye, func(to []byte) []byte { return to })
	if n := s.Status().Counts.Dropped[string(dropMemory)]; n != 200-1<<21/warmpath.MaxPlacementKeys {
		t.Errorf("%d requests are counted", n)
	}
}

// listener returns a Sync that is not run, and its fleet.
func listener(t *testing.T, budget waitingBudget) (*Sync, *fleet.Fleet) {
	t.Helper()
	m := &member{fleet: fleet.New(fleet.Config{})}
	router, err := warmpath.New(warmpath.Options{Fleet: m.fleet})
	if err != nil {
		t.Fatal(err)
	}
	s := New(DefaultConfig(), Parts{NewPeer: router.NewPeer, Fleet: m.fleet, Log: discard})
	s.link = &busLink{bus: newBus(1), s: s}
	s.receiver.budget = budget
	return s, m.fleet
}

func TestWhatWaitsForWorkersIsBoundedByBytes(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		s, workers := listener(t, waitingBudget{peer: 64 << 10, all: 150 << 10})
		now := time.Unix(1000, 0)
		speakers := make([]*speaker, 4)
		for i := range speakers {
			speakers[i] = &speaker{s: s, id: uint64(i + 1)}
		}
		most, worker := 0, func() string { return fmt.Sprint("http://w", random.IntN(6)) }
		for range 2000 {
			p := speakers[random.IntN(len(speakers))]
			switch n := random.IntN(100); {
			case n < 50:
				p.begin(now, recordAdd, worker(), random.IntN(2000))
			case n < 70:
				if random.IntN(4) == 0 && p.last > 0 {
					p.last-- // it is told again
				}
				p.begin(now, recordRecent, worker(), random.IntN(2000))
			case n < 90 && len(p.open) > 0:
				p.end(now, random.IntN(len(p.open)))
			case n == 90:
				p.tell(now, recordGoodbye, func(to []byte) []byte { return to })
				p.id, p.number, p.open = p.id+10, 0, nil
			case n == 91:
				url := worker()
				if id, known := workers.Find(url); known && random.IntN(2) == 0 {
					workers.Remove(id)
				} else {
					workers.Put(url, fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
				}
			case n == 92:
				workers.Expect([]string{worker()}, "not probed yet")
			default:
				now = now.Add(time.Duration(random.IntN(500)) * time.Millisecond)
				s.look(now)
			}
			most = max(most, waits(t, s))
		}
		if most < s.receiver.budget.peer {
			t.Errorf("%d bytes waited at most, so the test shows little", most)
		}
		for _, p := range speakers {
			p.tell(now, recordHeartbeat, func(to []byte) []byte { return (&heartbeat{}).append(to) })
			for len(p.open) > 0 {
				p.end(now, 0)
			}
		}
		for range 10 { // more than lateRecent
			now = now.Add(lateRecent / 8)
			for _, p := range s.peers {
				p.heard = now // otherwise it counts as dead
			}
			s.look(now)
		}
		if n := waits(t, s); n != 0 {
			t.Errorf("seed %d: %d bytes are left at the end", seed, n)
		}
	}
}

// All peers together reach the bound. The peer with the most bytes loses its oldest requests.
func TestAPeerWithFewRequestsLosesNoneToOneWithMany(t *testing.T) {
	s, workers := listener(t, waitingBudget{peer: 64 << 10, all: 70 << 10})
	now := time.Unix(1000, 0)
	few, many := &speaker{s: s, id: 1}, &speaker{s: s, id: 2}
	few.begin(now, recordAdd, "http://w0", 1000)
	for range 100 {
		many.begin(now, recordAdd, "http://w0", 1000)
		many.begin(now, recordRecent, "http://w0", 1000)
	}
	few.begin(now, recordAdd, "http://w0", 1000)
	waits(t, s)
	if n := s.Status().Counts.Dropped[string(dropMemory)]; n < 180 {
		t.Errorf("%d requests are counted as dropped", n)
	}
	workers.Put("http://w0", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
	s.look(now)
	if n := s.peers[1].placements.Len(); n != 2 {
		t.Errorf("%d of the 2 requests of the peer with few count", n)
	}
	if n := s.peers[2].placements.Len(); n < 6 || !s.peers[2].placements.Has(199) || s.peers[2].placements.Has(1) {
		t.Errorf("%d requests of the peer with many count; they should be the last ones", n)
	}
}

// An answer tells of more requests than this router follows.
func TestAnAnswerIsBounded(t *testing.T) {
	s, _ := listener(t, defaultWaiting)
	now := time.Unix(1000, 0)
	p := &speaker{s: s, id: 1}
	p.begin(now, recordAdd, "http://w0", 1)
	peer := s.peers[1]
	const parts = 40
	for part := range parts - 1 {
		records := appendRecord(nil, recordState, (&statePart{nonce: peer.nonces[0], part: part, parts: parts}).append)
		for i := range 2000 {
			records = appendRecord(records, recordAdd, func(to []byte) []byte {
				return binary.AppendUvarint(to, uint64(10+part*2000+i)) // cut short
			})
		}
		p.send(now, records)
	}
	if peer.state == nil || len(peer.underWay) != maxUnderWay {
		t.Fatalf("%d requests of an answer are followed", len(peer.underWay))
	}
	p.send(now, appendRecord(nil, recordState, (&statePart{nonce: peer.nonces[0], part: parts - 1, parts: parts}).append))
	if peer.state != nil || s.Status().Counts.Repairs != 1 {
		t.Error("the answer has not ended")
	}
}

// A worker of which the requests do not fit never becomes known. The peer is not asked for them all the time.
func TestRequestsThatDoNotFitAreAskedForSeldom(t *testing.T) {
	s, workers := listener(t, waitingBudget{peer: 1, all: 1}) // nothing fits
	now := time.Unix(1000, 0)
	p := &speaker{s: s, id: 1}
	asked := 0
	for i := range 600 { // a minute
		p.begin(now, recordAdd, "http://w0", 10)
		workers.Put("http://other", fleet.Facts{BlockSize: 16 + i}) // the fleet changes
		peer := s.peers[1]
		peer.settled() // as if it had answered
		now = now.Add(100 * time.Millisecond)
		if s.look(now); peer.differs {
			asked++
		}
	}
	if asked == 0 || asked > int(time.Minute/mendInterval)+1 {
		t.Errorf("%d asks in a minute", asked)
	}
}
