package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// gate is a worker that answers when the test lets it, and records the requests.
type gate struct {
	open chan struct{} // receives one value for each answer that may be sent
	mu   sync.Mutex
	came []string // the value of the field user of each request, in the order of arrival
	lies string   // the user for whose answers the worker reports 2,000,000,000 tokens
	long string   // the user whose answers are streams of 300 tokens, without usage
}

func newGate() *gate { return &gate{open: make(chan struct{}, 1000)} }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var request struct{ User string }
	_ = json.Unmarshal(body, &request)
	g.mu.Lock()
	g.came = append(g.came, request.User)
	g.mu.Unlock()
	select {
	case <-g.open:
	case <-r.Context().Done():
		return
	}
	if g.lies != "" && g.lies == request.User {
		fmt.Fprint(w, `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2000000000}}`)
		return
	}
	if g.long != "" && g.long == request.User {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 300 {
			fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"hi"}}]}`+"\n\n")
		}
		fmt.Fprint(w, `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
		return
	}
	plain(w, r)
}

func (g *gate) seen() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.came)
}

// queued returns a gateway in front of g. The gateway sends g one request at a time.
func queued(t *testing.T, g *gate, change func(*queue.Config)) *fixture {
	t.Helper()
	return serve(t, func(s *settings) {
		s.queue, s.most = queue.DefaultConfig(), 1
		s.queue.Order = queue.FCFS
		if change != nil {
			change(&s.queue)
		}
	}, worker(t, g.ServeHTTP))
}

// asking is a request under way.
type asking struct {
	cancel context.CancelFunc
	done   chan struct{}
	resp   *http.Response
	text   string
	err    error
}

// ask sends a request of user, with further fields and headers. It does not wait for the answer.
func (f *fixture) ask(t *testing.T, user, fields string, headers ...string) *asking {
	ctx, cancel := context.WithCancel(t.Context())
	a := &asking{cancel: cancel, done: make(chan struct{})}
	go func() { // this goroutine ends with the request; the test waits for done
		defer close(a.done)
		a.resp, a.text, a.err = f.try(ctx, fmt.Sprintf(`{"model":"m","user":%q,"messages":[{"role":"user","content":"hi"}]%s}`, user, fields), headers...)
	}()
	t.Cleanup(func() { cancel(); <-a.done })
	return a
}

// line waits until n requests wait.
func (f *fixture) line(t *testing.T, n int) {
	t.Helper()
	testenv.Until(t, fmt.Sprint(n, " requests wait"), func() bool {
		_, lines := f.Queue()
		waiting := 0
		for _, l := range lines {
			waiting += l.Requests
		}
		return waiting == n
	})
}

func (a *asking) code() string {
	<-a.done
	var answer struct{ Error struct{ Code string } }
	_ = json.Unmarshal([]byte(a.text), &answer)
	return answer.Error.Code
}

func (a *asking) status() int {
	<-a.done
	if a.resp == nil {
		return 0
	}
	return a.resp.StatusCode
}

// occupied returns a gateway with a queue in front of one worker. The worker has a request of user, and takes no other
// request before the test opens g.
func occupied(t *testing.T, user string, change func(*queue.Config)) (g *gate, f *fixture, first *asking) {
	t.Helper()
	g = newGate()
	f = queued(t, g, change)
	first = f.ask(t, user, "")
	testenv.Until(t, "the first is at the worker", func() bool { return len(g.seen()) == 1 })
	return g, f, first
}

func TestRequestsWaitUntilThereIsRoom(t *testing.T) {
	g, f, first := occupied(t, "a", nil)
	second := f.ask(t, "b", "")
	f.line(t, 1)
	third := f.ask(t, "c", "")
	f.line(t, 2)
	if order, lines := f.Queue(); order != queue.FCFS || lines[0].Model != "m" || lines[0].Bytes == 0 || lines[0].Oldest.IsZero() {
		t.Errorf("order %s, lines %+v", order, lines)
	}
	for range 3 {
		g.open <- struct{}{}
	}
	for _, a := range []*asking{first, second, third} {
		if a.status() != http.StatusOK {
			t.Errorf("%d %v %s", a.status(), a.err, a.text)
		}
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, g.seen()); diff != "" {
		t.Error(diff)
	}
	f.last(t, 3)
	for _, rec := range f.Telemetry.Last(3) {
		if waited := rec.QueueMS > 0; waited != (rec.ID != 1) {
			t.Errorf("request %d waited %v ms", rec.ID, rec.QueueMS)
		}
	}
	f.line(t, 0)
	f.idle(t)
}

func TestWithoutAQueueASaturatedFleetRefuses(t *testing.T) {
	g, f, _ := occupied(t, "a", func(c *queue.Config) { c.Order = queue.Off })
	if a := f.ask(t, "b", ""); a.status() != http.StatusTooManyRequests || a.code() != "saturated" {
		t.Errorf("%d %s", a.status(), a.text)
	}
	g.open <- struct{}{}
}

func TestAFullQueueAnswers429(t *testing.T) {
	g, f, _ := occupied(t, "a", func(c *queue.Config) { c.MaxRequests = 1 })
	f.ask(t, "b", "")
	f.line(t, 1)
	a := f.ask(t, "c", "")
	if a.status() != http.StatusTooManyRequests || a.code() != "queue_full" {
		t.Errorf("%d %s", a.status(), a.text)
	}
	if s, err := strconv.Atoi(a.resp.Header.Get("Retry-After")); err != nil || s < 1 {
		t.Errorf("Retry-After %q", a.resp.Header.Get("Retry-After"))
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
}

func TestAFullFairQueueAnswersTheHeavyTenantsNewestWith429(t *testing.T) {
	g, f, _ := occupied(t, "a", func(c *queue.Config) { c.Order, c.MaxRequests = queue.Fair, 2 })
	older := f.ask(t, "older", "", "Authorization", "Bearer heavy")
	f.line(t, 1)
	newest := f.ask(t, "newest", "", "Authorization", "Bearer heavy")
	f.line(t, 2)
	light := f.ask(t, "light", "", "Authorization", "Bearer light")
	if newest.status() != http.StatusTooManyRequests || newest.code() != "queue_full" {
		t.Errorf("the heavy tenant's newest: %d %s", newest.status(), newest.text)
	}
	if s, err := strconv.Atoi(newest.resp.Header.Get("Retry-After")); err != nil || s < 1 {
		t.Errorf("Retry-After %q", newest.resp.Header.Get("Retry-After"))
	}
	for range 3 {
		g.open <- struct{}{}
	}
	if older.status() != http.StatusOK || light.status() != http.StatusOK {
		t.Errorf("the others: %d, %d", older.status(), light.status())
	}
	f.line(t, 0)
	f.idle(t)
}

func TestPatienceEnds(t *testing.T) {
	g, f, _ := occupied(t, "a", nil)
	for _, c := range []struct{ patience, code string }{{"20ms", "queue_timeout"}, {"0.02", "queue_timeout"}, {"soon", "invalid_request"}, {"-1s", "invalid_request"}} {
		a := f.ask(t, "b", "", "X-Warmpath-Max-Wait", c.patience)
		if a.code() != c.code {
			t.Errorf("%s: %d %s", c.patience, a.status(), a.text)
		}
		if c.code == "queue_timeout" && (a.status() != http.StatusTooManyRequests || a.resp.Header.Get("Retry-After") == "") {
			t.Errorf("%s: %d, Retry-After %q", c.patience, a.status(), a.resp.Header.Get("Retry-After"))
		}
	}
	f.line(t, 0)
	g.open <- struct{}{}
}

func TestAClientThatLeavesLeavesTheQueue(t *testing.T) {
	g, f, _ := occupied(t, "a", nil)
	gone := f.ask(t, "gone", "")
	f.line(t, 1)
	stays := f.ask(t, "stays", "")
	f.line(t, 2)
	gone.cancel()
	f.line(t, 1)
	g.open <- struct{}{}
	g.open <- struct{}{}
	if stays.status() != http.StatusOK {
		t.Errorf("%d %s", stays.status(), stays.text)
	}
	if diff := cmp.Diff([]string{"a", "stays"}, g.seen()); diff != "" {
		t.Error(diff)
	}
	f.idle(t)
}

func TestADrainSendsWaitingRequestsAway(t *testing.T) {
	g, f, first := occupied(t, "a", nil)
	second := f.ask(t, "b", "")
	f.line(t, 1)
	f.Drain()
	if second.status() != http.StatusServiceUnavailable || second.code() != "draining" || second.resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", second.status(), second.text)
	}
	if third := f.ask(t, "c", ""); third.code() != "draining" {
		t.Errorf("one that comes later: %d %s", third.status(), third.text)
	}
	g.open <- struct{}{}
	if first.status() != http.StatusOK {
		t.Errorf("the one being served: %d %s", first.status(), first.text)
	}
	f.idle(t)
}

func TestPrioritiesAreServedInOrder(t *testing.T) {
	g, f, _ := occupied(t, "first", func(c *queue.Config) { c.Order = queue.Priority })
	var all []*asking
	for i, user := range []string{"low", "high", "middle"} {
		all = append(all, f.ask(t, user, fmt.Sprintf(`,"priority":%d`, []int{9, -5, 0}[i])))
		f.line(t, i+1)
	}
	for range 4 {
		g.open <- struct{}{}
	}
	for _, a := range all {
		<-a.done
	}
	if diff := cmp.Diff([]string{"first", "high", "middle", "low"}, g.seen()); diff != "" {
		t.Error(diff)
	}
}

func TestALightTenantIsServedBesideAHeavyOne(t *testing.T) {
	g, f, _ := occupied(t, "heavy", func(c *queue.Config) { c.Order, c.Quantum = queue.Fair, 1 })
	var all []*asking
	for i := range 8 {
		all = append(all, f.ask(t, "heavy", "", "Authorization", "Bearer heavy"))
		f.line(t, i+1)
	}
	all = append(all, f.ask(t, "light", "", "Authorization", "Bearer light"))
	f.line(t, 9)
	if _, lines := f.Queue(); len(lines[0].Tenants) != 2 {
		t.Errorf("tenants %+v", lines[0].Tenants)
	}
	for range 10 {
		g.open <- struct{}{}
	}
	for _, a := range all {
		<-a.done
	}
	if at := slices.Index(g.seen(), "light"); at < 0 || at > 3 {
		t.Errorf("the light tenant was served as number %d: %v", at, g.seen())
	}
}

// A worker may report any length for its answer. The tenant is charged at most for a length that is possible.
func TestATenantPaysForNoAnswerThatItCannotHave(t *testing.T) {
	g := newGate()
	g.lies = "a"
	f := queued(t, g, func(c *queue.Config) { c.Order = queue.Fair })
	if at := f.served(t, g, `,"max_tokens":10`); at > 3 {
		t.Errorf("the tenant was served as number %d of those who waited: %v", at, g.seen())
	}
}

// Engines report the usage of a stream only if the client asks for it. Without the usage, the tenant pays for the
// tokens that the gateway counted.
func TestATenantPaysForAStreamWithoutUsage(t *testing.T) {
	g := newGate()
	g.long = "a"
	f := queued(t, g, func(c *queue.Config) { c.Order, c.Quantum = queue.Fair, 100 })
	if at := f.served(t, g, `,"stream":true`); at != 4 {
		t.Errorf("the tenant was served as number %d of those who waited: %v", at, g.seen())
	}
}

// served lets tenant a send one request. Then five requests wait: the third request is tenant a's, and the other four
// are tenant b's. served returns at which position, from 0 on, a's waiting request was served.
func (f *fixture) served(t *testing.T, g *gate, fields string) int {
	t.Helper()
	ask := func(tenant string) *asking { return f.ask(t, tenant, fields, "Authorization", "Bearer "+tenant) }
	all := []*asking{ask("a")}
	testenv.Until(t, "the first is at the worker", func() bool { return len(g.seen()) == 1 })
	for i, tenant := range []string{"b", "b", "a", "b", "b"} {
		all = append(all, ask(tenant))
		f.line(t, i+1)
	}
	for range all {
		g.open <- struct{}{}
	}
	for _, a := range all {
		if a.status() != http.StatusOK {
			t.Errorf("%d %s", a.status(), a.text)
		}
	}
	return slices.Index(g.seen()[1:], "a")
}

// The router has no limit of its own, but the engines report that they are full. Requests must wait.
func TestRequestsWaitWhileEnginesSayThatTheyAreFull(t *testing.T) {
	g := newGate()
	f := serve(t, func(s *settings) {
		s.queue = queue.DefaultConfig()
		s.queue.Order = queue.FCFS
	}, worker(t, g.ServeHTTP))
	report := func(r fleet.Reported) {
		r.At = time.Now().UnixNano()
		f.fleet.Report(0, r)
	}
	report(fleet.Reported{Running: 8, KVUsed: 0.99})
	a := f.ask(t, "a", "")
	f.line(t, 1)
	report(fleet.Reported{Running: 7, KVUsed: 0.5})
	g.open <- struct{}{}
	if a.status() != http.StatusOK {
		t.Errorf("%d %s", a.status(), a.text)
	}
	report(fleet.Reported{Running: 8, Waiting: 9})
	b := f.ask(t, "b", "")
	f.line(t, 1)
	report(fleet.Reported{})
	g.open <- struct{}{}
	if b.status() != http.StatusOK {
		t.Errorf("%d %s", b.status(), b.text)
	}
}

func TestWaitingRequestsEndWhenNoWorkerCanServeThem(t *testing.T) {
	g, f, _ := occupied(t, "a", nil)
	b := f.ask(t, "b", "")
	f.line(t, 1)
	f.fleet.SetHealth(f.fleet.Snapshot().Workers()[0].ID, false, "gone")
	if b.status() != http.StatusServiceUnavailable || b.code() != "no_worker" {
		t.Errorf("%d %s", b.status(), b.text)
	}
	g.open <- struct{}{}
}

// fragile is a policy that panics while breaks is true.
type fragile struct{ breaks *atomic.Bool }

func (f fragile) Choose(*policy.Query, []policy.Candidate) policy.Pick {
	if f.breaks.Load() {
		panic("on purpose")
	}
	return policy.Pick{Branch: policy.BranchMatchUnused}
}
func (fragile) Routed(*policy.Query, *policy.Candidate) {}
func (fragile) Finished(*policy.Finished)               {}
func (fragile) Forget(fleet.Holder)                     {}

func TestAPanicEndsOneWaitingRequestAndNothingElse(t *testing.T) {
	g := newGate()
	var breaks atomic.Bool
	f := serve(t, func(s *settings) {
		s.queue, s.most, s.policy = queue.DefaultConfig(), 1, "fragile"
		s.queue.Order = queue.FCFS
		s.specs = []policy.Spec{{Name: "fragile", Chooser: func() policy.Chooser { return fragile{&breaks} }}}
	}, worker(t, g.ServeHTTP))
	f.ask(t, "a", "")
	testenv.Until(t, "the first is at the worker", func() bool { return len(g.seen()) == 1 })
	b := f.ask(t, "b", "")
	f.line(t, 1)
	breaks.Store(true)
	g.open <- struct{}{}
	if b.status() != http.StatusInternalServerError {
		t.Errorf("%d %s", b.status(), b.text)
	}
	breaks.Store(false)
	g.open <- struct{}{}
	if resp, text := f.post(t, chat); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d %s", resp.StatusCode, text)
	}
	if text := f.metrics(t); !strings.Contains(text, "warmpath_panics_total 1") {
		t.Error("the panic is not counted")
	}
}

// The first waiting request can only be served by a busy rank. It must not hold up requests for other ranks.
func TestAnotherRankThanTheFirstsIsNotHeldUp(t *testing.T) {
	g := newGate()
	f := serve(t, func(s *settings) {
		s.queue, s.most, s.facts.Ranks = queue.DefaultConfig(), 1, 2
		s.queue.Order = queue.FCFS
	}, worker(t, g.ServeHTTP))
	f.ask(t, "zero", "", "X-Data-Parallel-Rank", "0")
	testenv.Until(t, "one is at the worker", func() bool { return len(g.seen()) == 1 })
	f.ask(t, "zero again", "", "X-Data-Parallel-Rank", "0")
	f.line(t, 1)
	f.ask(t, "one", "", "X-Data-Parallel-Rank", "1")
	testenv.Until(t, "rank 1 is asked", func() bool { return len(g.seen()) == 2 })
	if got := g.seen()[1]; got != "one" {
		t.Errorf("%q was served while rank 0 was busy", got)
	}
	for range 3 {
		g.open <- struct{}{}
	}
	f.idle(t)
}

// A request that asks for no rank may go to any rank. It waits only if all ranks are busy.
func TestARequestThatAsksForNoRankWaitsOnlyIfAllRanksAreBusy(t *testing.T) {
	g := newGate()
	f := serve(t, func(s *settings) {
		s.queue, s.most, s.facts.Ranks = queue.DefaultConfig(), 1, 2
		s.queue.Order, s.queue.MaxWait = queue.FCFS, 5*time.Second
	}, worker(t, g.ServeHTTP))
	zero := f.ask(t, "zero", "", "X-Data-Parallel-Rank", "0")
	testenv.Until(t, "rank 0 is busy", func() bool { return len(g.seen()) == 1 })
	either := f.ask(t, "either", "")
	testenv.Until(t, "the second request is at the worker or failed", func() bool {
		select {
		case <-either.done:
			return true
		default:
			return len(g.seen()) == 2
		}
	})
	if len(g.seen()) != 2 {
		t.Fatalf("rank 1 is free, and a request that asks for no rank waits for rank 0: %d %s", either.status(), either.text)
	}
	again := f.ask(t, "either again", "")
	f.line(t, 1) // now both ranks are busy
	for range 3 {
		g.open <- struct{}{}
	}
	for _, a := range []*asking{zero, either, again} {
		if a.status() != http.StatusOK {
			t.Errorf("%d %s", a.status(), a.text)
		}
	}
	f.idle(t)
}

// Many clients send requests to two workers that take three requests each. Some clients leave and some lose patience.
// Every request must be answered, except if its client left. No worker may get more than three requests at a time, and
// no load may be left behind.
func TestNothingIsLostInTheQueue(t *testing.T) {
	for _, order := range []string{queue.FCFS, queue.Fair, queue.Shortest} {
		var mu sync.Mutex
		most := int64(0)
		var f *fixture
		answer := func(w http.ResponseWriter, r *http.Request) {
			snap := f.fleet.Snapshot()
			mu.Lock()
			most = max(most, snap.Load(0).Requests, snap.Load(1).Requests)
			mu.Unlock()
			takes(r, time.Duration(rand.IntN(3))*time.Millisecond)
			plain(w, r)
		}
		f = serve(t, func(s *settings) {
			s.queue, s.most = queue.DefaultConfig(), 3
			s.queue.Order, s.queue.MaxRequests = order, 40
		}, worker(t, answer), worker(t, answer))
		var clients sync.WaitGroup
		counts := map[string]int{}
		for i := range 120 {
			clients.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if i%5 == 0 {
					time.AfterFunc(time.Duration(rand.IntN(20))*time.Millisecond, cancel)
				}
				headers := []string{"Authorization", "Bearer " + strconv.Itoa(i%7)}
				if i%7 == 0 {
					headers = append(headers, "X-Warmpath-Max-Wait", "5ms")
				}
				resp, text, err := f.try(ctx, chat, headers...)
				outcome := "gone"
				switch {
				case err == nil && resp.StatusCode == http.StatusOK:
					outcome = "served"
				case err == nil && resp.StatusCode == http.StatusTooManyRequests && strings.Contains(text, "queue_"):
					outcome = "refused"
				case i%5 != 0:
					t.Errorf("%v %s", err, text)
				}
				mu.Lock()
				counts[outcome]++
				mu.Unlock()
			})
		}
		clients.Wait()
		f.line(t, 0)
		f.idle(t)
		if most > 3 || counts["served"] == 0 {
			t.Errorf("%s: %v, at most %d at a worker", order, counts, most)
		}
		if a, _ := f.post(t, chat); a.StatusCode != http.StatusOK {
			t.Errorf("%s: afterwards %d", order, a.StatusCode)
		}
	}
}

func TestTheOrderMayChangeWhileRequestsWait(t *testing.T) {
	g, f, _ := occupied(t, "first", nil)
	var all []*asking
	for i, user := range []string{"low", "high"} {
		all = append(all, f.ask(t, user, fmt.Sprintf(`,"priority":%d`, []int{9, -5}[i])))
		f.line(t, i+1)
	}
	c := queue.DefaultConfig()
	c.Order = queue.Priority
	f.UseQueue(c)
	for range 3 {
		g.open <- struct{}{}
	}
	for _, a := range all {
		if a.status() != http.StatusOK {
			t.Errorf("%d %s", a.status(), a.text)
		}
	}
	if diff := cmp.Diff([]string{"first", "high", "low"}, g.seen()); diff != "" {
		t.Error(diff)
	}
}

func TestALineWithoutModelAndRequestsIsDropped(t *testing.T) {
	g, f, first := occupied(t, "a", nil)
	second := f.ask(t, "b", "")
	f.line(t, 1)
	third := f.ask(t, "c", "")
	f.line(t, 2)
	third.cancel()
	f.line(t, 1)
	f.fleet.Remove(fleet.WorkerID(0))
	g.open <- struct{}{}
	for _, a := range []*asking{first, second} {
		if a.status() == 0 {
			t.Errorf("a request got no answer: %v", a.err)
		}
	}
	testenv.Until(t, "the line is dropped", func() bool {
		_, lines := f.Queue()
		return len(lines) == 0
	})
}

func TestAQueueMayBeTurnedOnAndOff(t *testing.T) {
	off := func(c *queue.Config) { c.Order = queue.Off }
	g, f, first := occupied(t, "first", off)
	if a := f.ask(t, "refused", ""); a.code() != "saturated" {
		t.Errorf("without a queue: %d %s", a.status(), a.text)
	}
	c := queue.DefaultConfig()
	c.Order = queue.FCFS
	f.UseQueue(c)
	waits := f.ask(t, "waits", "")
	f.line(t, 1)
	off(&c)
	f.UseQueue(c)
	if a := f.ask(t, "refused", ""); a.code() != "saturated" {
		t.Errorf("turned off again: %d %s", a.status(), a.text)
	}
	if order, _ := f.Queue(); order != queue.Off {
		t.Errorf("order %s", order)
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	if first.status() != http.StatusOK || waits.status() != http.StatusOK {
		t.Errorf("the one at the worker %d, the one that waited %d %s", first.status(), waits.status(), waits.text)
	}
	f.idle(t)
}
