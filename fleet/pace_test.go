package fleet

import (
	"testing"
	"time"
)

// The time for the work of other routers' requests is predicted from the engine's own counters, even if this router has
// learned no times of the engine.
func TestTheWorkOfOthersIsTimedByTheEnginesOwnPace(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://w", Facts{Engine: EngineSGLang, Models: []Model{{ID: "m"}}, BlockSize: 16})
	h := f.Snapshot().ByID(id).Holders[0]
	second := int64(time.Second)
	backlog := func(at int64, r Reported) time.Duration {
		r.At, r.Running, r.Waiting, r.QueueReported, r.QueuedTokens = at, 1, 1, true, 10_000
		f.Report(h, r)
		return f.Snapshot().LoadAt(h, at).Backlog
	}
	alone := backlog(second, Reported{})
	if got := backlog(2*second, Reported{Computed: 5000, Busy: time.Second}); got != alone {
		t.Errorf("after one report the backlog is %v, want %v: there is no pace yet", got, alone)
	}
	if got := backlog(3*second, Reported{Computed: 5500, Busy: 9 * time.Second}); got != alone {
		t.Errorf("after 500 tokens the backlog is %v, want %v: they are too few", got, alone)
	}
	if got, want := backlog(4*second, Reported{Computed: 7000, Busy: 2 * time.Second}), 5*time.Second; got != want {
		t.Errorf("at 0.5 ms a token the backlog is %v, want %v", got, want)
	}
	if got := backlog(5*second, Reported{Computed: 10, Busy: time.Millisecond}); got != alone {
		t.Errorf("after a restart the backlog is %v, want %v", got, alone)
	}
	empty := Reported{At: 6 * second, Waiting: 3, QueueReported: true}
	f.Report(h, empty)
	if got := f.Snapshot().LoadAt(h, 6*second).Others.PrefillTokens; got != 0 {
		t.Errorf("a queue with nothing to compute counts %d tokens", got)
	}
}
