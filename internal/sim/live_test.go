package sim_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/loadgen"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

// A fleet of mock engines runs behind the real gateway, over real sockets in real time (the live fleet). Its results
// must agree with a simulation: the hit rate within one percentage point, the mean time to the first token (TTFT)
// within 10 %. Engines run at half speed, so that the machine's own delays matter less. A busy machine makes the live
// fleet slower, never faster. So the live fleet is played up to three times. If its TTFT is still more than 10 % above
// the simulated TTFT, the test only logs the difference. A TTFT of more than 50 % above, or more than 10 % below, fails
// the test.
func TestTheMockFleetLiveAndSimulatedAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it takes half a minute of real time")
	}
	t.Parallel() // in parallel with the other live test, because both mostly wait
	playBoth(t, sharedPrefixes(16, 200, 120*time.Millisecond), 16*2400)
}

// playBoth plays w on four workers, live and simulated, and compares the results. kvTokens is the size of each worker's
// cache in tokens.
func playBoth(t *testing.T, w *workload.Workload, kvTokens int) {
	t.Helper()
	const workers, speed = 4, 0.5
	p, err := sim.ParsePolicy("kv_aware")
	if err != nil {
		t.Fatal(err)
	}
	simulated, err := sim.Run(context.Background(), sim.Config{
		Workload: w, Policy: p, Seed: 1, Groups: []sim.Group{{Count: workers, Profile: engine.Profiles()[0], BlockSize: 16, KVTokens: kvTokens, Speed: speed}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	agree(t, func() *report.Run { return playLive(t, w, workers, kvTokens, speed) }, simulated, len(w.Requests))
}

// agree plays the live fleet and compares its result with the simulated result. If the live result is too slow, agree
// plays the live fleet again.
func agree(t *testing.T, play func() *report.Run, simulated *report.Run, requests int) {
	t.Helper()
	live := play()
	for try := 1; try < 3 && live.TTFT.Mean > 1.1*simulated.TTFT.Mean; try++ {
		t.Logf("TTFT mean: live %.1f ms, simulated %.1f ms: playing again", live.TTFT.Mean, simulated.TTFT.Mean)
		live = play()
	}
	t.Logf("hit rate: live %.4f, simulated %.4f", live.HitRate, simulated.HitRate)
	t.Logf("TTFT mean: live %.1f ms, simulated %.1f ms; p90 %.1f, %.1f", live.TTFT.Mean, simulated.TTFT.Mean, live.TTFT.P90, simulated.TTFT.P90)
	t.Logf("ITL p50: live %.1f ms, simulated %.1f ms; E2E mean %.0f, %.0f", live.ITL.P50, simulated.ITL.P50, live.E2E.Mean, simulated.E2E.Mean)
	if live.Requests.Answered != requests {
		t.Fatalf("live: %+v", live.Requests)
	}
	if d := live.HitRate - simulated.HitRate; d < -.01 || d > .01 {
		t.Errorf("hit rate: live %.4f, simulated %.4f", live.HitRate, simulated.HitRate)
	}
	switch q := live.TTFT.Mean / simulated.TTFT.Mean; {
	case q > 1.1 && q < 1.5:
		t.Logf("the machine was too busy to show that mean times to first token agree within a tenth: live is %.2f of simulated", q)
	case q < .9 || q > 1.1:
		t.Errorf("mean time to first token: live %.1f ms, simulated %.1f ms", live.TTFT.Mean, simulated.TTFT.Mean)
	}
}

// Live and simulated results must also agree for conversations, in which a turn is sent a think time after the end of
// the previous answer, and contains this answer.
func TestConversationsLiveAndSimulatedAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it takes half a minute of real time")
	}
	t.Parallel() // in parallel with the other live test, because both mostly wait
	// A cache holds about three quarters of the blocks that a busy worker computes, so blocks are evicted.
	playBoth(t, conversations(40, 4), 16*700)
}

// sharedPrefixes returns an open-loop workload. Each request has the prefix of a random group. groups is the number of
// prefixes, requests the number of requests, and gap the mean time between two arrivals.
func sharedPrefixes(groups, requests int, gap time.Duration) *workload.Workload {
	random := rand.New(rand.NewPCG(5, 6))
	w := &workload.Workload{Name: "shared prefixes"}
	at := time.Duration(0)
	for i := range requests {
		w.Requests = append(w.Requests, workload.Request{
			ID: i, Arrival: at, Session: -1, After: -1, Input: 3000 + 500, Output: 30,
			Segments: []workload.Segment{{ID: uint64(random.IntN(groups) + 1), Tokens: 3000}, {ID: uint64(1000 + i), Tokens: 500}},
		})
		at += time.Duration(random.Int64N(int64(2 * gap)))
	}
	return w
}

// conversations returns a closed-loop workload of chats. sessions is the number of chats, and turns is the number of
// requests in each chat. Three system prompts are shared. The pause before each further request is about a second.
func conversations(sessions, turns int) *workload.Workload {
	random := rand.New(rand.NewPCG(7, 8))
	w := &workload.Workload{Name: "conversations"}
	id := uint64(1000)
	next := func() uint64 { id++; return id }
	for session := range sessions {
		said := []workload.Segment{{ID: uint64(1 + session%3), Tokens: 800}}
		after := -1
		for turn := range turns {
			said = append(said, workload.Segment{ID: next(), Tokens: 100 + random.IntN(200)})
			r := workload.Request{ID: len(w.Requests), Session: session, After: after, Output: 20 + random.IntN(60), OutputSegment: next()}
			if turn == 0 {
				r.Arrival = time.Duration(session) * 150 * time.Millisecond
			} else {
				r.Think = 500*time.Millisecond + time.Duration(random.IntN(1000))*time.Millisecond
			}
			r.Segments = append([]workload.Segment(nil), said...)
			for _, s := range said {
				r.Input += s.Tokens
			}
			said = append(said, workload.Segment{ID: r.OutputSegment, Tokens: r.Output})
			after = r.ID
			w.Requests = append(w.Requests, r)
		}
	}
	return w
}

// playLive plays w against mock engines behind the gateway.
func playLive(t *testing.T, w *workload.Workload, workers, kvTokens int, speed float64) *report.Run {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Policy = "127.0.0.1:0", "127.0.0.1:0", "kv_aware"
	for range workers {
		e := mockengine.DefaultConfig()
		e.Model, e.BlockSize, e.Blocks, e.Speed = "mock", 16, kvTokens/16+1, speed
		server, err := mockengine.New(e)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = server.Run(ctx) })
		<-server.Ready()
		cfg.Workers = append(cfg.Workers, discovery.Target{URL: server.URL()})
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	a, err := app.New(&cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = a.Run(ctx) })
	<-a.Listening()
	look := time.NewTicker(20 * time.Millisecond) // poll, because there is no event to wait for
	defer look.Stop()
	for ready := 0; ready < workers; <-look.C {
		snapshot := a.Router().Fleet().Snapshot()
		ready = 0
		for _, k := range snapshot.Workers() {
			if trust, _ := snapshot.Trust(k.Holders[0]); trust == fleet.TrustExact && k.Ready {
				ready++
			}
		}
	}
	load := loadgen.DefaultConfig()
	load.Targets, load.Prompt = []loadgen.Target{{URL: "http://" + a.Addr().String()}}, loadgen.Tokens
	outcome, err := loadgen.Run(ctx, w, load)
	if err != nil {
		t.Fatal(err)
	}
	return outcome.Runs[0]
}
