package testenv_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// settleQuickly waits until the gateway has applied all events that the engines have published, by their own counts.
func (f *mockFleet) settleQuickly(t *testing.T) {
	t.Helper()
	testenv.WaitFor(t, 10*time.Second, "the events to arrive", func() error {
		for _, w := range f.state(t).Workers {
			for _, m := range f.workers {
				if m.URL() != w.URL {
					continue
				}
				for _, h := range w.Holders {
					if published := m.Stats().Ranks[h.Rank].Published; published > 0 && h.LastSequence+1 < published {
						return fmt.Errorf("%s published %d messages, the gateway is at %d", w.URL, published, h.LastSequence)
					}
				}
			}
		}
		return nil
	})
}

func TestAWorkerThatDiesInMidStreamFailsNoOtherRequest(t *testing.T) {
	// With these settings a stream takes more than a second, so the worker dies during streams.
	slow := func(c *mockengine.Config) { c.Speed = 5; c.OutputTokens = 400 }
	workers := []*mockengine.Server{mock(t, slow), mock(t, slow)}
	f := serve(t, workers)
	f.trusted(t)
	var wg sync.WaitGroup
	answers := make([]answer, 32)
	for i := range answers {
		wg.Go(func() {
			answers[i] = f.chat(t, []message{{"user", prose(fmt.Sprintf("stream%d", i), 40)}}, `,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_completion_tokens":300`)
		})
	}
	testenv.WaitFor(t, 10*time.Second, "streams on both workers", func() error {
		for _, w := range f.state(t).Workers {
			// Wait until each worker has at least 4 requests and has no prompt left to compute, so that their answers
			// have begun: before its first token a request could still move to another worker.
			if l := w.Holders[0].Load; l.Requests < 4 || l.PrefillTokens > 0 {
				return fmt.Errorf("%s carries %+v", w.URL, l)
			}
		}
		return nil
	})
	if err := workers[0].Die(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	whole, cut := 0, 0
	for i, a := range answers {
		done := strings.Contains(a.body, "data: [DONE]")
		switch {
		case a.finish != "" && done:
			whole++
		case done:
			t.Errorf("stream %d looks complete but has no finish_reason: …%s", i, a.body[max(0, len(a.body)-300):])
		case a.status == 200 && (a.truncated || strings.Contains(a.body, `"error"`)):
			cut++
		default:
			t.Errorf("stream %d ended neither whole nor visibly cut: status %d …%s", i, a.status, a.body[max(0, len(a.body)-300):])
		}
	}
	t.Logf("%d streams whole, %d visibly cut", whole, cut)
	if whole == 0 || cut == 0 {
		t.Errorf("%d whole and %d cut: both were meant to happen", whole, cut)
	}
	for i := range 20 {
		if a := f.chat(t, []message{{"user", fmt.Sprintf("later %d", i)}}, ""); a.status != 200 {
			t.Fatalf("a later request failed: %d %s", a.status, a.body)
		}
	}
	f.idle(t)
}

func TestAWorkerThatAnswers500IsNotSeenByTheClient(t *testing.T) {
	workers := []*mockengine.Server{mock(t, func(c *mockengine.Config) { c.Faults.Errors = 0.5 }), mock(t, nil)}
	f := serve(t, workers)
	for i := range 100 {
		if a := f.chat(t, []message{{"user", fmt.Sprintf("request %d", i)}}, ""); a.status != 200 {
			t.Fatalf("request %d: %d %s", i, a.status, a.body)
		}
	}
	f.idle(t)
}

func TestAFrozenWorkerIsLeftAlone(t *testing.T) {
	workers := []*mockengine.Server{mock(t, nil), mock(t, nil)}
	f := serve(t, workers)
	f.trusted(t)
	faults := workers[0].Faults()
	faults.Frozen = true
	if err := workers[0].SetFaults(faults); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, 40*time.Second, "the frozen worker to be found", func() error {
		for _, w := range f.state(t).Workers {
			if w.URL == workers[0].URL() && w.Healthy {
				return fmt.Errorf("%s still counts as healthy", w.URL)
			}
		}
		return nil
	})
	before := f.asked(t, workers[0].URL())
	for i := range 50 {
		if a := f.chat(t, []message{{"user", fmt.Sprintf("request %d", i)}}, ""); a.status != 200 || a.worker != workers[1].URL() {
			t.Fatalf("request %d: %d from %s: %s", i, a.status, a.worker, a.body)
		}
	}
	if n := f.asked(t, workers[0].URL()) - before; n != 0 {
		t.Errorf("the frozen worker was asked %d times", n)
	}
}

// In TestTenThousandDisconnects, clients leave 10,000 requests before their end.
func TestTenThousandDisconnects(t *testing.T) {
	const disconnects = 10_000
	slow := func(c *mockengine.Config) { c.Speed = 1; c.OutputTokens = 2000; c.MaxSequences = 1024 }
	f := serve(t, []*mockengine.Server{mock(t, slow), mock(t, slow)})
	f.trusted(t) // then the goroutines that follow the events run, too
	f.chat(t, []message{{"user", "warm up"}}, "")
	before := f.metric(t, "go_goroutines")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableKeepAlives: true}}
	var next, streamed atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1); i <= disconnects; i = next.Add(1) {
				ctx, cancel := context.WithCancel(context.Background())
				body := fmt.Sprintf(`{"model":"mock","stream":true,"max_tokens":2000,"messages":[{"role":"user","content":"hello %d"}]}`, i)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+"/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					t.Error(err)
				}
				if i%3 == 0 { // a third of the clients leave before the headers
					stop := time.AfterFunc(time.Duration(i%7)*time.Millisecond, cancel)
					defer stop.Stop()
				}
				if resp, err := client.Do(req); err == nil {
					if _, err := io.ReadFull(resp.Body, make([]byte, 64)); err == nil {
						streamed.Add(1)
					}
					cancel()
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	f.idle(t)
	testenv.WaitFor(t, 30*time.Second, "the goroutines to end", func() error {
		if now := f.metric(t, "go_goroutines"); now > before+20 {
			return fmt.Errorf("%v goroutines, %v before", now, before)
		}
		return nil
	})
	t.Logf("%d disconnects, %d of them in mid-stream", disconnects, streamed.Load())
	if a := f.chat(t, []message{{"user", "after"}}, `,"max_completion_tokens":4`); a.status != 200 {
		t.Errorf("after the disconnects: %d %s", a.status, a.body)
	}
}
