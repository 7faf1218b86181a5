package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// If worker b's prompts begin to take three times as long as worker a's, the router logs one line. As long as they take
// this long, the router logs no further line. When another process serves at b, the router logs one more line.
func TestThePaceOfAWorkerIsLoggedWhenItBeginsAndCeasesToCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testenv.Buffer
		a := &App{fleet: fleet.New(fleet.Config{}), log: slog.New(slog.NewTextHandler(&log, nil))}
		facts := fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, BlocksPerRank: 1000}
		a.fleet.Put("http://a:1", facts)
		a.fleet.Put("http://b:1", facts)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.watchPaces(ctx) }()
		read := 0
		lines := func() []string {
			testenv.Pass(paceEvery + time.Second)
			said := log.String()[read:]
			read += len(said)
			return strings.Split(strings.TrimSpace(said), "\n")
		}
		if said := lines(); said[0] != "" {
			t.Errorf("nothing is known, and the log has %q", said)
		}
		for range 300 {
			now := time.Now()
			for h, took := range []time.Duration{time.Second, 3 * time.Second} {
				var r fleet.Reservation
				a.fleet.Reserve(&r, fleet.Holder(h), fleet.Work{UncachedTokens: 5000, PromptTokens: 5000}, now.UnixNano())
				r.FirstToken(now.Add(took).UnixNano())
				r.Release(now.Add(took).UnixNano())
			}
			testenv.Pass(2 * time.Second)
		}
		slower := 0
		for _, line := range lines() {
			if strings.Contains(line, "slower than others") && strings.Contains(line, "worker=http://b:1") {
				slower++
			}
		}
		if slower != 1 {
			t.Errorf("%d lines say that b is slower", slower)
		}
		if said := lines(); said[0] != "" {
			t.Errorf("nothing changed, and the log has %q", said)
		}
		a.fleet.Returned(1)
		if said := lines(); !strings.Contains(said[0], "is no longer used") || !strings.Contains(said[0], "worker=http://b:1") {
			t.Errorf("b is another process, and the log has %q", said)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
