package gateway

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

func TestATurnIsFoundOnlyByItsOwnConversation(t *testing.T) {
	f := fleet.New(fleet.Config{})
	put := func(url string) *fleet.Worker {
		f.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
		for _, w := range f.Snapshot().Workers() {
			if w.URL == url {
				return w
			}
		}
		t.Fatal("no worker")
		return nil
	}
	w, now := put("http://a:1"), time.Unix(1000, 0)
	turn := func(n int) *keptTurn {
		return &keptTurn{worker: w, model: "m", salt: "s", extra: "x", tenant: "t", tokens: []block.Token{1, 2, 3, 4, 5}[:n], since: now, until: now.Add(time.Minute)}
	}
	short, long := turn(3), turn(5)
	var s turns
	s.keep(long, now)
	s.keep(short, now)
	own := warmpath.Request{Model: "m", Salt: "s", Extra: "x", Tenant: "t"}
	find := func(q warmpath.Request, at time.Time, sure ...block.Token) *keptTurn {
		return s.find(&q, sure, f.Snapshot(), at)
	}
	if got := find(own, now, 1, 2, 3, 4, 5, 6); got != long {
		t.Errorf("found %+v, not the longest", got)
	}
	if got := find(own, now, 1, 2, 3, 4); got != short {
		t.Errorf("found %+v", got)
	}
	if got := find(own, now, 1, 9, 3, 4, 5, 6); got != nil {
		t.Errorf("found %+v for another prompt", got)
	}
	for _, other := range []warmpath.Request{
		{Model: "n", Salt: "s", Extra: "x", Tenant: "t"}, {Model: "m", Extra: "x", Tenant: "t"}, {Model: "m", Salt: "s", Tenant: "t"},
		{Model: "m", Salt: "s", Extra: "x", Tenant: "u"},
	} {
		if got := find(other, now, 1, 2, 3, 4, 5, 6); got != nil {
			t.Errorf("%+v found %+v", other, got)
		}
	}
	if got := find(own, now.Add(time.Minute), 1, 2, 3, 4, 5, 6); got != nil {
		t.Errorf("found %+v after its time", got)
	}
	if !s.take(long) || s.take(long) {
		t.Error("a turn can be taken other than once")
	}
	s.unreadable(short)
	if got := find(own, now, 1, 2, 3, 4, 5, 6); got != nil || s.bytes != 0 {
		t.Errorf("found %+v, %d bytes", got, s.bytes)
	}
	s.keep(turn(5), now)
	if find(own, now, 1, 2, 3, 4, 5, 6) == nil {
		t.Error("a turn is not found before its worker is started again")
	}
	f.Refused(w.ID)
	if !f.Answered(w.ID, fleet.Signs{}) { // another process at the same URL
		t.Fatal("no restart was seen")
	}
	if got := find(own, now, 1, 2, 3, 4, 5, 6); got != nil {
		t.Errorf("found %+v after its worker was started again", got)
	}
	w = f.Snapshot().ByID(w.ID)
	s.keep(turn(5), now)
	f.Remove(w.ID)
	put("http://a:1") // another process
	if got := find(own, now, 1, 2, 3, 4, 5, 6); got != nil {
		t.Errorf("found %+v after its worker was replaced", got)
	}
}

func TestKeptTurnsAreBounded(t *testing.T) {
	w, now := &fleet.Worker{}, time.Unix(1000, 0)
	var s turns
	for i := range 3 * maxTurns {
		s.keep(&keptTurn{worker: w, tokens: make([]block.Token, 1+i%7), until: now.Add(time.Minute)}, now)
	}
	if len(s.kept) != maxTurns {
		t.Errorf("%d turns are kept", len(s.kept))
	}
	for range 40 {
		s.keep(&keptTurn{worker: w, tokens: make([]block.Token, maxTurnBytes/64), until: now.Add(time.Minute)}, now)
	}
	if s.bytes > maxTurnBytes || len(s.kept) != 16 {
		t.Errorf("%d turns of %d bytes are kept", len(s.kept), s.bytes)
	}
	s.keep(&keptTurn{worker: w, tokens: make([]block.Token, maxTurnBytes)}, now)
	s.keep(&keptTurn{worker: w, tokens: make([]block.Token, 1), until: now.Add(time.Hour)}, now.Add(2*time.Minute))
	if len(s.kept) != 1 || s.bytes != 4 {
		t.Errorf("%d turns of %d bytes are kept after the others ended", len(s.kept), s.bytes)
	}
}

// The time of a leg may be up before the leg has a connection, which cannot be broken off yet.
func TestTheLimitOfALegWithoutAConnectionIsCheckedAgain(t *testing.T) {
	fired := make(chan struct{})
	n := &legLimit{l: &legs{x: &exchange{}}, leg: fleet.LegPrefill, after: time.Nanosecond, until: time.Now(), timer: time.AfterFunc(0, func() { close(fired) })}
	<-fired
	n.check()
	if n.late || !n.timer.Stop() {
		t.Error("the limit is lost")
	}
}
