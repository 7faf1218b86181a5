package replica

import (
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
)

// fill tells of n requests that cost no time: their records are cut short, so they are followed and count as no load.
func (p *speaker) fill(now time.Time, n int) {
	for n > 0 {
		var records []byte
		for range min(n, 2000) {
			n--
			p.last++
			records = appendRecord(records, recordAdd, func(to []byte) []byte { return binary.AppendUvarint(to, p.last) })
		}
		p.send(now, records)
	}
}

// Eight peers tell of as many requests as a peer can. Others still have room for their share.
func TestTheRequestsOfAllPeersAreBounded(t *testing.T) {
	s, _ := listener(t, defaultWaiting)
	now := time.Unix(1000, 0)
	var greedy []*speaker
	for i := range maxAllUnderWay / maxUnderWay {
		p := &speaker{s: s, id: uint64(i + 1)}
		p.fill(now, maxUnderWay+1)
		greedy = append(greedy, p)
	}
	late := &speaker{s: s, id: 100}
	late.fill(now, underWayShare-1)
	for range 3 {
		late.begin(now, recordAdd, "http://w0", 1)
	}
	sum := 0
	for id, p := range s.peers {
		sum += len(p.underWay)
		if id != late.id && len(p.underWay) != maxUnderWay {
			t.Errorf("the requests of a peer within its bound: %d are followed", len(p.underWay))
		}
	}
	if n := len(s.peers[late.id].underWay); n != underWayShare {
		t.Errorf("%d requests of the last peer are followed, want its share, %d", n, underWayShare)
	}
	if want := maxAllUnderWay + underWayShare; sum != want || s.receiver.underWay != want {
		t.Errorf("%d requests are followed, and %d are counted, want %d", sum, s.receiver.underWay, want)
	}
	if n := s.Status().Counts.Dropped[string(dropTooMany)]; n != 2 {
		t.Errorf("%d requests are counted as too many, want 2", n)
	}
	greedy[0].tell(now, recordGoodbye, func(to []byte) []byte { return to })
	late.begin(now, recordAdd, "http://w0", 1)
	if n := len(s.peers[late.id].underWay); n != underWayShare+1 {
		t.Error("there is room again, and a request is not followed")
	}
	s.dropAll()
	if s.receiver.underWay != 0 {
		t.Errorf("%d requests are counted, and there are no peers", s.receiver.underWay)
	}
}

// The digest of a peer with too many requests always differs. Its answers would have all of them each time.
func TestAPeerWithoutRoomIsAskedSeldom(t *testing.T) {
	s, _ := listener(t, defaultWaiting)
	now := time.Unix(1000, 0)
	p := &speaker{s: s, id: 1}
	p.fill(now, maxUnderWay)
	for len(s.orders) > 0 {
		<-s.orders
	}
	peer := s.peers[1]
	peer.settled() // as if it had answered
	asked := 0
	for range 600 { // a minute
		p.fill(now, 1)
		peer.differs = true // as a packet with a digest says
		s.look(now)
		now = now.Add(100 * time.Millisecond)
		for len(s.orders) > 0 {
			if o := <-s.orders; o.kind == recordAsk {
				asked++
				peer.settled()
			}
		}
	}
	if asked == 0 || asked > int(time.Minute/mendInterval)+1 {
		t.Errorf("%d asks in a minute", asked)
	}
}

// The memory of a map does not shrink by itself.
func TestRequestsThatHaveEndedTakeNoMemory(t *testing.T) {
	now := time.Unix(1000, 0)
	all := 0
	p := newPeer(header{from: 1}, nil, &all)
	for id := range uint64(maxUnderWay) {
		p.follow(&warmpath.Placement{ID: id + 1}, 1, now)
	}
	large := p.underWay
	for id := range uint64(maxUnderWay - 1) {
		p.forget(id + 1)
	}
	if len(p.underWay) != 1 || p.digest != digestOf(maxUnderWay, false) || all != 1 {
		t.Fatalf("%d requests are left, want the last one, and %d are counted", len(p.underWay), all)
	}
	if reflect.ValueOf(p.underWay).Pointer() == reflect.ValueOf(large).Pointer() || p.most > underWayShare {
		t.Errorf("one request has a map that had %d", p.most)
	}
}
