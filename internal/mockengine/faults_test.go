package mockengine

import (
	"context"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/test/testenv"
)

// fault posts to /mock/fault.
func fault(t *testing.T, s *Server, body object) {
	t.Helper()
	if status, data := call(t, s, "/mock/fault", body); status != http.StatusOK && status != http.StatusAccepted {
		t.Fatalf("fault %v: status %d: %s", body, status, data)
	}
}

var anyChat = object{"model": "mock", "messages": []any{object{"role": "user", "content": "any"}}}

// answers reports whether /health answers soon.
func answers(t *testing.T, s *Server) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client(t).Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func TestADeadEngineRefusesConnectionsUntilItIsRestarted(t *testing.T) {
	s := start(t, nil)
	addr := s.Addr()
	complete(t, s, chatPath, anyChat)
	if err := s.Die(); err != nil {
		t.Fatal(err)
	}
	if answers(t, s) {
		t.Fatal("a dead engine answers")
	}
	if err := s.Restart(0); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, "the engine answers", func() bool { return answers(t, s) })
	if s.Addr() != addr || s.Stats().Starts != 2 || len(s.CachedHashes(0, 0)) != 0 {
		t.Errorf("after the restart: address %s, was %s; %+v", s.Addr(), addr, s.Stats())
	}
}

func TestRestartByHTTPEmptiesTheCache(t *testing.T) {
	s := start(t, nil)
	body := object{"model": "mock", "messages": []any{userSays(long("warm", 60))}}
	complete(t, s, chatPath, body)
	fault(t, s, object{"kind": "restart", "down": "20ms"})
	testenv.Until(t, "the engine has started again and answers", func() bool { return s.Stats().Starts == 2 && answers(t, s) })
	if c := complete(t, s, chatPath, body); c.cached() != 0 {
		t.Errorf("cached %d after a restart", c.cached())
	}
}

func TestDeathCutsStreams(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed = 1 })
	result := make(chan stream, 1)
	go func() {
		result <- streamed(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("x")}, "ignore_eos": true,
			"max_tokens": 5000})
	}()
	testenv.Until(t, "the answer has begun", func() bool { return len(s.Stats().Ranks) == 1 && s.Stats().Ranks[0].Outputs > 2 })
	fault(t, s, object{"kind": "die"})
	if st := <-result; st.done || st.err == nil {
		t.Errorf("stream of a dead engine: done %v, error %v", st.done, st.err)
	}
}

func TestAKilledEngineCoreEndsStreamsCleanly(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed = 1 })
	result := make(chan stream, 1)
	go func() {
		result <- streamed(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("x")}, "ignore_eos": true,
			"max_tokens": 5000})
	}()
	testenv.Until(t, "the answer has begun", func() bool { return s.Stats().Ranks[0].Outputs > 2 })
	fault(t, s, object{"kind": "kill_engine"})
	st := <-result
	last := st.chunks[len(st.chunks)-1]
	if st.err != nil || !st.done || st.finish(0) != "" || last.Error == nil || last.Error.Code != 500 {
		t.Errorf("stream: error %v, done %v, finish %q, last %+v", st.err, st.done, st.finish(0), last)
	}
	if status, _ := call(t, s, chatPath, anyChat); status != http.StatusInternalServerError {
		t.Errorf("next request: status %d, want 500", status)
	}
	if status, _ := call(t, s, "/health", nil); status != http.StatusServiceUnavailable {
		t.Errorf("health: status %d, want 503", status)
	}
}

func TestAFrozenEngineAnswersNothingUntilItThaws(t *testing.T) {
	s := start(t, nil)
	fault(t, s, object{"kind": "freeze"})
	if answers(t, s) {
		t.Fatal("a frozen engine answers")
	}
	result := make(chan int, 1)
	go func() {
		status, _ := call(t, s, chatPath, anyChat)
		result <- status
	}()
	fault(t, s, object{"kind": "freeze", "on": false})
	if status := <-result; status != http.StatusOK {
		t.Errorf("after the thaw: status %d", status)
	}
}

func TestAStalledEngineLooksHealthy(t *testing.T) {
	s := start(t, nil)
	fault(t, s, object{"kind": "stall"})
	result := make(chan int, 1)
	go func() {
		status, _ := call(t, s, chatPath, anyChat)
		result <- status
	}()
	testenv.Until(t, "a request waits", func() bool { return s.Stats().Ranks[0].Waiting == 1 })
	testenv.Until(t, "the engine answers", func() bool { return answers(t, s) }) // /health answers, but the completion above does not
	fault(t, s, object{"kind": "clear"})
	if status := <-result; status != http.StatusOK {
		t.Errorf("after the stall: status %d", status)
	}
}

func TestSharesOfErrorsAndCuts(t *testing.T) {
	s := start(t, nil)
	fault(t, s, object{"kind": "errors", "share": 0.5})
	failed := 0
	for range 100 {
		if status, _ := call(t, s, chatPath, anyChat); status == http.StatusInternalServerError {
			failed++
		}
	}
	if failed < 25 || failed > 75 {
		t.Errorf("%d of 100 failed, want about 50", failed)
	}
	fault(t, s, object{"kind": "errors", "share": 0})
	fault(t, s, object{"kind": "cut", "share": 1})
	st := streamed(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("x")}})
	if st.err == nil || st.done || st.finish(0) != "" || len(st.chunks) < 2 {
		t.Errorf("cut stream: error %v, done %v, %d chunks", st.err, st.done, len(st.chunks))
	}
	fault(t, s, object{"kind": "clear"})
	if f := s.Faults(); f != (Faults{}) {
		t.Errorf("after clear: %+v", f)
	}
	complete(t, s, chatPath, anyChat)
}

func TestTheFirstTokenCanBeSlow(t *testing.T) {
	s := start(t, nil)
	fault(t, s, object{"kind": "slow_first_token", "delay": "50ms"})
	begin := time.Now()
	complete(t, s, chatPath, anyChat)
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("answered after %v", took)
	}
}

func TestBadFaultsAreRefused(t *testing.T) {
	s := start(t, nil)
	for _, body := range []object{{"kind": "meteor"}, {"kind": "cut", "share": 2}, {"kind": "errors", "share": -1},
		{"kind": "restart", "down": "soon"}} {
		if status, data := call(t, s, "/mock/fault", body); status != http.StatusBadRequest {
			t.Errorf("%v: status %d: %s", body, status, data)
		}
	}
	if s.Stats().Starts != 1 {
		t.Error("a refused restart was carried out")
	}
}

func TestClientsThatLeaveFreeTheirBlocks(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed = 1 })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+textPath,
			stringReader(`{"model":"mock","prompt":"x","max_tokens":9000,"ignore_eos":true}`))
		if err != nil {
			t.Error(err)
			return
		}
		if response, err := client(t).Do(request); err == nil {
			response.Body.Close()
		}
	}()
	testenv.Until(t, "the request runs", func() bool { return s.Stats().Ranks[0].Running == 1 })
	cancel()
	<-ended
	testenv.Until(t, "the request has ended and its blocks are free", func() bool { st := s.Stats().Ranks[0]; return st.Running == 0 && st.UsedBlocks == 0 })
}

func TestRunEndsDuringRequestsAndFaults(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Speed, cfg.Faults.Frozen = 1, true
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-s.Ready()
	result := make(chan error, 1)
	c := client(t)
	go func() {
		response, err := c.Get(s.URL() + "/health")
		if err == nil {
			response.Body.Close()
		}
		result <- err
	}()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := <-result; err == nil {
		t.Error("a frozen engine answered when it ended")
	}
	if err := s.Restart(0); err == nil {
		t.Error("an ended server took an order")
	}
	if err := s.Run(context.Background()); err == nil {
		t.Error("a server ran twice")
	}
}

// The test passes each example of FaultDoc to applyFault as it is written there.
func TestEveryDocumentedFaultIsAccepted(t *testing.T) {
	s := start(t, nil)
	forms := regexp.MustCompile(`\{"kind":[^}]*\}`).FindAllString(FaultDoc, -1)
	for _, form := range forms {
		if _, err := s.current().applyFault(fastjson.MustParse(form)); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
	if len(forms) != 20 {
		t.Errorf("%d forms are shown, 20 kinds are understood", len(forms))
	}
}

func TestNewReportsAllProblems(t *testing.T) {
	f := func(name string, change func(*Config)) {
		t.Helper()
		cfg := DefaultConfig()
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	f("a zero config", func(c *Config) { *c = Config{} })
	f("an unknown kind", func(c *Config) { c.Kind = "llama" })
	f("no blocks", func(c *Config) { c.Blocks = 0 })
	f("no block size", func(c *Config) { c.BlockSize = 0 })
	f("a replay without events", func(c *Config) { c.Events = "" })
	f("a bad endpoint", func(c *Config) { c.Events = "5557" })
	f("an unknown wire", func(c *Config) { c.Wire = "morse-1" })
	f("a bad fault", func(c *Config) { c.Faults.Cut = 3 })
	f("a negative speed", func(c *Config) { c.Speed = -1 })
}

func TestSpeedScalesTheModelledTime(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed, c.OutputTokens = 10, 20 })
	begin := time.Now()
	complete(t, s, chatPath, anyChat)
	// The answer takes 21 steps of 24 ms at speed 1, so about 50 ms at speed 10. A busy machine may take longer, but not
	// less time.
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("21 steps took %v, want at least 50 ms", took)
	}
}
