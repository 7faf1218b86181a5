package snapshot

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// manyBlocks is the number of blocks of each of manyEngines engines in the benchmarks.
const manyEngines, manyBlocks = 8, 125_000

// many starts engines with a long history.
func many(b *testing.B, replay int) (engines []*engine) {
	b.Helper()
	for i := range manyEngines {
		engines = append(engines, newEngine(b, fmt.Sprintf("http://e:%d", i+1), i+1, replay))
	}
	return engines
}

// followedFromTheStart is a router that has followed the engines from their start.
func followedFromTheStart(b *testing.B, engines []*engine) *site {
	b.Helper()
	a := newSite(b, Config{}, engines...)
	for _, e := range engines {
		testenv.Until(b, "the router subscribes", func() bool { return e.Stats().Subscribers == 1 })
	}
	for _, e := range engines {
		e.cache(b, manyBlocks/promptBlocks)
		testenv.Until(b, "the events to be applied", func() bool { return a.match(e, e.at-1) > 0 })
	}
	a.awaitExact(engines...)
	return a
}

// BenchmarkWarmStart measures the time from a router's start until trust in all holders is exact. The first case is the
// baseline: the router reads the engines' histories. "live" has engines without a replay, each of which sends a message
// as soon as the router has subscribed, and about 20 a second until it is exact.
func BenchmarkWarmStart(b *testing.B) {
	for _, c := range []struct {
		name   string
		replay int
		peer   bool
	}{{"replay", 10_000, false}, {"peer", 10_000, true}, {"live", 0, true}} {
		b.Run(c.name, func(b *testing.B) {
			engines := many(b, c.replay)
			a := followedFromTheStart(b, engines)
			var times []time.Duration
			for b.Loop() {
				cfg := Config{}
				if c.peer {
					cfg.Peers = []string{a.admin.URL}
				}
				began := time.Now()
				s := newSite(b, cfg, engines...)
				if c.replay == 0 {
					for _, e := range engines {
						testenv.Until(b, "the router follows", func() bool { return e.Stats().Subscribers == 2 })
						e.cache(b, 1)
					}
				}
				testenv.Until(b, "all trusts are exact", func() bool {
					for _, e := range engines {
						if c.replay == 0 && s.trusts()[e.url] != fleet.TrustExact {
							e.cache(b, 1) // the first message may have come before the subscription
						}
					}
					return len(s.trusts()) == manyEngines && allExact(s)
				})
				times = append(times, time.Since(began))
				s.stop()
				if c.replay == 0 {
					for _, e := range engines {
						testenv.Until(b, "the router leaves", func() bool { return e.Stats().Subscribers == 1 })
					}
				}
			}
			slices.Sort(times)
			b.ReportMetric(times[len(times)/2].Seconds(), "s-median")
			b.ReportMetric(times[len(times)-1].Seconds(), "s-worst")
		})
	}
}

func allExact(s *site) bool {
	for _, t := range s.trusts() {
		if t.String() != "exact" {
			return false
		}
	}
	return true
}

// BenchmarkReadersWhileGiving compares the latency of decisions at 2,000 a second while the router gives its index, one
// snapshot after the other, with the latency while it gives none. Windows of both kinds take turns.
func BenchmarkReadersWhileGiving(b *testing.B) {
	engines := many(b, 10_000)
	a := followedFromTheStart(b, engines)
	give := func() {
		resp, err := http.Get(a.admin.URL + Path)
		if err != nil {
			b.Error(err)
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	const window = 250 * time.Millisecond
	var quiet, giving, ratios []float64
	for b.Loop() {
		var pair [2]float64
		for i := range pair {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() { // ends after stop
				defer close(done)
				for i == 1 {
					select {
					case <-stop:
						return
					default:
						give()
					}
				}
			}()
			pair[i] = p99(a, engines, window)
			close(stop)
			<-done
		}
		quiet, giving, ratios = append(quiet, pair[0]), append(giving, pair[1]), append(ratios, pair[1]/pair[0])
	}
	for name, all := range map[string][]float64{"p99-quiet-µs": quiet, "p99-giving-µs": giving, "ratio": ratios} {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name)
	}
	http.DefaultClient.CloseIdleConnections()
}

// p99 returns the 99th percentile of the latency of decisions, in microseconds.
func p99(s *site, engines []*engine, window time.Duration) float64 {
	var took []float64
	for end := time.Now().Add(window); time.Now().Before(end); {
		pause, cancel := context.WithTimeout(context.Background(), 500*time.Microsecond)
		<-pause.Done()
		cancel()
		e := engines[len(took)%len(engines)]
		tokens := append(e.prompt(len(took)%e.at), 1)
		began := time.Now()
		d, err := s.router.Explain(s.t.Context(), &warmpath.Request{Model: "m", Tokens: tokens, Now: began.UnixNano()})
		took = append(took, float64(time.Since(began).Nanoseconds())/1e3)
		if err == nil {
			d.Recycle()
		}
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
