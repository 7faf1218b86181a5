package admin_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
)

// TestThePaceOfAHolderIsShown: prompts take one second at worker a and three seconds at worker b. The list of workers
// and the explanations show the pace of each worker: how much slower it is than the others of its kind.
func TestThePaceOfAHolderIsShown(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	now := time.Now().Add(-10 * time.Minute)
	for range 300 {
		for h, took := range []time.Duration{time.Second, 3 * time.Second} {
			var r fleet.Reservation
			f.Reserve(&r, fleet.Holder(h), fleet.Work{UncachedTokens: 5000, PromptTokens: 5000}, now.UnixNano())
			r.FirstToken(now.Add(took).UnixNano())
			r.Release(now.Add(took).UnixNano())
		}
		now = now.Add(2 * time.Second)
	}
	pace := f.Snapshot().Pace
	if slow := pace(1); !slow.Believed || slow.Factor <= 1 || pace(0) == slow {
		t.Fatalf("paces %+v, %+v", pace(0), slow)
	}
	var workers admin.Workers
	_, text := ask(t, a, "GET", "/admin/workers", "")
	if err := json.Unmarshal([]byte(text), &workers); err != nil {
		t.Fatal(err)
	}
	for h, w := range workers.Workers {
		if got, want := w.Holders[0].Pace, pace(fleet.Holder(h)); got != want {
			t.Errorf("%s has pace %+v, want %+v", w.URL, got, want)
		}
	}
	var e admin.Explanation
	_, text = ask(t, a, "POST", "/admin/explain?policy=kv_aware", question)
	if err := json.Unmarshal([]byte(text), &e); err != nil || len(e.Candidates) != 2 {
		t.Fatal(err, e)
	}
	for _, c := range e.Candidates {
		h := map[string]fleet.Holder{"http://a:1": 0, "http://b:1": 1}[c.Worker]
		if c.Pace != pace(h) {
			t.Errorf("candidate %s has pace %+v, want %+v", c.Worker, c.Pace, pace(h))
		}
	}
}
