package fleet_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// linked returns a fleet of workers at http://0, http://1, …, one for each element of labels.
func linked(labels ...map[string]string) (*fleet.Fleet, []*fleet.Worker) {
	f := fleet.New(fleet.Config{})
	for i, l := range labels {
		f.Put("http://"+string(rune('0'+i)), fleet.Facts{Models: []fleet.Model{{ID: "m"}}, Labels: l, Transfer: fleet.Transfer{Connector: "nixl", TokenBytes: 125_000}})
	}
	return f, f.Snapshot().Workers()
}

const ms = float64(time.Millisecond)

func TestALinkIsLearned(t *testing.T) {
	f, w := linked(nil, nil)
	assumed := f.Snapshot().Link(w[0], w[1])
	if assumed.Base != 10 || math.Abs(assumed.Token-0.01) > 1e-9 || assumed.Samples != 0 {
		t.Errorf("assumed %+v", assumed)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tokens := 500 + random.IntN(20_000)
		took := (4 + 0.05*float64(tokens)) * (0.8 + 0.4*random.Float64())
		f.Transferred(w[0], w[1], tokens, time.Duration(took*ms))
	}
	l := f.Snapshot().Link(w[0], w[1])
	for _, n := range []int{1000, 10_000} {
		if want, got := 4+0.05*float64(n), l.Time(n); math.Abs(got-want) > 0.2*want+3 {
			t.Errorf("%d tokens: %.1f ms, measured %.1f", n, got, want)
		}
	}
	if l.Samples != 200 {
		t.Errorf("%+v", l)
	}
	for range 200 { // the link becomes ten times as fast: the old transfers fade
		tokens := 500 + random.IntN(20_000)
		f.Transferred(w[0], w[1], tokens, time.Duration(0.005*float64(tokens)*ms))
	}
	l = f.Snapshot().Link(w[0], w[1])
	if got := l.Time(10_000); got > 75 {
		t.Errorf("after the change: %.1f ms", got)
	}
	if l.Time(0) != 0 {
		t.Errorf("no token takes %v ms", l.Time(0))
	}
}

// A first token also waits for memory at the decode worker, sometimes for seconds. That is no time of the link.
func TestALinkIsLearnedBesideTransfersThatWaitForMemory(t *testing.T) {
	f, w := linked(nil, nil)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		tokens := 500 + random.IntN(20_000)
		took := 4 + 0.05*float64(tokens)
		if i%3 == 0 {
			took += 3000 * random.Float64()
		}
		f.Transferred(w[0], w[1], tokens, time.Duration(took*ms))
	}
	l := f.Snapshot().Link(w[0], w[1])
	for _, n := range []int{1000, 10_000} {
		if want, got := 4+0.05*float64(n), l.Time(n); got < 0.8*want || got > want+100 {
			t.Errorf("%d tokens: %.1f ms, and %.1f without the waits", n, got, want)
		}
	}
}

func TestAPairTakesTheTimesOfPairsAsNear(t *testing.T) {
	near := map[string]string{"node": "1", "zone": "1"}
	far := map[string]string{"node": "2", "zone": "2"}
	f, w := linked(near, near, near, far)
	for range 50 {
		f.Transferred(w[0], w[1], 10_000, 20*time.Millisecond)
		f.Transferred(w[0], w[3], 10_000, 900*time.Millisecond)
	}
	s := f.Snapshot()
	inside, outside := s.Link(w[0], w[2]), s.Link(w[1], w[3])
	if a, b := inside.Time(10_000), outside.Time(10_000); a > 40 || b < 500 || inside.Samples != 0 {
		t.Errorf("%.0f ms in the node, %.0f ms between zones", a, b)
	}
}

func TestImpossibleTransfersTeachNothing(t *testing.T) {
	f, w := linked(nil, nil)
	before := f.Snapshot().Link(w[0], w[1])
	f.Transferred(w[0], w[1], 0, time.Second)
	f.Transferred(w[0], w[1], 100, -time.Second)
	if after := f.Snapshot().Link(w[0], w[1]); after != before {
		t.Errorf("%+v, before %+v", after, before)
	}
	for range 5 { // longer prompts that take less time
		f.Transferred(w[0], w[1], 100, time.Second)
		f.Transferred(w[0], w[1], 10_000, time.Millisecond)
	}
	if l := f.Snapshot().Link(w[0], w[1]); l.Base < 0 || l.Token < 0 {
		t.Errorf("%+v", l)
	}
}

func TestFailuresLeaveAPairAloneForLongerEachTime(t *testing.T) {
	f, w := linked(nil, nil, nil)
	now := int64(1e18)
	var alone []time.Duration
	for range 12 {
		alone = append(alone, f.TransferFailed(w[0], w[1], now))
	}
	want := []time.Duration{0, 0, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute}
	for i, d := range want {
		if alone[i] != d {
			t.Errorf("failure %d: %v, want %v", i+1, alone[i], d)
		}
	}
	link := func(to int) fleet.Link { return f.Snapshot().Link(w[0], w[to]) }
	l := link(1)
	if l.Rested(now) || !l.Rested(now+int64(10*time.Minute)) {
		t.Errorf("%+v at %d", l, now)
	}
	if other := link(2); !other.Rested(now) {
		t.Error("another pair is left alone, too")
	}
	f.Transferred(w[0], w[1], 100, time.Millisecond)
	if l = link(1); !l.Rested(now) || f.TransferFailed(w[0], w[1], now) != 0 {
		t.Errorf("a transfer does not end the row of failures: %+v", l)
	}
}

func TestTheLinksOfAWorkerLeaveWithIt(t *testing.T) {
	f, w := linked(nil, nil)
	for range 3 {
		f.TransferFailed(w[0], w[1], 1)
	}
	f.Remove(w[1].ID)
	f.Put("http://1", w[1].Facts)
	s := f.Snapshot()
	if l := s.Link(w[0], s.Workers()[1]); !l.Rested(1) {
		t.Errorf("%+v", l)
	}
}

// A transfer may end after one of its workers has left. Nothing would ever forget that pair again.
func TestATransferOfAWorkerThatLeftIsNotKept(t *testing.T) {
	f, w := linked(nil, nil)
	for i, gone := range []*fleet.Worker{w[1], w[0]} {
		f.Remove(gone.ID)
		f.Transferred(w[0], w[1], 100, time.Second)
		for range 3 {
			if alone := f.TransferFailed(w[0], w[1], 1); alone != 0 {
				t.Errorf("after %d removals a pair is left alone for %v", i+1, alone)
			}
		}
		if l := f.Snapshot().Link(w[0], w[1]); !l.Rested(1) || l.Samples != 0 {
			t.Errorf("after %d removals: %+v", i+1, l)
		}
	}
}

func TestPoolsOfLegs(t *testing.T) {
	f := fleet.New(fleet.Config{})
	put := func(url string, role fleet.Role, connector string) {
		f.Put(url, fleet.Facts{Models: []fleet.Model{{ID: "m"}}, Role: role, Transfer: fleet.Transfer{Connector: connector}})
	}
	put("http://a", fleet.RoleBoth, "")
	pool, _ := f.Snapshot().Pool("m")
	if pool.Whole != pool || pool.Prefill != nil || pool.Decode != nil {
		t.Errorf("without roles: %+v", pool)
	}
	put("http://b", fleet.RolePrefill, "nixl")
	put("http://c", fleet.RoleDecode, "nixl")
	put("http://d", fleet.RoleBoth, "nixl")
	pool, _ = f.Snapshot().Pool("m")
	urls := func(p *fleet.Pool) (out string) {
		for _, w := range p.Workers {
			out += w.URL[len("http://"):]
		}
		return out
	}
	if all, whole, prefill, decode := urls(pool), urls(pool.Whole), urls(pool.Prefill), urls(pool.Decode); all != "abcd" || whole != "acd" || prefill != "bd" || decode != "cd" {
		t.Errorf("all %s, whole %s, prefill %s, decode %s", all, whole, prefill, decode)
	}
	if pool.Prefill.Turn(true) != 0 || pool.Prefill.Turn(false) != 1 || pool.Decode.Turn(false) != 0 || pool.Turn(false) != 0 {
		t.Error("the pools of the legs share their turns")
	}
}
