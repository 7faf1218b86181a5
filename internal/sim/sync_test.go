package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/workload"
)

// Four routers that tell each other of their requests place as one router does: the result is that of one router, but
// for the requests that are on their way to a worker while the others do not know of them. More hits than those of one
// router are no fault. Time is virtual and the seed is fixed, so each run has the same figures.
func TestRoutersThatTellEachOtherOfTheirRequestsPlaceAsOne(t *testing.T) {
	policies, sessions := []string{"marginal", "kv", "least_load", "session_affinity"}, 600
	delays := []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond}
	if testing.Short() { // the race detector makes each run many times longer
		policies, sessions, delays = policies[1:2], 100, delays[1:2]
	}
	w, err := workload.Load(fmt.Sprintf("gen:interactive-chat,sessions=%d,context=4000,turns=4,question=200,output=100,think=10,rate=2", sessions), workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range policies {
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
			for _, delay := range delays {
				toldHit, told := play(4, true, delay)
				t.Logf("four that hear of each other after %v: %.1f %%, %.0f ms", delay, toldHit, told)
				if toldHit < hit-1 {
					t.Errorf("after %v: the hit rate is %.2f points below that of one router, and may be 1", delay, hit-toldHit)
				}
				if told > first*1.05 {
					t.Errorf("after %v: the first token comes %.1f %% later than with one router, and may come 5 %% later", delay, 100*(told/first-1))
				}
				if apart < 1.03*told {
					t.Errorf("after %v: the first token comes after %.1f ms, and after %.1f ms if routers tell nothing: the test shows nothing", delay, told, apart)
				}
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
