package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// lmcacheController is a controller in memory. Its delays are in the virtual time of a synctest bubble.
type lmcacheController struct {
	mu      sync.Mutex
	workers string        // answer of /controller/workers; "" refuses the connection
	layout  string        // answer of /lookup
	takes   time.Duration // time before the controller answers
	asked   []string      // method, path, authorization and body of each request
}

func (c *lmcacheController) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	body, _ := io.ReadAll(r.Body)
	c.asked = append(c.asked, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Authorization"), body)))
	answer, takes := c.workers, c.takes
	if r.URL.Path == "/lookup" {
		answer = c.layout
	}
	c.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if answer == "" {
		return nil, errors.New("connection refused")
	}
	status := http.StatusOK
	if strings.HasPrefix(answer, "Internal") {
		status = http.StatusInternalServerError
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer)), Header: http.Header{}}, nil
}

// requests returns the requests since the last call.
func (c *lmcacheController) requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.asked
	c.asked = nil
	return asked
}

func (c *lmcacheController) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// threeWorkers is the answer of a controller with which three instances have registered; one of them has two ranks.
const threeWorkers = `{"workers":[
	{"instance_id":"one","worker_id":0,"ip":"10.0.0.1","port":5001,"key_count":40,"last_heartbeat_time":1.5},
	{"instance_id":"two","worker_id":0,"ip":"10.0.0.9","port":5001,"key_count":30},
	{"instance_id":"two","worker_id":1,"ip":"10.0.0.9","port":5002,"key_count":31},
	{"instance_id":"far","worker_id":0,"ip":"10.9.9.9","port":5001,"key_count":7}],"total_count":4}`

// scene runs test with a client of the controller and a fleet of three workers. Two of them share a host.
func scene(t *testing.T, change func(*LMCacheConfig), test func(t *testing.T, ctl *lmcacheController, c *LMCache)) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		for _, url := range []string{"http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.2:8001/"} {
			f.Put(url, fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
		}
		config := LMCacheConfig{
			URL: "http://localhost:9000", PollInterval: 10 * time.Second, Timeout: 2 * time.Second,
			Workers: map[string]string{"two": "http://10.0.0.2:8001/v1"},
		}
		if change != nil {
			change(&config)
		}
		ctl := &lmcacheController{workers: threeWorkers, layout: `{"event_id":"x","layout_info":{}}`}
		c := NewLMCache(config, f, &http.Client{Transport: ctl}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		test(t, ctl, c)
		cancel()
		running.Wait()
	})
}

func prefix(c *LMCacheConfig) { c.Lookup = true }

func expect(t *testing.T, got []fleet.Cached, want ...fleet.Cached) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOccupancyIsPolledAndPlaced(t *testing.T) {
	scene(t, nil, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		// "one" is found by its address, "two" by the map. "far" belongs to no worker.
		expect(t, c.Cached(t.Context(), []block.Token{1}), fleet.Cached{Worker: 0, Keys: 40}, fleet.Cached{Worker: 2, Keys: 31})
		if diff := cmp.Diff([]string{"GET /controller/workers"}, ctl.requests()); diff != "" {
			t.Error(diff)
		}
		ctl.set(func() { ctl.workers = strings.Replace(threeWorkers, "40", "41", 1) })
		testenv.Pass(9 * time.Second)
		expect(t, c.Cached(t.Context(), nil), fleet.Cached{Worker: 0, Keys: 40}, fleet.Cached{Worker: 2, Keys: 31})
		testenv.Pass(2 * time.Second)
		expect(t, c.Cached(t.Context(), nil), fleet.Cached{Worker: 0, Keys: 41}, fleet.Cached{Worker: 2, Keys: 31})
	})
}

func TestAnAddressOfTwoWorkersIsNotUsed(t *testing.T) {
	scene(t, nil, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.workers = strings.Replace(threeWorkers, "10.9.9.9", "10.0.0.2", 1) })
		testenv.Pass(11 * time.Second)
		expect(t, c.Cached(t.Context(), nil), fleet.Cached{Worker: 0, Keys: 41 - 1}, fleet.Cached{Worker: 2, Keys: 31})
	})
}

func TestTheFleetMayChange(t *testing.T) {
	scene(t, nil, func(t *testing.T, _ *lmcacheController, c *LMCache) {
		c.fleet.Remove(0)
		id := c.fleet.Put("http://10.9.9.9:8000", fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
		expect(t, c.Cached(t.Context(), nil), fleet.Cached{Worker: 2, Keys: 31}, fleet.Cached{Worker: id, Keys: 7})
	})
}

func TestAControllerThatStopsIsForgottenAfterThreePolls(t *testing.T) {
	scene(t, nil, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.workers = "" })
		testenv.Pass(31 * time.Second)
		if len(c.Cached(t.Context(), nil)) != 2 {
			t.Error("forgotten after three polls failed")
		}
		testenv.Pass(3 * time.Second)
		expect(t, c.Cached(t.Context(), nil))
		ctl.set(func() { ctl.workers = threeWorkers })
		testenv.Pass(10 * time.Second)
		if len(c.Cached(t.Context(), nil)) != 2 {
			t.Error("not known again though it answers")
		}
	})
}

func TestALookupFindsTheTokensOfEachWorker(t *testing.T) {
	scene(t, func(c *LMCacheConfig) { prefix(c); c.APIKey = "secret" }, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.requests()
		ctl.set(func() {
			ctl.layout = `{"event_id":"x","layout_info":{"one":["LocalCPUBackend",256],"two":["LocalCPUBackend",768],"far":["x",900]}}`
		})
		expect(t, c.Cached(t.Context(), []block.Token{1, 128000, 3}), fleet.Cached{Worker: 0, Keys: 40, Tokens: 256}, fleet.Cached{Worker: 2, Keys: 31, Tokens: 768})
		if diff := cmp.Diff([]string{`POST /lookup Bearer secret {"tokens":[1,128000,3]}`}, ctl.requests()); diff != "" {
			t.Error(diff)
		}
		// The result of a lookup is not kept for the next request. A request without tokens causes no lookup.
		expect(t, c.Cached(t.Context(), nil), fleet.Cached{Worker: 0, Keys: 40}, fleet.Cached{Worker: 2, Keys: 31})
		if asked := ctl.requests(); len(asked) != 0 {
			t.Errorf("asked %v", asked)
		}
	})
}

func TestALookupHolds200Milliseconds(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.takes, ctl.layout = 500*time.Millisecond, `{"layout_info":{"one":["x",256]}}` })
		ctl.requests()
		began := time.Now()
		occupancy := []fleet.Cached{{Worker: 0, Keys: 40}, {Worker: 2, Keys: 31}}
		expect(t, c.Cached(t.Context(), []block.Token{1}), occupancy...)
		if took := time.Since(began); took != maxLookup {
			t.Errorf("took %v", took)
		}
		// No lookup follows for a second, so that a controller that does not answer does not delay every request by 200
		// ms.
		ctl.set(func() { ctl.takes = 0 })
		expect(t, c.Cached(t.Context(), []block.Token{1}), occupancy...)
		if asked := ctl.requests(); len(asked) != 1 {
			t.Errorf("asked %v", asked)
		}
		testenv.Pass(lookupRest)
		expect(t, c.Cached(t.Context(), []block.Token{1}), fleet.Cached{Worker: 0, Keys: 40, Tokens: 256}, occupancy[1])
	})
}

// TestTheLogShowsOnlyChanges: if lookups fail while polls work, there is one log line, not one for each lookup.
func TestTheLogShowsOnlyChanges(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		var log strings.Builder
		c.log = slog.New(slog.NewTextHandler(&log, nil))
		ctl.set(func() { ctl.layout = "Internal Server Error" })
		for range 60 {
			c.Cached(t.Context(), []block.Token{1})
			testenv.Pass(lookupRest)
		}
		ctl.set(func() { ctl.layout = `{"layout_info":{}}` })
		for range 60 {
			c.Cached(t.Context(), []block.Token{1})
			testenv.Pass(lookupRest)
		}
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "does not answer") {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	})
}

func TestAClientThatGoesAwaySaysNothingOfTheController(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.takes, ctl.layout = 100*time.Millisecond, `{"layout_info":{"one":["x",256]}}` })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		c.Cached(ctx, []block.Token{1})
		if got := c.Cached(t.Context(), []block.Token{1}); got[0].Tokens != 256 {
			t.Errorf("%+v: the next request was not looked up", got)
		}
	})
}

func TestBadAnswersAreNoAnswers(t *testing.T) {
	for _, layout := range []string{"Internal Server Error", "[]", `{"layout_info":{"one":["x"]}}`, `{"layout_info":{"one":["x","y"]}}`, `{"layout_info":7}`, ""} {
		scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
			ctl.set(func() { ctl.layout = layout })
			expect(t, c.Cached(t.Context(), []block.Token{1}), fleet.Cached{Worker: 0, Keys: 40}, fleet.Cached{Worker: 2, Keys: 31})
		})
	}
}

func TestHostsAreFound(t *testing.T) {
	for url, want := range map[string]string{"http://10.0.0.1:8000": "10.0.0.1", "https://a/base": "a", "http://[fd00::1]:80": "fd00::1", "http://[fd00::1]": "fd00::1", "x": ""} {
		if got := hostOf(url); got != want {
			t.Errorf("%s: %q", url, got)
		}
	}
}

func FuzzAnswersAreReadOrRefused(f *testing.F) {
	f.Add([]byte(threeWorkers))
	f.Add([]byte(`{"event_id":"x","layout_info":{"one":["LocalCPUBackend",256],"two":["x",-1]}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		instances, err := decodeWorkers(answer)
		for _, in := range instances {
			if err != nil || in.keys < 0 {
				t.Fatalf("%+v beside %v", in, err)
			}
		}
		found, err := decodeLookup(answer)
		for _, c := range found {
			if err != nil || c.tokens <= 0 {
				t.Fatalf("%+v beside %v", c, err)
			}
		}
	})
}
