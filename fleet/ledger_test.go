package fleet

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// one returns a fleet of one worker with 1,000 blocks of 16 tokens. Its prompts take a millisecond for ten tokens.
func one(t *testing.T) *Fleet {
	t.Helper()
	f := New(Config{Timing: Timing{Base: 20, Token: 0.1}})
	facts := serving("m", 1)
	facts.BlocksPerRank, facts.BlockSize = 1000, 16
	f.Put("http://a", facts)
	return f
}

const ms = int64(time.Millisecond)

// whole is the work of a prompt without a cached block.
func whole(tokens int) Work {
	return Work{UncachedTokens: tokens, PromptTokens: tokens, ContextBlocks: (tokens + 15) / 16}
}

func TestThePromptThatIsComputedCountsLessAndLess(t *testing.T) {
	f := one(t)
	s := f.Snapshot()
	var first, second Reservation
	f.Reserve(&first, 0, whole(1000), 0)
	f.Reserve(&second, 0, whole(1000), 50*ms)
	pending := func(at int64) int64 { return s.LoadAt(0, at).PendingTokens }
	if got := pending(0); got != 2000 {
		t.Errorf("immediately after the dispatch %d tokens are left, want 2000", got)
	}
	half := pending(51 * ms)
	if half < 1450 || half > 1550 {
		t.Errorf("half way through the first prompt %d tokens are left, want about 1500", half)
	}
	if got := pending(10_000 * ms); got != 1000 {
		t.Errorf("a first prompt that takes too long leaves %d tokens, want the 1000 of the one behind it", got)
	}
	first.FirstToken(10_000 * ms)
	if got := pending(10_000 * ms); got != 1000 {
		t.Errorf("the second prompt has only begun, and %d tokens are left, want 1000", got)
	}
	if got := s.LoadAt(0, 10_050*ms).PrefillTokens; got != 1000 {
		t.Errorf("%d tokens wait for their first token, want 1000", got)
	}
	second.Release(10_060 * ms) // the client cancelled the second request, so its prompt no longer waits
	if got := s.LoadAt(0, 10_060*ms); got.PendingTokens != 0 || got.Backlog != 0 {
		t.Errorf("nothing waits, but %d tokens for %v", got.PendingTokens, got.Backlog)
	}
}

// A prompt is late if its first token takes much longer than predicted. Its delay counts as backlog until its first
// token comes.
func TestALatePromptIsWaitedFor(t *testing.T) {
	f := one(t)
	s := f.Snapshot()
	var first, second Reservation
	f.Reserve(&first, 0, whole(1000), 0)
	predicted := s.LoadAt(0, 0).Backlog
	f.Reserve(&second, 0, whole(1000), 0)
	backlog := func(at time.Duration) time.Duration { return s.LoadAt(0, int64(at)).Backlog }
	due := 3*predicted + 100*time.Millisecond
	for _, c := range []struct{ at, want time.Duration }{
		{predicted / 2, predicted * 3 / 2}, {predicted, predicted}, {due, predicted}, {due + time.Second/2, predicted + time.Second/2}, {due + time.Minute, predicted + time.Second},
	} {
		if got := backlog(c.at); (got - c.want).Abs() > time.Millisecond {
			t.Errorf("after %v the backlog is %v, want %v", c.at, got, c.want)
		}
	}
	first.FirstToken(int64(time.Hour))
	if got := backlog(time.Hour); got > 2*predicted {
		t.Errorf("after its first token the backlog is %v, want that of the second, %v", got, predicted)
	}

	// A stream with a late first text adds at most one second to the backlog of a holder that serves the requests
	// behind the stream.
	at := 2 * time.Hour
	for range 100 {
		var r Reservation
		f.Reserve(&r, 0, whole(100), int64(at))
		r.FirstToken(int64(at + 20*time.Millisecond))
		r.Release(int64(at + 500*time.Millisecond))
		at += time.Second
	}
	if got := backlog(at); got > time.Second {
		t.Errorf("one stream that waits among others that are served makes a backlog of %v", got)
	}
	if got := backlog(at + time.Hour); got > time.Second+2*predicted {
		t.Errorf("later the backlog is %v", got)
	}
	second.Release(int64(at))

	// A prompt that waits behind another request is not late while the engine computes the prompt of that request, even if
	// its answer comes in one piece.
	var piece, stream Reservation
	w := whole(50_000)
	w.Whole = true
	f.Reserve(&piece, 0, w, int64(at))
	before := backlog(at)
	f.Reserve(&stream, 0, whole(100), int64(at))
	if got := backlog(at + before/2); got > before*2/3 {
		t.Errorf("half way through an answer in one piece a backlog of %v is left of %v", got, before)
	}
}

func TestExpiryMakesNobodyLate(t *testing.T) {
	f := one(t)
	var lost, next Reservation
	f.Reserve(&lost, 0, whole(1000), 1)
	later := int64(time.Hour)
	f.Reserve(&next, 0, whole(1000), later)
	f.Expire(later)
	if got := f.Snapshot().LoadAt(0, later+1e6); got.Requests != 1 || got.Backlog > 200*time.Millisecond {
		t.Errorf("after the lost request expired: %d requests, a backlog of %v", got.Requests, got.Backlog)
	}
}

// An engine that reports absurd figures attracts no requests, and no sum overflows.
func TestAbsurdReportsDoNotOverflow(t *testing.T) {
	f := one(t)
	for _, r := range []Reported{{Running: math.MaxInt64}, {Waiting: math.MaxInt64, Running: math.MaxInt64}, {QueuedTokens: math.MaxInt64, QueueReported: true},
		{QueuedTokens: 1 << 48}, {Running: math.MinInt64, Waiting: math.MinInt64, QueuedTokens: math.MinInt64}} {
		r.At = 1000
		f.Report(0, r)
		if l := f.Snapshot().LoadAt(0, 1000); l.Requests < 0 || l.Waiting < 0 || l.PrefillTokens < 0 || l.Backlog < 0 {
			t.Errorf("%+v: %+v", r, l)
		}
	}
}

func TestBlocksThatRunningRequestsShareCountOnce(t *testing.T) {
	f := one(t)
	s := f.Snapshot()
	blocks := func() int64 { return s.Load(0).ContextBlocks }
	// A mark is a position in a prompt up to which requests may share blocks. Here there is one every 10 blocks.
	marks := func(keys ...uint64) []Mark {
		var m []Mark
		for i, k := range keys {
			m = append(m, Mark{Key: k, Blocks: int32(10 * (i + 1))})
		}
		return m
	}
	var a, b, c Reservation
	f.Reserve(&a, 0, Work{ContextBlocks: 35, Marks: marks(1, 2, 3)}, 0)
	f.Reserve(&b, 0, Work{ContextBlocks: 24, Marks: marks(1, 2)}, 0)
	if got := blocks(); got != 35+4 {
		t.Errorf("%d blocks, want 39: 20 are shared", got)
	}
	f.Reserve(&c, 0, Work{ContextBlocks: 20, Marks: marks(1, 9)}, 0)
	if got := blocks(); got != 39+10 {
		t.Errorf("%d blocks, want 49: 10 are shared", got)
	}
	a.Release(1)
	if got := blocks(); got != 34 {
		t.Errorf("%d blocks, want 34: what others have stays", got)
	}
	b.Release(1)
	c.Release(1)
	if got := blocks(); got != 0 {
		t.Errorf("%d blocks are left", got)
	}
}

func TestWhateverRequestsShareNothingIsLeft(t *testing.T) {
	f := one(t)
	random := rand.New(rand.NewPCG(1, 2))
	var requests [50]Reservation
	for step := range int64(20_000) {
		r := &requests[random.IntN(len(requests))]
		switch {
		case !r.Held():
			w := whole(random.IntN(4000))
			for at, key := NextMark(0), uint64(random.IntN(3)); at <= w.ContextBlocks; at = NextMark(at) {
				key = key*3 + uint64(random.IntN(2)) // keys are chained: after a difference all later keys differ
				w.Marks = append(w.Marks, Mark{Key: key<<20 | uint64(at), Blocks: int32(at)})
			}
			f.Reserve(r, 0, w, step)
		case random.IntN(3) == 0:
			r.FirstToken(step)
		case random.IntN(2) == 0:
			r.Tokens(random.IntN(100), step)
		default:
			r.Release(step)
		}
		if l := f.Snapshot().LoadAt(0, step); l.ContextBlocks < 0 || l.PendingTokens < 0 || l.PendingTokens > l.PrefillTokens || l.OutputTokens < 0 {
			t.Fatalf("step %d: %+v", step, l)
		}
	}
	for i := range requests {
		requests[i].Release(1 << 40)
	}
	if diff := cmp.Diff(Load{Processed: f.Snapshot().Load(0).Processed, Turns: f.Snapshot().Load(0).Turns}, f.Snapshot().Load(0)); diff != "" {
		t.Error(diff)
	}
	if n := len(f.Snapshot().state(0).work.shared); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

// An engine's events may correct its block size while requests are under way. The same mark then means more or fewer
// blocks than at the time when it was first counted.
func TestSharedBlocksAreGivenBackAsTheyWereCounted(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second int32
	}{{"smaller blocks", 1, 4}, {"larger blocks", 4, 1}} {
		t.Run(c.name, func(t *testing.T) {
			f := one(t)
			s := f.Snapshot()
			of := func(blocks int32) Work {
				return Work{ContextBlocks: int(blocks), Marks: []Mark{{Key: 7, Blocks: blocks}}}
			}
			var a, b Reservation
			f.Reserve(&a, 0, of(c.first), 0)
			f.Reserve(&b, 0, of(c.second), 0)
			a.Release(1)
			b.Release(2)
			if got := s.Load(0).ContextBlocks; got != 0 {
				t.Errorf("nothing is under way and %d blocks are counted", got)
			}
		})
	}
}

func TestMarksReachFarAndLieClose(t *testing.T) {
	at, n := 0, 0
	for ; n < MaxMarks; n++ {
		next := NextMark(at)
		if next <= at || at > 8 && next > at+at/4 {
			t.Fatalf("after place %d comes %d", at, next)
		}
		at = next
	}
	if at < 100_000 {
		t.Errorf("the last mark is at block %d", at)
	}
}

func TestAnswersGrow(t *testing.T) {
	f := one(t)
	s := f.Snapshot()
	var r Reservation
	f.Reserve(&r, 0, whole(100), 0)
	r.Tokens(5, 1) // a call before the first token is a mistake of the caller that does no harm
	r.FirstToken(2)
	r.Tokens(1, 2)
	r.Tokens(7, 3)
	r.Tokens(4, 4) // a smaller count that comes late changes nothing
	if got := s.Load(0).OutputTokens; got != 7 || r.Output() != 7 {
		t.Errorf("%d tokens on the holder, %d of the request, want 7", got, r.Output())
	}
	r.Release(5)
	if got := s.Load(0).OutputTokens; got != 0 || r.Output() != 7 {
		t.Errorf("%d tokens on the holder after the end, %d of the request, want 0 and 7", got, r.Output())
	}
}

func TestALostRequestExpires(t *testing.T) {
	f := New(Config{Expiry: time.Minute})
	f.Put("http://a", serving("m", 1))
	s := f.Snapshot()
	minute := int64(time.Minute)
	var lost, alive, waiting Reservation
	for _, r := range []*Reservation{&lost, &alive, &waiting} {
		f.Reserve(r, 0, whole(100), 1)
	}
	lost.FirstToken(1)
	alive.FirstToken(1)
	alive.Tokens(3, minute)
	if n := f.Expire(minute); n != 0 {
		t.Errorf("%d requests expired at their last moment", n)
	}
	if n := f.Expire(minute + 2); n != 2 || s.Leaked(0) != 2 {
		t.Errorf("%d requests expired, %d are counted, want 2: the silent one and the one that waits", n, s.Leaked(0))
	}
	want := Load{Requests: 1, ContextBlocks: 7, ContextTokens: 100, OutputTokens: 3, Processed: 3, Turns: 3000}
	if diff := cmp.Diff(want, s.Load(0)); diff != "" {
		t.Error(diff)
	}
	lost.Release(2 * minute) // Expire released the load of this request already: a late Release changes nothing
	waiting.FirstToken(2 * minute)
	if diff := cmp.Diff(want, s.Load(0)); diff != "" {
		t.Error(diff)
	}
	f.Reserve(&lost, 0, whole(1), 0) // the reservation may be used again
	lost.Release(0)
}

// A call of Tokens without new tokens says that bytes came: the request lives, and so does its holder.
func TestACallWithoutNewTokensIsASignOfLife(t *testing.T) {
	f := New(Config{Expiry: time.Minute})
	f.Put("http://a", serving("m", 1))
	minute := int64(time.Minute)
	var waits, runs, over Reservation
	for _, r := range []*Reservation{&waits, &runs, &over} {
		f.Reserve(r, 0, whole(100), 1)
	}
	runs.FirstToken(1)
	runs.Tokens(3, 2)
	waits.Tokens(0, minute)
	runs.Tokens(0, minute+1)
	if heard := f.Snapshot().Silence(0); heard != minute+1 {
		t.Errorf("the last sign of life came at %d, want %d", heard, minute+1)
	}
	over.Release(2)
	over.Tokens(0, 5*minute)
	if heard := f.Snapshot().Silence(0); heard > 2*minute {
		t.Error("a request that has ended gives a sign of life")
	}
	if n := f.Expire(minute + 2); n != 0 {
		t.Errorf("%d requests expired", n)
	}
	if got := f.Snapshot().Load(0); got.OutputTokens != 3 || got.Waiting != 1 {
		t.Errorf("%d tokens, %d requests wait", got.OutputTokens, got.Waiting)
	}
}

func TestWhatEnginesReportIsNotCountedTwice(t *testing.T) {
	f := one(t)
	s := f.Snapshot()
	var r Reservation
	f.Reserve(&r, 0, whole(1600), 0) // 100 of 1,000 blocks
	second := int64(time.Second)
	f.Report(0, Reported{At: second, Waiting: 1, QueuedTokens: 1600, KVUsed: 0.1})
	if got := s.LoadAt(0, second).Others; got != (Others{}) {
		t.Errorf("the engine reported only our own request, but the load of other clients is %+v", got)
	}
	f.Report(0, Reported{At: second, Running: 3, Waiting: 2, QueuedTokens: 2000, KVUsed: 0.5})
	at := func(now int64) Load { return s.LoadAt(0, now) }
	want := Others{Requests: 4, Waiting: 1, PrefillTokens: 400, ContextBlocks: 400}
	if diff := cmp.Diff(want, at(second).Others); diff != "" {
		t.Errorf("others: %s", diff)
	}
	if l := at(second); l.Requests != 5 || l.Waiting != 2 || l.PrefillTokens != 2000 || l.ContextBlocks != 500 {
		t.Errorf("both: %+v", l)
	}
	if got := at(6 * second).Others; got.Requests != 2 || got.ContextBlocks != 200 {
		t.Errorf("after half of the time in which a report counts, the load of other clients is %+v, want half of it", got)
	}
	if got := at(12 * second); got.Others != (Others{}) || got.Reported.Running != 3 {
		t.Errorf("an old report counts: %+v", got)
	}
	r.Release(0)
	if got := at(second).Others; got.Requests != 4 {
		t.Errorf("after the end of our request other clients have %d requests, want 4", got.Requests)
	}
	f.Report(0, Reported{At: 20 * second}) // the engine reports no requests, so other routers have none there
	if got := at(20 * second); got.Requests != 0 || got.ContextBlocks != 0 {
		t.Errorf("an empty engine has %+v", got)
	}
	f.Remove(0)
	if got := f.Snapshot().LoadAt(0, 20*second).Reported; got != (Reported{}) {
		t.Errorf("a removed worker still has the report %+v", got)
	}
}

func TestRequestsThatWaitUnseenAreEstimatedByOurs(t *testing.T) {
	f := one(t)
	for range 200 {
		var r Reservation
		f.Reserve(&r, 0, whole(1000), 0)
		r.Release(0)
	}
	f.Report(0, Reported{At: 1, Waiting: 3})
	if got := f.Snapshot().LoadAt(0, 1).Others.PrefillTokens; got < 2500 || got > 3000 {
		t.Errorf("three requests of others wait with %d tokens, ours have 1000", got)
	}
}

func TestPressureRisesAsACacheFills(t *testing.T) {
	f := one(t)
	s := f.Snapshot()
	pressure := func() float64 { l := s.LoadAt(0, 0); return l.Pressure() }
	if got := pressure(); got != 1 {
		t.Errorf("pressure is %v where it is not known, want 1", got)
	}
	f.SetTrust(0, TrustExact, "complete since the cache was empty")
	if got := pressure(); got != 0 {
		t.Errorf("pressure is %v in a cache whose complete history is empty, want 0", got)
	}
	for range 20 {
		f.Cached(0, 50, 0)
	}
	if got := pressure(); got > 0.01 {
		t.Errorf("pressure is %v in a cache that drops nothing", got)
	}
	for range 40 {
		f.Cached(0, 50, 50)
	}
	if got := pressure(); got < 0.9 {
		t.Errorf("pressure is %v in a cache that drops a block for each it takes", got)
	}
	f.Emptied(0)
	if got := pressure(); got > 0.01 {
		t.Errorf("pressure is %v in an empty cache", got)
	}
}

// TestACacheWhoseHistoryIsLostIsNotEmpty: the router must not take a cache for empty because messages were lost, or
// because the router started after the engine.
func TestACacheWhoseHistoryIsLostIsNotEmpty(t *testing.T) {
	f := one(t)
	pressure := func() float64 { l := f.Snapshot().LoadAt(0, 0); return l.Pressure() }
	f.SetTrust(0, TrustDegraded, "history is missing")
	f.Cached(0, 5, 0)
	if got := pressure(); got < 0.9 {
		t.Errorf("pressure is %v after the first blocks of a cache whose history is not known", got)
	}
	for range 4000 {
		f.Cached(0, 50, 0)
	}
	if got := pressure(); got > 0.01 {
		t.Errorf("pressure is %v in a cache that drops nothing", got)
	}
	f.SetTrust(0, TrustExact, "")
	for range 400 {
		f.Cached(0, 50, 50)
	}
	full := pressure()
	f.Lost(0)
	if got := pressure(); got != full || got < 0.9 {
		t.Errorf("pressure is %v after messages are lost, %v before", got, full)
	}
	f.Returned(0)
	if got := pressure(); got > 0.01 {
		t.Errorf("pressure is %v in a new process", got)
	}
	f.SetTrust(0, TrustDegraded, "")
	f.Emptied(0)
	if got := pressure(); got > 0.01 {
		t.Errorf("pressure is %v in a cache that was reset", got)
	}
	f.Remove(0)
	f.Put("http://a", serving("m", 1))
	if l := f.Snapshot().LoadAt(0, 0); l.RoomKnown {
		t.Errorf("pressure is %v of a worker that came back", l.Pressure())
	}
}

// TestAStalledEngineKeepsItsPrompts: answers in one piece have no first token. The time model alone would count their
// prompts as computed although the engine does nothing.
func TestAStalledEngineKeepsItsPrompts(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	f.Put("http://b", serving("m", 1))
	prefill := func(now int64) int64 {
		l := f.Snapshot().LoadAt(0, now)
		if (l.PrefillTokens == 0) != (l.Backlog == 0) {
			t.Errorf("%d prefill tokens take %v", l.PrefillTokens, l.Backlog)
		}
		return l.PrefillTokens
	}
	var first, second, third, stream Reservation
	now := int64(1e18)
	f.Reserve(&first, 0, Work{Whole: true, UncachedTokens: 5000, PromptTokens: 5000}, now)
	if got := prefill(now); got != 5000 {
		t.Errorf("at dispatch: %d prefill tokens, want the prompt's 5000", got)
	}
	f.Reserve(&second, 0, Work{Whole: true, UncachedTokens: 300, PromptTokens: 2000}, now+1)
	f.Reserve(&stream, 0, Work{UncachedTokens: 70, PromptTokens: 70}, now+2)
	f.Reserve(&third, 0, Work{Whole: true, UncachedTokens: 1000, PromptTokens: 1000}, now+3)
	later := now + int64(time.Minute)
	report := func(running, waiting int64, want int64) {
		t.Helper()
		f.Report(0, Reported{At: later, Running: running, Waiting: waiting})
		if got := prefill(later); got != want {
			t.Errorf("running %d, waiting %d: %d prefill tokens, want %d", running, waiting, got, want)
		}
		if o := f.Snapshot().LoadAt(0, later).Others; o.Waiting != 0 || o.PrefillTokens != 0 || o.Requests != 0 {
			t.Errorf("running %d, waiting %d: our requests are taken for others': %+v", running, waiting, o)
		}
	}
	report(0, 4, 5000+300+70+1000) // the engine computes nothing: all four prompts still count
	report(1, 3, 300+70+1000)      // the first prompt is computed, or its answer is complete
	report(3, 1, 70+1000)          // the stream has no first token yet, so its prompt counts in full
	stream.FirstToken(later)
	report(3, 1, 1000)
	report(4, 0, 0)
	report(0, 4, 5000+300+1000) // the engine preempted all requests: their prompts must be computed again
	second.FirstToken(later)
	if got := prefill(later); got != 6000 {
		t.Errorf("the second answer came: %d prefill tokens, want 6000", got)
	}
	for _, r := range []*Reservation{&first, &second, &third, &stream} {
		r.Release(later)
		r.Release(later)
	}
	if got := prefill(later); got != 0 {
		t.Errorf("after all requests ended %d prefill tokens are left, want 0", got)
	}
}
