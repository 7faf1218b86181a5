package replica

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// longRequest is a request with as long a prompt as a message carries.
func longRequest(id uint64) *scratch {
	return &scratch{placement: warmpath.Placement{ID: id, URL: "http://w0", Model: "llama", Trust: fleet.TrustApproximate, FromText: true,
		BlockSize: 16, Keys: make([]block.Key, warmpath.MaxPlacementKeys), AheadKeys: make([]block.Key, warmpath.MaxPlacementKeys),
		Text: make([]byte, warmpath.MaxPlacementText), Tokens: make([]uint32, warmpath.MaxPlacementTokens), Session: policy.Session{Key: "a talk"}}}
}

// The prompt of a request under way is kept by its beginning: 512 keys, 8 KiB of text, 2,048 tokens.
func TestTheBeginningOfALongPromptIsKept(t *testing.T) {
	o := newOutbox()
	o.add(longRequest(1), process{}, time.Now())
	_, _, all, _ := o.state(nil, false)
	var p warmpath.Placement
	c := content{data: all[0].record}
	if c.placement(&p); c.err != nil {
		t.Fatal(c.err)
	}
	if got, want := [4]int{len(p.Keys), len(p.AheadKeys), len(p.Text), len(p.Tokens)}, [4]int{512, 512, 8 << 10, 2 << 10}; got != want {
		t.Errorf("keys, keys ahead, text and tokens are %v long, want %v", got, want)
	}
}

// Requests that have ended take 4 MiB at most, and no more than 4,096 are kept. Their bytes are counted.
func TestRequestsThatHaveEndedAreBoundedByTheirBytes(t *testing.T) {
	o := newOutbox()
	id, most, mostKept := uint64(0), 0, 0
	end := func(s *scratch) {
		id++
		s.placement.ID = id
		o.add(s, process{}, time.Now())
		o.freed(id, warmpath.Ending{}, time.Now())
		o.take(nil)
		sum, kept := 0, 0
		for _, r := range o.recents {
			if sum += len(r.content); r.content != nil {
				kept++
			}
		}
		if sum != o.bytes || sum > 4<<20 {
			t.Fatalf("after %d requests %d bytes are counted, and %d are kept", id, o.bytes, sum)
		}
		most, mostKept = max(most, sum), max(mostKept, kept)
	}
	short := &scratch{placement: warmpath.Placement{URL: "http://w0", Session: policy.Session{Key: "a talk"}}}
	long := longRequest(0)
	for range 300 { // each takes 24 KB
		end(long)
	}
	if most < 4<<20-32<<10 {
		t.Errorf("only %d bytes are kept", most)
	}
	o = newOutbox()
	for range 4200 {
		end(short)
	}
	if mostKept != 4096 {
		t.Errorf("%d requests are kept", mostKept)
	}
	for range 300 {
		end(long)
		end(short)
	}
}

func TestRequestsUnderWayAreBounded(t *testing.T) {
	o := newOutbox()
	s := &scratch{placement: warmpath.Placement{URL: "http://w0"}}
	for id := range uint64(1<<16 + 1) {
		s.placement.ID = id + 1
		o.add(s, process{}, time.Now())
		o.pending = o.pending[:0]
	}
	if underWay, _, untold := o.counts(); underWay != 1<<16 || untold != 1 {
		t.Errorf("%d requests are told, and %d are not", underWay, untold)
	}
}
