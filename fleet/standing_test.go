package fleet

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// shareBeyond returns h's share of the requests in slow start. A returning holder may always have a first request, so
// shareBeyond asks for the share while two requests are under way.
func shareBeyond(f *Fleet, h Holder, scope Scope, tenant string, now int64) float64 {
	all := make([]Reservation, 2)
	for i := range all {
		f.Reserve(&all[i], h, Work{}, now)
	}
	share := f.Snapshot().Standing(h, scope, tenant, now).Share
	for i := range all {
		all[i].Release(now)
	}
	return share
}

func barOf(f *Fleet, h Holder, scope Scope, tenant string, now int64) Bar {
	return f.Snapshot().Standing(h, scope, tenant, now).Bar
}

func TestAHolderMayBeUselessForOneScopeAlone(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	chat, embed := ScopeOf("m", "/chat"), ScopeOf("m", "/embeddings")
	f.ObserveScope(0, embed, OutcomeFailed, second)
	f.ObserveScope(0, chat, OutcomeServed, second)
	f.ObserveScope(0, embed, OutcomeServed, second) // the request was under way when the worker was left out
	if got := barOf(f, 0, embed, "", second); got != BarUseless {
		t.Errorf("embeddings: bar %d, want useless", got)
	}
	if got := f.Snapshot().Standing(0, chat, "", second); got != (Standing{Share: 1}) {
		t.Errorf("chat: %+v", got)
	}
	if got := barOf(f, 0, embed, "", 3*second); got != BarNone {
		t.Fatalf("after the delay: bar %d", got)
	}
	var trial Reservation
	f.Reserve(&trial, 0, Work{Scope: embed}, 3*second)
	if got := barOf(f, 0, embed, "", 3*second); got != BarUseless {
		t.Errorf("during the trial: bar %d", got)
	}
	trial.Release(3 * second)
	f.ObserveScope(0, embed, OutcomeServed, 3*second)
	if got := shareBeyond(f, 0, embed, "", 3*second); barOf(f, 0, embed, "", 3*second) != BarNone || got != firstShare {
		t.Errorf("after a good trial: %+v", got)
	}
	if got := f.Snapshot().Standing(0, chat, "", 3*second); got.Share != 1 {
		t.Errorf("chat gets %v of its share though it never failed", got.Share)
	}
	for range 100 {
		f.ObserveScope(0, embed, OutcomeServed, 4*second)
	}
	if f.holders[0].state.scopes.all.Load() != nil {
		t.Error("a scope without trouble is remembered")
	}
}

func TestScopesInTroubleAreBounded(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	for i := range 10 * mostScopes {
		f.ObserveScope(0, ScopeOf(fmt.Sprint("adapter", i), "/chat"), OutcomeFailed, second)
	}
	if n := len(*f.holders[0].state.scopes.all.Load()); n != mostScopes {
		t.Errorf("%d scopes are remembered, want %d", n, mostScopes)
	}
}

// The ranks of a worker are one process. If one rank is left out, all ranks are left out, and one trial decides for all
// ranks.
func TestRanksAreLeftOutTogether(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 4))
	f.ObserveScope(2, 1, OutcomeFailed, second)
	for h := range Holder(4) {
		if got := barOf(f, h, 1, "", second); got != BarUseless {
			t.Errorf("rank %d: bar %d, want useless", h, got)
		}
	}
	var trial Reservation
	f.Reserve(&trial, 0, Work{Scope: 1}, 3*second)
	for h := range Holder(4) {
		if got := barOf(f, h, 1, "", 3*second); got != BarUseless {
			t.Errorf("rank %d during the trial of rank 0: bar %d", h, got)
		}
	}
	trial.Release(3 * second)
	f.SetHealth(0, false, "flaps")
	f.SetHealth(0, true, "")
	if got := barOf(f, 3, 1, "", 3*second); got != BarUseless {
		t.Errorf("a failed health check ended the exclusion for useless answers: bar %d", got)
	}
	f.ObserveScope(0, 1, OutcomeServed, 3*second)
	for h := range Holder(4) {
		if got := barOf(f, h, 1, "", 3*second); got != BarNone {
			t.Errorf("rank %d after a good trial of rank 0: bar %d", h, got)
		}
	}
}

// A worker may be useless for every request, and serve more model names than the number of scopes that the fleet keeps.
func TestAHolderMayBeUselessForEveryScope(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	f.ObserveScope(0, EveryScope, OutcomeFailed, second)
	for i := range 3 {
		if got := barOf(f, 0, ScopeOf(fmt.Sprint("adapter", i), "/chat"), "", second); got != BarUseless {
			t.Errorf("adapter %d: bar %d, want useless", i, got)
		}
	}
	for i := range 2 * mostScopes {
		f.ObserveScope(0, ScopeOf(fmt.Sprint("adapter", i), "/chat"), OutcomeFailed, second)
	}
	if got := f.Snapshot().Useless(0); len(got) != mostScopes || got[0].Scope != EveryScope {
		t.Errorf("%d scopes, the first is %x", len(got), got[0].Scope)
	}
	var trial Reservation
	chat := ScopeOf("m", "/chat")
	f.Reserve(&trial, 0, Work{Scope: chat}, 3*second)
	if got := barOf(f, 0, ScopeOf("n", "/chat"), "", 3*second); got != BarUseless {
		t.Errorf("during the trial: bar %d", got)
	}
	trial.Release(3 * second)
	f.ObserveScope(0, EveryScope, OutcomeServed, 3*second)
	if got := shareBeyond(f, 0, chat, "", 3*second); barOf(f, 0, chat, "", 3*second) != BarNone || got != firstShare {
		t.Errorf("after a good trial: %+v", got)
	}
}

func TestALimitOfOneTenantHoldsForThatTenant(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	f.Limit(0, "x", 10*second, second)
	if x, y := barOf(f, 0, 1, "x", second), barOf(f, 0, 1, "y", second); x != BarLimited || y != BarNone {
		t.Errorf("tenant x: bar %d, want limited; tenant y: bar %d, want none", x, y)
	}
	if until := f.Snapshot().LimitedUntil(0, "x", 2*second); until != 10*second {
		t.Errorf("limited until %d", until)
	}
	if got := f.Snapshot().Standing(0, 1, "x", 10*second); got != (Standing{Share: 1}) {
		t.Errorf("afterwards: %+v", got)
	}
}

// A client can invent API keys. A client with many refused keys must not shut out other tenants that are served.
func TestATenantThatIsServedIsNotShutOutByTheLimitsOfOthers(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	for i := range int64(100) {
		now := second + i*second/10
		f.Limit(0, fmt.Sprint("key", i), now+60*second, now)
		f.ObserveScope(0, 1, OutcomeServed, now+1)
		if bar := barOf(f, 0, 1, "innocent", now+2); bar != BarNone {
			t.Fatalf("after %d keys got a 429 a tenant that is served has bar %d", i+1, bar)
		}
	}
	if n := len(f.holders[0].state.limit.Load().own); n > mostOwn {
		t.Errorf("%d limits of tenants are kept", n)
	}
}

func TestALimitThatManyTenantsAreToldIsEverybodys(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	for i := range int64(manyLimited) {
		now := second + i*second/4
		f.Limit(0, fmt.Sprint("key", i), 60*second, now)
	}
	if bar := barOf(f, 0, 1, "another", 3*second); bar != BarLimited {
		t.Errorf("another tenant has bar %d, want limited", bar)
	}
	if got := shareBeyond(f, 0, 1, "another", 60*second); barOf(f, 0, 1, "another", 60*second) != BarNone || got != firstShare {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestABriefSuspicionIsFollowedByNoSlowStart(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", serving("m", 1))
	var r Reservation
	f.Reserve(&r, 0, Work{}, 0)
	r.Release(0)
	f.Suspect(id, true, second)
	if changed := f.Suspect(id, true, 2*second); changed || !f.Snapshot().Suspected(0) {
		t.Errorf("suspected twice: changed %v, suspected %v", changed, f.Snapshot().Suspected(0))
	}
	now := second + int64(briefSuspicion) - 1
	if !f.Suspect(id, false, now) || f.Snapshot().Suspected(0) {
		t.Error("the suspicion did not end")
	}
	if got := shareBeyond(f, 0, 1, "", now); got != 1 {
		t.Errorf("share %v after a brief suspicion, want 1", got)
	}
}

func TestAHolderThatReturnsEarnsItsShare(t *testing.T) {
	for name, away := range map[string]func(f *Fleet, id WorkerID, now int64){
		"its breaker closes": func(f *Fleet, _ WorkerID, now int64) {
			for range 3 {
				f.Observe(0, OutcomeFailed, now-2*second)
			}
			f.Observe(0, OutcomeServed, now)
		},
		"it is ready again": func(f *Fleet, id WorkerID, _ int64) {
			f.SetHealth(id, false, "connection refused")
			f.SetHealth(id, true, "")
		},
		"its events began anew": func(f *Fleet, _ WorkerID, _ int64) { f.Returned(0) },
		"another process answers": func(f *Fleet, id WorkerID, _ int64) {
			f.Answered(id, Signs{Started: 100})
			f.Answered(id, Signs{Started: 200})
		},
		"it was frozen": func(f *Fleet, id WorkerID, now int64) {
			f.Suspect(id, true, now-2*second)
			f.Suspect(id, false, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := New(Config{})
			id := f.Put("http://a", serving("m", 1))
			share := func(now int64) float64 { return shareBeyond(f, 0, 1, "", now) }
			var r Reservation
			f.Reserve(&r, 0, Work{}, 0)
			r.Release(0)
			if got := share(second); got != 1 {
				t.Fatalf("before: share %v", got)
			}
			expect := func(now int64, want float64) {
				t.Helper()
				if got := share(now); math.Abs(got-want) > 1e-9 {
					t.Errorf("after %v: share %v, want %v", time.Duration(now-second), got, want)
				}
			}
			away(f, id, second)
			expect(second, firstShare)
			expect(second+int64(rampTime)/2, (1+firstShare)/2) // half of the ramp's time has passed
			f.Observe(0, OutcomeFailed, 7*second)
			expect(7*second, firstShare) // the ramp begins again
			for range rampServed / 2 {
				f.Observe(0, OutcomeServed, 7*second)
			}
			expect(7*second, (1+firstShare)/2) // the holder gave half of the answers that end the ramp
			expect(7*second+int64(rampTime), 1)
			expect(8*second, 1)
		})
	}
	f := New(Config{})
	id := f.Put("http://a", serving("m", 1))
	f.SetHealth(id, false, "not probed yet")
	f.SetHealth(id, true, "")
	if got := f.Snapshot().Standing(0, 1, "", second).Share; got != 1 {
		t.Errorf("a worker that is ready for the first time gets %v of its share", got)
	}
}

// returned returns a fleet with one holder. The holder had a request, and its worker is a new process now.
func returned() *Fleet {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	var r Reservation
	f.Reserve(&r, 0, Work{}, 0)
	r.Release(0)
	f.Returned(0)
	return f
}

// TestAReturningHolderHasOneRequestAtOnceMoreThanItAnswered: a returning holder may have one request more under way
// than it has answered. So only a few requests can fail, and a holder that answers soon gets its whole share.
func TestAReturningHolderHasOneRequestAtOnceMoreThanItAnswered(t *testing.T) {
	f := returned()
	share := func() float64 { return f.Snapshot().Standing(0, 1, "", second).Share }
	under := make([]Reservation, 5)
	for answered := range under {
		if got := share(); got != 1 {
			t.Errorf("%d under way, %d answered: share %v, want all", answered, answered, got)
		}
		f.Reserve(&under[answered], 0, Work{}, second)
		if got := share(); got >= 1 {
			t.Errorf("%d under way, %d answered: share %v, want a part", answered+1, answered, got)
		}
		f.Observe(0, OutcomeServed, second)
	}
	f.Observe(0, OutcomeFailed, second)
	for i := range under {
		under[i].Release(second)
	}
	if got := share(); got != firstShare {
		t.Errorf("idle after a failure: share %v, want %v", got, firstShare)
	}
	f.Returned(0)
	if got := share(); got != 1 {
		t.Errorf("returned again: share %v, want all for the first", got)
	}
}

// A metrics scrape and /admin/workers read every holder repeatedly. Reading must not begin the slow start of a holder
// to which no request could be sent yet.
func TestLookingAtAHolderDoesNotBeginItsRamp(t *testing.T) {
	f := returned()
	for at := second; at <= 60*second; at += second {
		if got := f.Snapshot().Share(0, at); got != firstShare {
			t.Fatalf("looked at after %d s: share %v, want %v", at/second, got, firstShare)
		}
	}
	if got := shareBeyond(f, 0, 1, "", 60*second); got != firstShare {
		t.Errorf("the first request finds share %v, want %v", got, firstShare)
	}
	if got := f.Snapshot().Share(0, 60*second+int64(rampTime)/2); math.Abs(got-(1+firstShare)/2) > 1e-9 {
		t.Errorf("half the ramp later: share %v", got)
	}
}

func TestALimitedHolderStartsSlowlyWhenTheLimitEnds(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	f.Limit(0, "", 40*second, second)
	for at := second; at < 40*second; at += second {
		f.Snapshot().Share(0, at)
		if bar := barOf(f, 0, 1, "y", at); bar != BarLimited {
			t.Fatalf("after %d s: bar %d", at/second, bar)
		}
	}
	if got := shareBeyond(f, 0, 1, "x", 40*second); barOf(f, 0, 1, "x", 40*second) != BarNone || got != firstShare {
		t.Errorf("at the end of the limit: %+v", got)
	}
}

func TestAStandingAllocatesNothing(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	f.ObserveScope(0, 1, OutcomeFailed, second)
	f.Limit(0, "x", 10*second, second)
	if n := testing.AllocsPerRun(100, func() {
		f.Snapshot().Standing(0, 1, "y", second)
		f.ObserveScope(0, 2, OutcomeServed, second)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
