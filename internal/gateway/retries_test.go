package gateway_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/proxy"
)

func TestAnotherWorkerIsTriedBeforeTheFirstByte(t *testing.T) {
	for _, c := range []struct {
		name string
		ill  func(*testing.T) string
	}{
		{"connection refused", dead},
		{"503", func(t *testing.T) string {
			return worker(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "starting", http.StatusServiceUnavailable) })
		}},
		{"connection closed", func(t *testing.T) string {
			return worker(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		}},
		{"shutting down", func(t *testing.T) string {
			return worker(t, func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, `{"error":{"message":"cannot schedule new futures after shutdown"}}`, http.StatusInternalServerError)
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ill, well := c.ill(t), worker(t, plain)
			f := serve(t, func(s *settings) { s.policy = "round_robin" }, ill, well)
			for range 8 {
				resp, text := f.post(t, chat)
				if resp.StatusCode != 200 || text != whole || resp.Header.Get("X-Warmpath-Worker") != well {
					t.Errorf("%d from %s: %s", resp.StatusCode, resp.Header.Get("X-Warmpath-Worker"), text)
				}
			}
			f.last(t, 8)
			retried := 0
			for _, rec := range f.Telemetry.Last(0) {
				if rec.Attempts > 1 {
					retried++
					if len(rec.Failed) != 1 || !strings.HasPrefix(rec.Failed[0], ill) {
						t.Errorf("failed attempts %v", rec.Failed)
					}
				}
			}
			if retried == 0 || retried > 4 {
				t.Errorf("%d of 8 requests were retried; the breaker should leave the ill worker alone after three", retried)
			}
			f.idle(t)
		})
	}
}

// noDescriptors is the network of a machine that has no free file descriptors.
type noDescriptors struct{ network.Network }

func (noDescriptors) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
}

func TestOurOwnFailedDialsOpenNoBreaker(t *testing.T) {
	f := serve(t, func(s *settings) {
		s.parts = func(p *gateway.Parts) {
			cfg := proxy.DefaultConfig()
			cfg.Network = noDescriptors{}
			p.Client = proxy.New(cfg)
		}
	}, worker(t, plain))
	for range 10 {
		resp, text := f.post(t, chat)
		if resp.StatusCode != 503 || !strings.Contains(text, `"no_connection"`) || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	}
	if !f.fleet.Snapshot().Available(0, time.Now().UnixNano()) {
		t.Error("our own failures opened the breaker")
	}
}

func TestTriesAreBounded(t *testing.T) {
	var asked atomic.Int32
	busy := func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, `{"error":{"message":"starting"}}`, http.StatusServiceUnavailable)
	}
	f := serve(t, func(s *settings) { s.gateway.Attempts = 2 }, worker(t, busy), worker(t, busy), worker(t, busy), worker(t, busy))
	resp, text := f.post(t, chat)
	if asked.Load() != 2 {
		t.Errorf("%d workers were asked, want 2", asked.Load())
	}
	if resp.StatusCode != 503 || !strings.Contains(text, "starting") {
		t.Errorf("the last worker's own answer should be passed on: %d %s", resp.StatusCode, text)
	}
	alone := serve(t, nil, dead(t))
	resp, text = alone.post(t, chat)
	if resp.StatusCode != http.StatusBadGateway {
		t.Errorf("the only worker is dead: %d %s", resp.StatusCode, text)
	}
	checkShape(t, resp, text)
	alone.idle(t)
}

func TestCutStreamIsNotRepairedByATryElsewhere(t *testing.T) {
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, firstChunk)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	_, text, err := f.try(t.Context(), chatStreamed)
	if !strings.HasPrefix(text, firstChunk) || strings.Contains(text, "[DONE]") {
		t.Errorf("the client got %q", text)
	}
	if err == nil && !strings.Contains(text, `"error"`) {
		t.Errorf("the client cannot see that the stream was cut: %q", text)
	}
	last := f.last(t, 1)
	if last.Attempts != 1 || last.Error == "" {
		t.Errorf("record %+v", last)
	}
	f.idle(t)
}

func TestDisconnectsLeaveNothing(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, firstChunk); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			takes(r, 200*time.Microsecond)
		}
	}
	f := serve(t, nil, worker(t, endless), worker(t, endless))
	requests := 400
	if testing.Short() {
		requests = 100
	}
	var wg sync.WaitGroup
	work := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for range work {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(8000))*time.Microsecond)
				_, _, _ = f.try(ctx, chat)
				cancel()
			}
		})
	}
	for range requests {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	f.idle(t)
	if err := f.stop(); err != nil {
		t.Errorf("drain after disconnects: %v", err)
	}
}
