package discovery

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// An engine that pauses, or that answers that it is busy, is still the same process. An engine that refused connections
// is a new process.
func TestARestartDiffersFromAPause(t *testing.T) {
	for _, test := range []struct {
		name   string
		broken http.Handler
		grown  uint64
	}{
		{"refused", nil, 1},
		{"bad status", answers{"GET /health": "503 starting"}, 0},
		{"frozen", frozen, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchingOne(t)
				defer w.stop()
				testenv.Pass(7 * time.Second)
				before := w.worker(t, "http://a").Incarnation
				w.set("a", test.broken)
				testenv.Pass(20 * time.Second)
				w.set("a", vllm032())
				testenv.Pass(10 * time.Second)
				if grown := w.worker(t, "http://a").Incarnation - before; grown != test.grown {
					t.Errorf("the incarnation grew by %d, want %d", grown, test.grown)
				}
			})
		})
	}
}

func TestAnotherVersionIsAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(7 * time.Second)
		before := w.worker(t, "http://a").Incarnation
		w.set("a", vllm032().with("GET /version", `{"version":"0.33.0"}`))
		testenv.Pass(2 * time.Minute)
		if grown := w.worker(t, "http://a").Incarnation - before; grown != 1 {
			t.Errorf("the incarnation grew by %d", grown)
		}
	})
}

// An engine that restarts between two health checks is recognized by its report.
func TestAReportShowsARestartThatNoCheckSaw(t *testing.T) {
	s, stop := mock(t, mockengine.DefaultConfig())
	defer stop()
	f := fleet.New(fleet.Config{})
	id := f.Put(s.URL(), fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "mock"}}})
	client := NewClient(nil, nil)
	defer client.CloseIdleConnections()
	r := NewReporter(f, DefaultReportsConfig(), nil, client, slog.New(slog.DiscardHandler))
	asked := func() uint64 {
		t.Helper()
		var err error
		if !testenv.Poll(time.Minute, func() bool {
			err = r.ask(context.Background(), s.URL(), id)
			return err == nil
		}) {
			t.Fatal(err)
		}
		return f.Snapshot().ByID(id).Incarnation
	}
	first := asked()
	if again := asked(); again != first {
		t.Fatalf("incarnation %d after %d without a restart", again, first)
	}
	<-time.After(200 * time.Millisecond) // the router takes two processes with the same start time for one process
	if err := s.Restart(0); err != nil {
		t.Fatal(err)
	}
	again := asked()
	for end := time.Now().Add(time.Minute); again == first && time.Now().Before(end); again = asked() {
	}
	if again != first+1 {
		t.Errorf("incarnation %d after a restart, was %d", again, first)
	}
}
