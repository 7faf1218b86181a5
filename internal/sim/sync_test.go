package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/workload"
)

// Four routers that tell each other of their requests place as one router does: the result is that of one router, but
// for the requests that are on their way to a worker while the others do not know of them.
func TestRoutersThatTellEachOtherOfTheirRequestsPlaceAsOne(t *testing.T) {
	w, err := workload.Load("gen:interactive-chat,sessions=300,context=4000,turns=4,question=200,output=100,think=10,rate=2", workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"marginal", "kv", "least_load", "session_affinity"} {
		t.Run(name, func(t *testing.T) {
			play := func(routers int, sync bool, delay time.Duration) (hit, first float64) {
				r := run(t, config(w, name, func(c *Config) {
					c.Groups[0].Count, c.Groups[0].KVTokens = 8, 64*1500
					c.Routers, c.Sync, c.SyncDelay = routers, sync, delay
				}))
				return 100 * r.HitRate, r.TTFT.Mean
			}
			hit, first := play(1, false, 0)
			apartHit, apart := play(4, false, 0)
			t.Logf("one router: hit rate %.1f %%, mean first token %.0f ms; four that tell nothing: %.1f %%, %.0f ms", hit, first, apartHit, apart)
			worst := 0.0
			for _, delay := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
				toldHit, told := play(4, true, delay)
				off := max(hit-toldHit, 20*(told/first-1)) // 1 point of the hit rate and 5 % of the time count alike
				t.Logf("four that hear of each other after %v: %.1f %%, %.0f ms", delay, toldHit, told)
				worst = max(worst, off)
			}
			if worst > 1.5 {
				t.Errorf("four routers are %.1f times as much worse than one as they may be", worst)
			}
			if alone := max(hit-apartHit, 20*(apart/first-1)); alone < 2*worst {
				t.Errorf("routers that tell nothing are %.1f times as much worse than one as they may be, and those that tell %.1f times", alone, worst)
			}
		})
	}
}

func TestSyncDelaysAreRead(t *testing.T) {
	w := families(4, 8, time.Second)
	x := DefaultExperiment()
	x.Workload, x.Policies, x.Routers, x.SyncDelay = "families", []string{"random"}, 3, []string{"off", "0s", "10ms"}
	configs, err := x.Configs(w, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range configs {
		got = append(got, fmt.Sprint(c.Sync, c.SyncDelay))
	}
	if fmt.Sprint(got) != "[false 0s true 0s true 10ms]" {
		t.Errorf("%v", got)
	}
	for _, bad := range []string{"", "-1ms", "soon"} {
		x.SyncDelay = []string{bad}
		if _, err := x.Configs(w, nil); err == nil {
			t.Errorf("the delay %q is accepted", bad)
		}
	}
	x.Routers, x.SyncDelay = 1, []string{"1ms"}
	if _, err := x.Configs(w, nil); err == nil {
		t.Error("one router has a sync delay")
	}
}
