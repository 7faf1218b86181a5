package indexer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// asker is a router that asks a service.
type asker struct {
	fleet  *fleet.Fleet
	router *warmpath.Router
	client *Client
	stop   func()
}

// newAsker returns a router with a client of the service at url, which logs to logs. The client runs until the test
// ends, or until stop.
func newAsker(t *testing.T, url string, change func(*ClientConfig, *warmpath.Options), logs ...io.Writer) *asker {
	t.Helper()
	a := &asker{fleet: fleet.New(fleet.Config{})}
	cfg, o := DefaultClientConfig(), warmpath.Options{Fleet: a.fleet, RemoteIndex: true}
	cfg.URL = url
	if change != nil {
		change(&cfg, &o)
	}
	var err error
	if a.router, err = warmpath.New(o); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(logs...), nil))
	if a.client, err = NewClient(cfg, a.router, nil, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.client.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	a.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(a.stop)
	return a
}

// put puts a worker into the router's fleet.
func (a *asker) put(url string, f fleet.Facts) *fleet.Worker {
	id := a.fleet.Put(url, f)
	return a.fleet.Snapshot().ByID(id)
}

// trusts reports whether a holder has that trust.
func (a *asker) trusts(h fleet.Holder, want fleet.Trust) bool {
	got, _ := a.fleet.Snapshot().Trust(h)
	return got == want
}

// match asks about a prompt, and returns the matched tokens of a decision's holder.
func (a *asker) match(t *testing.T, req *warmpath.Request) (*warmpath.Decision, error) {
	t.Helper()
	p := a.router.Prepare(req)
	defer p.Recycle()
	var failed error
	lookups := p.Lookups()
	for i := range lookups {
		failed = errors.Join(failed, a.client.Match(t.Context(), &lookups[i]))
	}
	d, err := p.Explain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d, failed
}

func facts(url string) fleet.Facts {
	return fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m"}, {ID: "sql", Parent: "m"}}, BlockSize: 16, Ranks: 2, FirstRank: 1,
		Events: []fleet.EventSource{{Rank: 1, Endpoint: url}}}
}

// The client registers the router's workers, takes the trust of each rank from the service, and the matches.
func TestARouterUsesTheIndexOfAService(t *testing.T) {
	w := serve(t, Config{Key: "secret-key"}, nil)
	a := newAsker(t, w.url, func(c *ClientConfig, _ *warmpath.Options) { c.Key = "secret-key" })
	a.fleet.Put("http://x", fleet.Facts{Models: []fleet.Model{{ID: "other"}}, BlockSize: 16}) // other ids of holders than the service's
	mine := a.put("http://a", facts("tcp://127.0.0.1:9"))
	a.fleet.Put("http://b", facts("tcp://127.0.0.1:10"))
	testenv.Until(t, "the workers are registered", func() bool { return w.service.registry.len() == 3 })
	var there *fleet.Worker
	for _, one := range w.fleet.Snapshot().Workers() {
		if one.URL == "http://a" {
			there = one
		}
	}
	if f := there.Facts; len(f.Models) != 2 || f.Version != "0.32.0" || f.Ranks != 2 || f.FirstRank != 1 || f.Events[0].Endpoint != "tcp://127.0.0.1:9" {
		t.Errorf("registered as %+v", f)
	}
	w.fleet.SetTrust(there.Holders[1], fleet.TrustExact, "test")
	w.router.SetAhead(there.Holders[0], 1)
	testenv.Until(t, "the trust is the service's", func() bool { return a.trusts(mine.Holders[1], fleet.TrustExact) })
	if _, why := a.fleet.Snapshot().Trust(mine.Holders[1]); why != "test" {
		t.Errorf("the reason of the trust is %q", why)
	}
	if n := a.router.Ahead(mine.Holders[0]); n != 1 {
		t.Errorf("the look-ahead is %d", n)
	}
	p := prompt(1, 200)
	w.store(there.Holders[1], p[:128], kvindex.Stored{})
	w.store(there.Holders[1], p[:64], kvindex.Stored{Scope: block.Scope{LoRA: "sql", Salt: "s"}})
	for _, c := range []struct {
		req  warmpath.Request
		want int
	}{{warmpath.Request{Model: "m", Tokens: p}, 128}, {warmpath.Request{Model: "sql", Salt: "s", Tokens: p}, 64}, {warmpath.Request{Model: "m", Tokens: prompt(2, 200)}, 0}} {
		d, err := a.match(t, &c.req)
		if err != nil || d.MatchTokens != c.want || c.want > 0 && (d.Holder != mine.Holders[1] || d.Trust != fleet.TrustExact) {
			t.Errorf("%s, want %d tokens: %v", d, c.want, err)
		}
	}
	a.fleet.Put("http://new", facts("tcp://127.0.0.1:11")) // the fleet changes between two polls
	if d, err := a.match(t, &warmpath.Request{Model: "m", Tokens: p}); err != nil || d.MatchTokens != 128 {
		t.Errorf("%s: %v", d, err)
	}
}

// While the service does not answer, load alone decides, and no request waits.
func TestARouterDecidesByLoadWhileTheServiceIsDown(t *testing.T) {
	w := serve(t, Config{}, nil)
	address := strings.TrimPrefix(w.url, "http://")
	a := newAsker(t, w.url, nil)
	mine := a.put("http://a", facts("tcp://127.0.0.1:9"))
	testenv.Until(t, "the service is known", func() bool { return a.client.known.Load() != nil && w.service.registry.len() == 1 })
	w.stop()
	testenv.Until(t, "the service's end is noticed", func() bool { return a.trusts(mine.Holders[0], fleet.TrustNone) })
	if d, err := a.match(t, &warmpath.Request{Model: "m", Tokens: prompt(1, 200)}); !errors.Is(err, errDown) || d.MatchTokens != 0 {
		t.Errorf("%s: %v", d, err)
	}
	again := serve(t, Config{}, nil) // a new service, which knows nothing
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: again.service.routes, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	defer func() {
		_ = server.Close()
		<-done
	}()
	testenv.Until(t, "the worker is registered again", func() bool { return again.service.registry.len() == 1 })
	testenv.Until(t, "the trust is the service's again", func() bool { return a.trusts(mine.Holders[0], fleet.TrustApproximate) })
}

func TestARouterTakesNoAnswersAboutOtherKeys(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", func(f *fleet.Facts) { f.BlockSize = 64 })
	for name, algorithm := range map[string]block.Algorithm{"another size": block.XXH3, "another algorithm": block.FNV1a} {
		t.Run(name, func(t *testing.T) {
			a := newAsker(t, w.url, func(c *ClientConfig, o *warmpath.Options) { c.Register, o.Algorithm = false, algorithm })
			mine := a.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
			if algorithm == block.XXH3 {
				testenv.Until(t, "the router takes the size", func() bool {
					_, size, _ := a.router.Keying("m")
					return size == 64 && a.trusts(mine.Holders[0], fleet.TrustExact)
				})
				return
			}
			testenv.Until(t, "the difference is noticed", func() bool {
				return a.client.known.Load() != nil && a.trusts(mine.Holders[0], fleet.TrustNone)
			})
			if _, err := a.match(t, &warmpath.Request{Model: "m", Tokens: prompt(1, 200)}); !errors.Is(err, warmpath.ErrOtherKeys) {
				t.Error(err)
			}
		})
	}
}

// What answers at the address may be anything.
func TestAnAnswerThatIsNoAnswerIsAnError(t *testing.T) {
	q := &warmpath.Lookup{Model: "m", BlockSize: 16, Keys: []block.Key{1, 2}}
	v := &view{holders: map[string][]fleet.Holder{"a": {5, 6}}, first: map[string]int{"a": 1}}
	for name, c := range map[string]struct {
		answer []byte
		bad    bool
		want   int
	}{
		"good":           {(&answer{blockSize: 16, scores: []score{{worker: "a", rank: 2, matched: 32}, {worker: "b"}, {worker: "a"}, {worker: "a", rank: 9}}}).appendTo(nil), false, 1},
		"no scores":      {(&answer{blockSize: 16}).appendTo(nil), false, 0},
		"nothing":        {nil, true, 0},
		"another size":   {(&answer{blockSize: 32, scores: []score{{worker: "a", rank: 1, matched: 32}}}).appendTo(nil), true, 0},
		"not a message":  {[]byte("<html>"), true, 0},
		"a broken score": {append((&answer{blockSize: 16}).appendTo(nil), 0x22, 1, 0xff), true, 0},
	} {
		q.Matches = q.Matches[:0]
		if err := v.matches(c.answer, q); (err != nil) != c.bad || !c.bad && len(q.Matches) != c.want {
			t.Errorf("%s: %v, %v", name, q.Matches, err)
		}
	}
	if q.Matches = q.Matches[:0]; v.matches((&answer{blockSize: 16, scores: []score{{worker: "a", rank: 2, matched: 32}}}).appendTo(nil), q) != nil || q.Matches[0].Holder != 6 || q.Matches[0].Blocks != 2 {
		t.Errorf("%v", q.Matches)
	}
	hostile := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	hostile.Config.Protocols = new(http.Protocols)
	hostile.Config.Protocols.SetUnencryptedHTTP2(true)
	hostile.Start()
	defer hostile.Close()
	a := newAsker(t, hostile.URL, nil)
	h := a.put("http://a", facts("tcp://127.0.0.1:9")).Holders[0]
	testenv.Until(t, "the answer is refused", func() bool { return a.trusts(h, fleet.TrustNone) })
}

// The service lists a worker once for each of its groups. A router asks about the default group only.
func TestOtherGroupsOfAWorkerChangeNothing(t *testing.T) {
	ranks := func(trust fleet.Trust) []listedRank {
		return []listedRank{{rank: 1, trust: trust, why: "listed"}, {rank: 2, trust: trust, why: "listed"}}
	}
	one := newAsker(t, "http://127.0.0.1:1", nil)
	one.stop() // only the test applies lists
	own := one.put("http://a", facts("tcp://127.0.0.1:9"))
	one.client.apply(one.fleet.Snapshot(), &listing{workers: []listedWorker{
		{worker: "http://a", model: "m", group: defaultGroup, engineBlockSize: 16, ranks: ranks(fleet.TrustDegraded)},
		{worker: "http://a", model: "m", group: "g2", engineBlockSize: 32, ranks: ranks(fleet.TrustExact)},
	}})
	if now := one.fleet.Snapshot(); !one.trusts(own.Holders[0], fleet.TrustDegraded) || now.ByID(own.ID).Facts.BlockSize != 16 {
		trust, _ := now.Trust(own.Holders[0])
		t.Errorf("trust %v, blocks of %d tokens: another group counts", trust, now.ByID(own.ID).Facts.BlockSize)
	}
}

// A worker's events show the size of its blocks at the service. The router takes it, and keeps its own if none is
// known.
func TestARouterTakesTheEnginesBlockSizeFromTheService(t *testing.T) {
	a := newAsker(t, "http://127.0.0.1:1", nil)
	a.stop() // only the test applies lists
	w := a.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
	for _, c := range []struct{ listed, want int }{{0, 16}, {32, 32}, {0, 32}, {64, 64}} {
		list := &listing{workers: []listedWorker{{worker: "http://a", model: "m", group: defaultGroup, engineBlockSize: c.listed, ranks: []listedRank{{}}}}}
		a.client.apply(a.fleet.Snapshot(), list)
		if is := a.fleet.Snapshot().ByID(w.ID).Facts.BlockSize; is != c.want {
			t.Errorf("the service lists blocks of %d tokens: the router has %d, want %d", c.listed, is, c.want)
		}
	}
}

// registering is a service that gives a status to each registration, and an empty list of workers.
func registering(t *testing.T, status func(n int64) int) (url string, asked, looks *atomic.Int64) {
	asked, looks = new(atomic.Int64), new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/register" {
			w.WriteHeader(status(asked.Add(1)))
			return
		}
		looks.Add(1)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, asked, looks
}

// A worker that the service refuses is logged once, and is not registered again at every look.
func TestARefusedWorkerIsLoggedOnce(t *testing.T) {
	url, asked, looks := registering(t, func(int64) int { return http.StatusBadRequest })
	log := new(testenv.Buffer)
	a := newAsker(t, url, nil, log)
	a.put("http://w0", facts("tcp://127.0.0.1:9"))
	testenv.Until(t, "four looks", func() bool { return looks.Load() >= 4 })
	a.stop()
	if n := strings.Count(log.String(), "does not take a worker"); n != 1 || asked.Load() > 2 {
		t.Errorf("%d lines, %d registrations in %d looks; want 1 line", n, asked.Load(), looks.Load())
	}
}

// A service that is busy, or fails, refuses no worker: the router tries again at the next look, until it succeeds.
func TestABusyServiceIsTriedAgain(t *testing.T) {
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInternalServerError} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			url, asked, looks := registering(t, func(n int64) int {
				if n <= 3 {
					return status
				}
				return http.StatusCreated
			})
			log := new(testenv.Buffer)
			a := newAsker(t, url, nil, log)
			a.put("http://w0", facts("tcp://127.0.0.1:9"))
			testenv.Until(t, "the registration", func() bool { return strings.Contains(log.String(), `msg="all workers are registered`) })
			a.stop()
			text := log.String()
			if strings.Contains(text, "does not take a worker") || strings.Count(text, "not all workers are registered") != 1 || asked.Load() < 4 {
				t.Errorf("%d registrations in %d looks:\n%s", asked.Load(), looks.Load(), text)
			}
		})
	}
}
