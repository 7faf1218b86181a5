package indexer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// Clients of Dynamo and of Mooncake register each rank by a call of its own. Workers of several groups share nothing.
func TestWorkersAreRegisteredAndUnregistered(t *testing.T) {
	w := serve(t, Config{}, nil)
	for _, body := range []string{
		`{"instance_id":7,"model_name":"m","block_size":16,"dp_rank":1,"endpoint":"tcp://h:1","replay_endpoint":"tcp://h:2"}`,
		`{"instance_id":7,"model_name":"m","block_size":16,"dp_rank":0,"endpoint":"tcp://h:3"}`,
		`{"instance_id":7,"model_name":"m","block_size":16,"dp_rank":0,"endpoint":"tcp://h:4"}`,
		`{"instance_id":"x","modelname":"m","tenant_id":"t","type":"SGLang","lora_name":"sql","block_size":32,"dp_rank":2,"endpoint":"tcp://h:5","additionalsalt":"?"}`,
	} {
		if status, text := w.ask("POST", "/register", body); status != 201 {
			t.Fatalf("%s: %d %s", body, status, text)
		}
	}
	workers := w.fleet.Snapshot().Workers()
	if len(workers) != 2 {
		t.Fatalf("%d workers", len(workers))
	}
	a, b := workers[0].Facts, workers[1].Facts
	if a.Engine != fleet.EngineVLLM || a.Ranks != 2 || a.FirstRank != 0 || len(a.Events) != 2 || a.Events[0].Endpoint != "tcp://h:4" || a.Events[1].Replay != "tcp://h:2" {
		t.Errorf("%+v", a)
	}
	if b.Engine != fleet.EngineSGLang || b.FirstRank != 2 || b.Ranks != 1 || len(b.Models) != 2 || b.Models[1].Parent != b.Models[0].ID || b.BlockSize != 32 {
		t.Errorf("%+v", b)
	}
	p := prompt(1, 200)
	for _, one := range workers {
		for _, h := range one.Holders {
			w.fleet.SetTrust(h, fleet.TrustExact, "test")
			w.store(h, p[:64], kvindex.Stored{})
		}
	}
	if got := w.scores("/query", `{"model":"m","token_ids":`+list(p)+`}`); len(got) != 1 || got["7"]["1"] != 64 {
		t.Errorf("without a group: %v", got)
	}
	if got := w.scores("/query", `{"model":"m","routing_group":"t","token_ids":`+list(p)+`}`); len(got) != 1 || got["x"]["2"] != 64 {
		t.Errorf("in group t: %v", got)
	}
	for _, c := range []struct {
		body   string
		status int
	}{
		{`{"instance_id":7,"model_name":"other","endpoint":"tcp://h:1"}`, 409},
	} {
		if status, text := w.ask("POST", "/register", c.body); status != c.status {
			t.Errorf("%s: %d %s", c.body, status, text)
		}
	}
	for _, c := range []struct {
		body   string
		status int
		left   int
	}{
		{`{"instance_id":7,"model_name":"other"}`, 404, 2},
		{`{"instance_id":7,"dp_rank":5}`, 404, 2},
		{`{"instance_id":7,"model_name":"m","dp_rank":0}`, 200, 2},
		{`{"instance_id":7,"model_name":"m","dp_rank":1}`, 200, 1},
		{`{"instance_id":"x","tenant_id":"t"}`, 200, 0},
		{`{"instance_id":"x"}`, 404, 0},
	} {
		status, text := w.ask("POST", "/unregister", c.body)
		if left := len(w.fleet.Snapshot().Workers()); status != c.status || left != c.left {
			t.Errorf("%s: %d %s, %d workers are left, want %d and %d", c.body, status, text, left, c.status, c.left)
		}
	}
}

func TestARegistrationIsBoundedAndEndsWithItsLease(t *testing.T) {
	w := serve(t, Config{}, func(p *Parts) {
		p.Listed = func(worker string) string {
			if worker == "http://listed" {
				return "list"
			}
			return ""
		}
		p.ListedAll = func() map[string]string { return nil }
	})
	w.stop() // the running service would end leases by the real clock
	g := w.service.registry
	now := time.Unix(1000, 0)
	r := func(worker string, lease time.Duration) *registration {
		return &registration{worker: worker, models: []fleet.Model{{ID: "m"}}, ranks: 1, lease: lease}
	}
	for _, one := range []*registration{r("short", time.Second), r("long", time.Minute), r("stays", 0)} {
		if _, err := g.register(one, now); err != nil {
			t.Fatal(err)
		}
	}
	generation := w.fleet.Snapshot().Generation()
	if _, err := g.register(r("short", 3*time.Second), now); err != nil || w.fleet.Snapshot().Generation() != generation {
		t.Errorf("a renewed lease changes the fleet: %v", err)
	}
	if listed, err := g.register(r("http://listed/", 0), now); !listed || err != nil || g.has("http://listed") {
		t.Errorf("a worker of another list: %v, %v", listed, err)
	}
	g.expire(now.Add(2 * time.Second))
	g.expire(now.Add(30 * time.Second))
	if g.len() != 2 || g.has("short") {
		t.Errorf("%d are registered", g.len())
	}
	g.expire(now.Add(time.Hour))
	if g.len() != 1 || len(w.fleet.Snapshot().Workers()) != 1 {
		t.Errorf("%d are registered", g.len())
	}
	for i := range maxRegistered {
		g.entries[fmt.Sprint(i)] = &entry{}
	}
	if _, err := g.register(r("more", 0), now); !errors.Is(err, errFull) {
		t.Errorf("one more than may be: %v", err)
	}
	clear(g.entries)
}

// Discovery may find a worker just when the worker's lease ends, or when a program unregisters it. The worker is then
// discovery's, and stays.
func TestAWorkerThatIsListedOutlivesItsRegistration(t *testing.T) {
	var listed atomic.Bool
	w := serve(t, Config{}, func(p *Parts) {
		p.Listed = func(string) string {
			if listed.Load() {
				return "list"
			}
			return ""
		}
		p.ListedAll = func() map[string]string { return nil }
	})
	g, now := w.service.registry, time.Now()
	r := &registration{worker: "http://a", models: []fleet.Model{{ID: "m"}}, ranks: 1, lease: time.Hour}
	if _, err := g.register(r, now); err != nil {
		t.Fatal(err)
	}
	w.worker("http://a", nil)
	listed.Store(true)
	if err := g.unregister(&removal{worker: "http://a"}); !errors.Is(err, errAbsent) || !strings.Contains(err.Error(), "lists it itself (list)") {
		t.Error(err)
	}
	if n := len(w.fleet.Snapshot().Workers()); n != 1 {
		t.Errorf("%d workers in the fleet after /unregister, want 1", n)
	}
	g.expire(now.Add(2 * time.Hour))
	if n := len(w.fleet.Snapshot().Workers()); g.len() != 0 || n != 1 {
		t.Errorf("%d registered workers, want 0, and %d in the fleet, want 1", g.len(), n)
	}
}

// A router registers with a lease what a program registered for good. When the router ends, the program's worker is
// still there, with all its ranks.
func TestALeaseNeitherEndsNorNarrowsARegistrationForGood(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.stop() // the running service would end leases by the real clock
	g, now := w.service.registry, time.Unix(1000, 0)
	register := func(r *registration) bool {
		t.Helper()
		r.worker, r.models = "http://a", []fleet.Model{{ID: "m"}}
		listed, err := g.register(r, now)
		if err != nil {
			t.Fatal(err)
		}
		return listed
	}
	source := func(rank int, endpoint string) []fleet.EventSource {
		return []fleet.EventSource{{Rank: rank, Endpoint: endpoint}}
	}
	leased := func() *registration {
		return &registration{ranks: 1, sources: source(0, "tcp://other:1"), lease: 30 * time.Second}
	}
	register(leased())
	register(&registration{ranks: 1, lease: time.Second}) // another router's lease is shorter
	if g.expire(now.Add(20 * time.Second)); g.len() != 1 {
		t.Error("a short lease ends a long one")
	}
	register(&registration{sources: source(0, "tcp://h:1")})
	register(&registration{sources: source(1, "tcp://h:2")})
	generation := w.fleet.Snapshot().Generation()
	if !register(leased()) {
		t.Error("a registration that changes nothing is not answered as one")
	}
	f := w.fleet.Snapshot().Workers()[0].Facts
	if w.fleet.Snapshot().Generation() != generation || f.Ranks != 2 || len(f.Events) != 2 || f.Events[0].Endpoint != "tcp://h:1" {
		t.Errorf("a lease changes the worker: %+v", f)
	}
	if g.expire(now.Add(time.Hour)); g.len() != 1 {
		t.Error("a lease ends a registration for good")
	}
}

// One rank of a worker that was registered as a whole can be unregistered, also one between two others: the service
// then answers nothing about this rank. A registration of the whole worker brings it back.
func TestARankLeavesAWholeWorker(t *testing.T) {
	w := serve(t, Config{}, nil)
	whole := &registration{worker: "http://a", models: []fleet.Model{{ID: "m"}}, blockSize: 16, ranks: 3, sources: []fleet.EventSource{
		{Rank: 0, Endpoint: "tcp://h:1"}, {Rank: 1, Endpoint: "tcp://h:2"}, {Rank: 2, Endpoint: "tcp://h:3"}}}
	p := prompt(1, 200)
	ranks := func() (scored, listed []int) {
		for rank := range 3 {
			if _, has := w.scores("/query", `{"model":"m","instances":["http://a"],"token_ids":`+list(p)+`}`)["http://a"][fmt.Sprint(rank)]; has {
				scored = append(scored, rank)
			}
		}
		for _, r := range w.service.list().workers[0].ranks {
			listed = append(listed, r.rank)
		}
		return scored, listed
	}
	check := func(when string, want ...int) {
		t.Helper()
		if scored, listed := ranks(); !slices.Equal(scored, want) || !slices.Equal(listed, want) {
			t.Errorf("%s: an answer has the ranks %v, the list has %v, want %v", when, scored, listed, want)
		}
	}
	for range 2 {
		if status, text := w.ask("POST", "/register", string(whole.appendTo(nil)), "Content-Type", protobuf); status != 201 {
			t.Fatalf("%d %s", status, text)
		}
		check("the whole worker", 0, 1, 2)
		if status, text := w.ask("POST", "/unregister", `{"instance_id":"http://a","dp_rank":1}`); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		check("without rank 1", 0, 2)
	}
	gaps := &w.service.registry.gaps
	if n := gaps.Load(); n != 1 {
		t.Errorf("%d workers lack a rank", n)
	}
	if status, text := w.ask("POST", "/unregister", `{"instance_id":"http://a"}`); status != 200 || gaps.Load() != 0 {
		t.Errorf("%d %s: %d workers lack a rank, and there is none", status, text, gaps.Load())
	}
}

// What leaves a worker leaves the snapshot before /unregister is answered: the last of its ranks, or its adapter.
func TestWhatIsUnregisteredLeavesTheSnapshotAtOnce(t *testing.T) {
	w := serve(t, Config{}, nil)
	for _, what := range []string{`"dp_rank":0,"endpoint":"tcp://h:1"`, `"dp_rank":1,"endpoint":"tcp://h:2"`, `"dp_rank":0,"endpoint":"tcp://h:1","lora_name":"sql"`} {
		if status, text := w.ask("POST", "/register", `{"instance_id":"a","model_name":"m",`+what+`}`); status != 201 {
			t.Fatalf("%s: %d %s", what, status, text)
		}
	}
	check := func(when string, ranks int, adapter bool) {
		t.Helper()
		snap := w.fleet.Snapshot()
		one := snap.Workers()[0]
		if _, has := snap.Pool("sql"); has != adapter || one.Facts.Ranks != ranks || len(one.Holders) != ranks || len(one.Facts.Events) != ranks {
			t.Errorf("%s: the snapshot has %+v, adapter %v", when, one.Facts, has)
		}
	}
	check("registered", 2, true)
	for _, c := range []struct {
		what    string
		ranks   int
		adapter bool
	}{{`"dp_rank":1`, 1, true}, {`"lora_name":"sql"`, 1, false}} {
		if status, text := w.ask("POST", "/unregister", `{"instance_id":"a",`+c.what+`}`); status != 200 {
			t.Fatalf("%s: %d %s", c.what, status, text)
		}
		check(c.what, c.ranks, c.adapter)
	}
}

// A process that sends requests to its workers must know more of them than their events.
func TestAProcessThatRoutesTakesNoRegistrations(t *testing.T) {
	w := serve(t, Config{}, func(p *Parts) { p.Routes = true })
	if status, text := w.ask("POST", "/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1"}`); status != 400 {
		t.Errorf("%d %s", status, text)
	}
}

// A worker whose ports change at each start is registered with new endpoints for as long as the service runs.
func TestEndpointsThatAWorkerNoLongerHasAreForgotten(t *testing.T) {
	w := serve(t, Config{}, nil)
	g, now := w.service.registry, time.Unix(1000, 0)
	for port := range 100 {
		r := &registration{worker: "a", models: []fleet.Model{{ID: "m"}}, ranks: 2, sources: []fleet.EventSource{
			{Rank: 0, Endpoint: fmt.Sprintf("tcp://h:%d", 1+2*port)}, {Rank: 1, Endpoint: fmt.Sprintf("tcp://h:%d", 2+2*port)}}}
		if _, err := g.register(r, now); err != nil {
			t.Fatal(err)
		}
	}
	has := g.endpoints.registered
	if len(has) != 2 || has["tcp://h:199"] != "a" || has["tcp://h:200"] != "a" {
		t.Errorf("after new registrations the registry knows %d endpoints, want 2", len(has))
	}
	if err := g.unregister(&removal{worker: "a", rankPlusOne: 1}); err != nil || len(has) != 1 || has["tcp://h:200"] != "a" {
		t.Errorf("after a rank left, the registry knows %d endpoints, want 1: %v", len(has), err)
	}
}

// When a router ends, the leases of its workers end together. The registry then makes one snapshot of the fleet, so
// that nobody waits long for its lock.
func TestLeasesThatEndTogetherMakeOneSnapshot(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.stop() // the running service would end leases by the real clock
	g, now := w.service.registry, time.Unix(1000, 0)
	for i := range 50 {
		r := &registration{worker: fmt.Sprint(i), models: []fleet.Model{{ID: "m"}}, ranks: 1, lease: time.Second}
		if i%10 == 0 {
			r.lease = time.Hour
		}
		if _, err := g.register(r, now); err != nil {
			t.Fatal(err)
		}
	}
	before := w.fleet.Snapshot().Generation()
	g.expire(now.Add(time.Minute))
	if s := w.fleet.Snapshot(); s.Generation() != before+1 || len(s.Workers()) != 5 || g.len() != 5 {
		t.Errorf("%d snapshots; %d workers in the fleet and %d in the registry, want 5", s.Generation()-before, len(s.Workers()), g.len())
	}
	g.expire(now.Add(time.Minute))
	if n := w.fleet.Snapshot().Generation() - before; n != 1 {
		t.Errorf("%d snapshots, though no more lease ended", n)
	}
}

// together is a log that holds back each line until n of them have come.
type together struct {
	slog.Handler
	n    int64
	came atomic.Int64
	all  chan struct{}
}

func (l *together) Enabled(context.Context, slog.Level) bool { return true }

func (l *together) Handle(context.Context, slog.Record) error {
	if l.came.Add(1) == l.n {
		close(l.all)
	}
	select {
	case <-l.all:
	case <-time.After(time.Minute): // the test fails
	}
	return nil
}

// A router registers its workers by several calls at the same time. These share snapshots, because no call holds the
// registry's lock while a snapshot is made. Each call returns when the fleet shows its worker.
func TestRegistrationsThatComeTogetherShareASnapshot(t *testing.T) {
	const callers = 16
	w := serve(t, Config{}, func(p *Parts) { p.Log = slog.New(&together{n: callers, all: make(chan struct{})}) })
	before := w.fleet.Snapshot().Generation()
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			name := fmt.Sprintf("http://w-%d", caller)
			r := &registration{worker: name, models: []fleet.Model{{ID: "m"}}, ranks: 2}
			if _, err := w.service.registry.register(r, time.Unix(1000, 0)); err != nil {
				t.Error(err)
			}
			if !slices.ContainsFunc(w.fleet.Snapshot().Workers(), func(w *fleet.Worker) bool { return w.URL == name && len(w.Holders) == 2 }) {
				t.Errorf("the fleet does not show %s", name)
			}
		})
	}
	all.Wait()
	if n := w.fleet.Snapshot().Generation() - before; n != 1 {
		t.Errorf("%d snapshots for %d registrations", n, callers)
	}
}

// The log names the group of a worker as answers do.
func TestTheLogNamesTheGroupAsAnswersDo(t *testing.T) {
	log := new(testenv.Buffer)
	w := serve(t, Config{}, func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(log, nil)) })
	for worker, group := range map[string]string{"a": "", "b": "other"} {
		r := &registration{worker: worker, group: group, models: []fleet.Model{{ID: "m"}}, ranks: 1}
		if _, err := w.service.register(r); err != nil {
			t.Fatal(err)
		}
		if err := w.service.registry.unregister(&removal{worker: worker, group: group}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"registered\" worker=a model=m group=default", "unregistered\" worker=a group=default", "unregistered\" worker=b group=other"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
}

// A first rank without a number of ranks said nothing, and the endpoint counted for rank 0.
func TestAFirstRankNeedsTheNumberOfRanks(t *testing.T) {
	w := serve(t, Config{}, nil)
	const body = `{"instance_id":"a","model_name":"m","endpoint":"tcp://h:1","dp_start":4`
	if status, text := w.ask("POST", "/register", body+`}`); status != 400 || !strings.Contains(text, "dp_start (first_rank) needs dp_size") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.ask("POST", "/register", body+`,"dp_rank":5,"dp_size":2}`); status != 201 {
		t.Errorf("%d %s", status, text)
	}
}

// A lease is a day at most, over HTTP as over gRPC.
func TestALeaseIsADayAtMost(t *testing.T) {
	for seconds, want := range map[int]time.Duration{0: 0, 30: 30 * time.Second, 86400: 24 * time.Hour, 86401: 24 * time.Hour, 1 << 30: 24 * time.Hour} {
		r, err := readRegistration(fmt.Appendf(nil, `{"instance_id":"a","model_name":"m","endpoint":"tcp://h:1","lease_seconds":%d}`, seconds))
		if err != nil || r.lease != want {
			t.Errorf("over HTTP, a lease of %d s is %v, want %v (%v)", seconds, r.lease, want, err)
		}
		var decoded registration
		if err := decoded.decode((&registration{lease: time.Duration(seconds) * time.Second}).appendTo(nil)); err != nil || decoded.lease != want {
			t.Errorf("in a message, a lease of %d s is %v, want %v (%v)", seconds, decoded.lease, want, err)
		}
	}
}

// A worker that is registered again without a block size keeps the one that is known.
func TestARegistrationWithoutABlockSizeKeepsTheKnownOne(t *testing.T) {
	w := serve(t, Config{}, nil)
	for _, c := range []struct{ given, want int }{{32, 32}, {0, 32}, {64, 64}, {0, 64}} {
		r := &registration{worker: "a", models: []fleet.Model{{ID: "m"}}, blockSize: c.given, ranks: 1, sources: []fleet.EventSource{{Endpoint: fmt.Sprintf("tcp://h:%d", c.want+c.given)}}}
		if _, err := w.service.register(r); err != nil {
			t.Fatal(err)
		}
		if is := w.fleet.Snapshot().Workers()[0].Facts.BlockSize; is != c.want {
			t.Errorf("registered with a block size of %d: it is %d, want %d", c.given, is, c.want)
		}
	}
}
