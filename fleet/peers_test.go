package fleet

import (
	"testing"
	"time"
)

func TestNothingIsLearnedFromTheTimesOfPeersRequests(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, BlockSize: 16, Ranks: 1})
	now := int64(1e18)
	samples := func() int { return f.Snapshot().Timing(0).Samples }
	request := func(peer bool) *Reservation {
		r := &Reservation{}
		if !f.Reserve(r, 0, Work{UncachedTokens: 4096, PromptTokens: 4096, ContextBlocks: 256, Peer: peer}, now) {
			t.Fatal("not reserved")
		}
		return r
	}
	alone := func() { // a group of prompts is learned from when the next group begins
		for range 2 {
			r := request(false)
			now += int64(300 * time.Millisecond)
			r.FirstToken(now)
			r.Release(now)
		}
	}
	alone()
	learned := samples()
	if learned == 0 {
		t.Fatal("nothing is learned from this router's own requests: the test shows nothing")
	}
	for range 5 {
		r := request(true)
		now += int64(300 * time.Millisecond)
		r.FirstToken(now)
		now += int64(time.Second)
		r.Tokens(100, now)
		r.Release(now)
	}
	before := samples()
	if before != learned {
		t.Errorf("%d measurements after requests of a peer, %d before", before, learned)
	}
	for range 5 { // the engine computes the prompt of a peer first, so the time of the own prompt is not known
		p, own := request(true), request(false)
		now += int64(700 * time.Millisecond)
		own.FirstToken(now)
		if l := f.Snapshot().Load(0); l.Waiting != 0 || l.PrefillTokens != 0 {
			t.Errorf("the prompt of a peer before an own one is not computed: %+v", l)
		}
		p.FirstToken(now)
		p.Release(now)
		own.Release(now)
	}
	alone()
	if got := samples(); got > learned+2 {
		t.Errorf("%d measurements, of which at most two are of prompts that were computed alone", got-learned)
	}
}

func TestReportsDoNotCountWhatPeersTold(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, BlockSize: 16, Ranks: 1})
	now := int64(1e18)
	var own, peer Reservation
	f.Reserve(&own, 0, Work{UncachedTokens: 1000, PromptTokens: 1000}, now)
	f.Reserve(&peer, 0, Work{UncachedTokens: 500, PromptTokens: 500, Peer: true}, now)
	f.Report(0, Reported{At: now, Running: 1, Waiting: 2, QueuedTokens: 1700, QueueReported: true})
	l := f.Snapshot().LoadAt(0, now)
	if l.Others.Requests != 1 || l.Others.PrefillTokens != 200 || l.Requests != 3 || l.PrefillTokens != 1700 || l.Peers.Requests != 1 {
		t.Errorf("%+v", l)
	}
	own.Release(now)
	peer.Release(now)
	if l := f.Snapshot().Load(0); l.Requests != 0 || l.Peers != (PeerLoad{Processed: 1}) {
		t.Errorf("after the end: %+v", l)
	}
}

func TestTheTokensOfPeersAnswersAreEstimated(t *testing.T) {
	f := New(Config{Timing: Timing{Base: 10, Token: 0.01}})
	f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, BlockSize: 16, Ranks: 1})
	now := int64(1e18)
	var rs [3]Reservation
	for i := range rs {
		f.Reserve(&rs[i], 0, Work{UncachedTokens: 10, PromptTokens: 10, Peer: true}, now)
		rs[i].FirstToken(now + int64(i)*int64(time.Second))
	}
	tokens := func(after time.Duration) int64 { return f.Snapshot().LoadAt(0, now+int64(after)).OutputTokens }
	if n := tokens(3 * time.Second); n < 590 || n > 610 { // 3 s, 2 s and 1 s, with a token each 10 ms
		t.Errorf("%d tokens, want about 600", n)
	}
	rs[0].Release(now + int64(3*time.Second))
	if n := tokens(3 * time.Second); n < 290 || n > 310 {
		t.Errorf("%d tokens without the first answer, want about 300", n)
	}
	rs[1].Release(now)
	rs[2].Release(now)
	if n := tokens(time.Hour); n != 0 {
		t.Errorf("%d tokens without answers", n)
	}
}
