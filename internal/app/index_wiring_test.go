package app_test

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/test/testenv"
)

// `warmpath index` saves its index when it stops.
func TestAnIndexServiceSavesItsIndexAtTheEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "index.snapshot")
	s := startIndex(t, func(c *config.Config) {
		c.Index.WarmStart.SnapshotFile, c.Index.WarmStart.SnapshotInterval = file, 0
	})
	p := publisher(t, 0)
	s.must(http.StatusCreated, "POST", "/register", `{"instance_id":"a","model_name":"m","block_size":16,"endpoint":"`+p.Endpoint()+`","replay_endpoint":"`+p.ReplayEndpoint()+`"}`, nil)
	prompt := ids(1, 161)
	stores(t, p, prompt[:64], 16, "", "")
	testenv.Until(t, "the blocks are in the index, and the stream of events is complete", func() bool {
		var a dynamoAnswer
		status, _ := s.call("POST", "/query", `{"model_name":"m","token_ids":`+text(prompt)+`}`, &a)
		_, listed := s.call("GET", "/workers", "", nil)
		return status == http.StatusOK && a.Scores["a"]["0"] == 64 && strings.Contains(listed, `"trust":"exact"`)
	})
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is there before the end")
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if saved, err := os.ReadFile(file); err != nil || len(saved) == 0 {
		t.Errorf("%d bytes are saved: %v", len(saved), err)
	}
}

// A process that routes requests must know more of a worker than its events, so it takes no registrations. Its index
// service leaves most of the file descriptors to the requests.
func TestAServiceBesideARouterTakesNoRegistrations(t *testing.T) {
	cfg := settings()
	cfg.IndexService.Listen, cfg.IndexService.GRPCListen = "127.0.0.1:0", "127.0.0.1:0"
	r := build(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.run()
	front, _ := r.IndexAddrs()
	r.url = "http://" + front.String()
	beside, alone := &indexService{router: r}, startIndex(t, nil)
	const worker = `{"instance_id":"a","model_name":"m","block_size":16,"endpoint":"tcp://127.0.0.1:9"}`
	if text := beside.must(http.StatusBadRequest, "POST", "/register", worker, nil); !strings.Contains(text, "also routes requests") {
		t.Error(text)
	}
	alone.must(http.StatusCreated, "POST", "/register", worker, nil)
	if few, many := r.IndexConnections(), alone.IndexConnections(); few.GRPC <= 0 || few.GRPC > 256 || many.GRPC < few.GRPC {
		t.Errorf("connections over gRPC: %d beside a router, %d alone", few.GRPC, many.GRPC)
	} else if few.Readers <= 0 || few.Readers > (few.GRPC+1)/2 {
		t.Errorf("%d streams of changes in %d connections", few.Readers, few.GRPC)
	} else if l := few.HTTP(nil, new(http.Server), nil); l == nil {
		t.Error("connections over HTTP have no bound")
	}
}

// The listeners beside the clients' leave file descriptors for events, health checks and reports.
func TestTheIndexListenersLeaveDescriptorsForEvents(t *testing.T) {
	for _, limit := range []int{256, 1024, 4096, 65536} {
		for listeners := 1; listeners <= 3; listeners++ {
			_, of := app.Divided(limit, listeners)
			open := listeners*of.Serving + min(listeners, 2)*(of.Waiting+of.Spare) // nothing waits over gRPC
			if reserve := max(64, limit/8); of.Serving <= 0 || open > reserve*3/4 {
				t.Errorf("%d descriptors: %d listeners have up to %d connections of %d", limit, listeners, open, reserve)
			}
		}
	}
}
