package discovery

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestAHungControllerDelaysFewRequests sends 500 requests a second for 5 s. The first 32 requests wait for the
// controller. After that, one request a second waits.
func TestAHungControllerDelaysFewRequests(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.takes = time.Hour })
		var delayed atomic.Int64
		var requests sync.WaitGroup
		for range 2500 {
			requests.Go(func() {
				began := time.Now()
				c.Cached(t.Context(), []block.Token{1})
				if time.Since(began) > 0 {
					delayed.Add(1)
				}
			})
			testenv.Pass(2 * time.Millisecond)
		}
		requests.Wait()
		if n := delayed.Load(); n > 32+4 {
			t.Errorf("%d of 2500 requests were delayed", n)
		}
	})
}

// TestLookupsUnderWayAreBounded: a request beyond the bound does no lookup and does not wait. It gets the result of the
// last poll.
func TestLookupsUnderWayAreBounded(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.takes, ctl.layout = 100*time.Millisecond, `{"layout_info":{"one":["x",256]}}` })
		ctl.requests()
		var found, waited atomic.Int64
		var requests sync.WaitGroup
		for range 100 {
			requests.Go(func() {
				began := time.Now()
				got := c.Cached(t.Context(), []block.Token{1})
				if time.Since(began) > 0 {
					waited.Add(1)
				}
				if len(got) == 2 && got[0].Tokens == 256 {
					found.Add(1)
				}
			})
		}
		requests.Wait()
		if asked := len(ctl.requests()); asked != maxLookups || waited.Load() != maxLookups || found.Load() != maxLookups {
			t.Errorf("%d lookups; %d requests waited, %d got the answer", asked, waited.Load(), found.Load())
		}
		ctl.requests()
		if got := c.Cached(t.Context(), []block.Token{1}); got[0].Tokens != 256 {
			t.Errorf("%+v: no lookup though none is under way", got)
		}
	})
}

// TestOneRequestTriesTheController: after a pause without lookups, one request does a lookup. After the controller
// answered, all requests do lookups.
func TestOneRequestTriesTheController(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ask := func(n int) (lookups int) {
			ctl.requests()
			var requests sync.WaitGroup
			for range n {
				requests.Go(func() { c.Cached(t.Context(), []block.Token{1}) })
			}
			requests.Wait()
			for _, asked := range ctl.requests() {
				if strings.HasPrefix(asked, "POST /lookup") {
					lookups++
				}
			}
			return lookups
		}
		ctl.set(func() { ctl.takes = 300 * time.Millisecond })
		if n := ask(1); n != 1 {
			t.Fatalf("%d lookups", n)
		}
		testenv.Pass(lookupRest)
		if n := ask(20); n != 1 {
			t.Errorf("%d lookups of 20 requests after the rest", n)
		}
		testenv.Pass(lookupRest)
		ctl.set(func() { ctl.takes = 100 * time.Millisecond })
		if n := ask(20); n != 1 {
			t.Errorf("%d lookups of 20 requests after the second rest", n)
		}
		if n := ask(20); n != 20 {
			t.Errorf("%d lookups of 20 requests after an answer", n)
		}
	})
}

// TestAnAnswerOfALookupIsBounded: a request waits until the answer is decoded, so a large answer is refused.
func TestAnAnswerOfALookupIsBounded(t *testing.T) {
	scene(t, prefix, func(t *testing.T, ctl *lmcacheController, c *LMCache) {
		ctl.set(func() { ctl.layout = `{"layout_info":{"one":["x",256]}}` + strings.Repeat(" ", 300<<10) })
		expect(t, c.Cached(t.Context(), []block.Token{1}), fleet.Cached{Worker: 0, Keys: 40}, fleet.Cached{Worker: 2, Keys: 31})
	})
}
