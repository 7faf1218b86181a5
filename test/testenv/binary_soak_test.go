package testenv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// soakTime is how long the soak lasts: 10 s, or $WARMPATH_SOAK.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("WARMPATH_SOAK")
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("WARMPATH_SOAK: %v", err)
	}
	return d
}

// soak counts what the clients of a soak saw.
type soak struct {
	f               *mockFleet
	whole           atomic.Int64 // complete answers
	cut             atomic.Int64 // answers that visibly ended early
	refused         atomic.Int64 // answers with 5xx or 429, and requests without an answer
	left            atomic.Int64 // requests that the client gave up
	nonsense        atomic.Int64 // requests that nobody could serve
	disturbedWorker atomic.Int64 // faults
	visits          atomic.Int64 // how often a worker joined and left

	mu    sync.Mutex // guards wrong
	wrong []string   // answers that must not happen
}

func (s *soak) complain(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wrong) < 10 {
		s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	}
}

// everything is a configuration with logs that are often rotated, with traces, and with streams that continue where
// that is another sample.
const everything = patient + `
gateway: {stream_recovery: valid}
telemetry:
  access_log: {file: "%[1]s/access.jsonl", max_bytes: 1MiB, max_files: 2}
  decision_log: {file: "%[1]s/decisions.jsonl", max_bytes: 1MiB, max_files: 2}
  traces: {endpoint: "%[2]s", sample: 0.1}
`

// TestASoakWithChurnAndFaultsLeavesNothingBehind runs clients of every kind while workers restart, freeze, answer
// errors, cut answers and lose events, and while one more worker joins and leaves. At the end the gateway has the
// memory, the goroutines and the descriptors that it had after the first quarter, every reservation is released, and
// predictions equal reports again.
func TestASoakWithChurnAndFaultsLeavesNothingBehind(t *testing.T) {
	length := soakTime(t)
	var workers []*mockengine.Server
	engine := func(c *mockengine.Config) { c.Speed, c.Blocks, c.OutputTokens = 50, 2000, 60 }
	for range 4 {
		workers = append(workers, mock(t, engine))
	}
	spans := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer spans.Close()
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, everything, filepath.Dir(file), spans.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &soak{f: serveFile(t, file, workers)}
	s.f.trusted(t)
	guest := mock(t, engine)
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { s.converse(ctx, t, i) })
	}
	for range 2 {
		all.Go(func() { s.leave(ctx) })
		all.Go(func() { s.readSlowly(ctx) })
		all.Go(func() { s.sendNonsense(ctx) })
	}
	all.Go(func() { s.disturb(ctx, workers) })
	all.Go(func() { s.visit(ctx, t, guest) })
	memory := s.watchMemory(ctx, t)
	all.Wait()

	for _, w := range workers {
		if err := w.SetFaults(mockengine.Faults{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v: %d answers whole, %d cut, %d refused, %d left, %d nonsense, %d faults, %d visits; resident MB by eighth: %.0f", length,
		s.whole.Load(), s.cut.Load(), s.refused.Load(), s.left.Load(), s.nonsense.Load(), s.disturbedWorker.Load(), s.visits.Load(), memory)
	if s.whole.Load() == 0 || s.visits.Load() == 0 || s.left.Load() == 0 || s.nonsense.Load() == 0 {
		t.Error("a kind of client did nothing")
	}
	for _, text := range s.wrong {
		t.Error(text)
	}
	if early, late := memory[1], memory[len(memory)-1]; late > early*1.3+24 {
		t.Errorf("the gateway had %.0f MB after the first quarter and %.0f MB at the end", early, late)
	}
	s.f.idle(t)
	testenv.WaitFor(t, 30*time.Second, "the goroutines of the requests to end", func() error {
		http.DefaultClient.CloseIdleConnections()
		if n := s.f.metric(t, "go_goroutines"); n > 150 {
			return fmt.Errorf("%.0f goroutines", n)
		}
		if n := s.f.metric(t, "process_open_fds"); n > 200 {
			return fmt.Errorf("%.0f descriptors", n)
		}
		return nil
	})
	s.f.trustedWithin(t, time.Minute)
	s.f.settle(t)
	for i := range 20 {
		k := newTalk(fmt.Sprintf("after%d", i%3))
		for turn := range 3 {
			if a := k.turn(t, s.f, fmt.Sprintf("soak%d turn%d %s", i, turn, prose("x", 20))); a.match != a.cached {
				t.Errorf("conversation %d turn %d after the soak: predicted %d, reported %d", i, turn, a.match, a.cached)
			}
			s.f.settleQuickly(t)
		}
	}
}

// watchMemory returns the gateway's resident memory in MB at the end of each eighth of the time.
func (s *soak) watchMemory(ctx context.Context, t *testing.T) (sizes []float64) {
	deadline, _ := ctx.Deadline()
	part := time.Until(deadline) / 8
	for i := range 8 {
		pause(context.WithoutCancel(ctx), time.Until(deadline)-time.Duration(7-i)*part)
		sizes = append(sizes, s.f.metric(t, "process_resident_memory_bytes")/(1<<20))
	}
	return sizes
}

// post sends a body and returns the answer, as far as it came.
func (s *soak) post(ctx context.Context, body string) (status int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.f.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// converse holds conversations of several turns, every second one streamed.
func (s *soak) converse(ctx context.Context, t *testing.T, client int) {
	for n := 0; ctx.Err() == nil; n++ {
		history := prose(fmt.Sprintf("system%d", n%5), 60)
		for turn := 0; turn < 4 && ctx.Err() == nil; turn++ {
			history += prose(fmt.Sprintf("c%dn%dt%d", client, n, turn), 20)
			stream := (n+turn)%2 == 0
			body := fmt.Sprintf(`{"model":"mock","max_tokens":30,"stream":%t,"messages":[{"role":"user","content":%q}]}`, stream, history)
			status, answer, err := s.post(context.WithoutCancel(ctx), body)
			finished := bytes.Contains(answer, []byte(`"finish_reason":"`)) || bytes.Contains(answer, []byte(`"finish_reason": "`))
			done := bytes.Contains(answer, []byte("data: [DONE]"))
			switch {
			case status == http.StatusOK && err == nil && finished && (done || !stream):
				s.whole.Add(1)
			case status == http.StatusOK && stream && done:
				s.complain("a stream looks complete and has no finish_reason: …%s", answer[max(0, len(answer)-300):])
			case status == http.StatusOK && (err != nil || bytes.Contains(answer, []byte(`"error"`))):
				s.cut.Add(1)
			case status == 0 || status == http.StatusTooManyRequests || status >= 500:
				s.refused.Add(1)
			default:
				s.complain("status %d, %v: %.300s", status, err, answer)
			}
		}
	}
}

// leave begins requests and leaves after a random time, in every phase.
func (s *soak) leave(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(30_000))*time.Microsecond)
		body := fmt.Sprintf(`{"model":"mock","max_tokens":200,"ignore_eos":true,"stream":%t,"messages":[{"role":"user","content":%q}]}`,
			n%2 == 0, prose(fmt.Sprintf("left%d", n), 100))
		_, _, _ = s.post(short, body) // an error is the purpose
		cancel()
		s.left.Add(1)
	}
}

// readSlowly reads streams a few bytes at a time.
func (s *soak) readSlowly(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		body := fmt.Sprintf(`{"model":"mock","max_tokens":100,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"slow %d"}]}`, n)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.f.URL+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			s.complain("make a request: %v", err)
			return
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			continue
		}
		piece := make([]byte, 64)
		for err == nil {
			pause(ctx, 2*time.Millisecond)
			_, err = resp.Body.Read(piece)
		}
		resp.Body.Close()
	}
}

// sendNonsense sends what no worker can serve.
func (s *soak) sendNonsense(ctx context.Context) {
	bodies := []string{"", "{", `{"model":"nobody","messages":[]}`, `{"model":7}`, `{"model":"mock","messages":"text"}`,
		strings.Repeat("[", 300), `{"model":"mock","messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `"}]}`}
	for n := 0; ctx.Err() == nil; n++ {
		status, answer, err := s.post(ctx, bodies[n%len(bodies)])
		if bytes.Contains(answer, []byte("a fault of the mock engine")) {
			continue // the engine's own 500, when no second opinion was left (docs/operate.md)
		}
		if err == nil && status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusBadGateway {
			s.complain("nonsense got status %d: %.200s", status, answer)
		}
		s.nonsense.Add(1)
	}
}

// disturb gives one worker after another a fault, for a short time. At most one worker is disturbed at any time.
func (s *soak) disturb(ctx context.Context, workers []*mockengine.Server) {
	for n := 0; ctx.Err() == nil; n++ {
		w := workers[rand.IntN(len(workers))]
		var err error
		switch n % 5 {
		case 0:
			err = w.Restart(100 * time.Millisecond)
		case 1:
			err = w.SetFaults(mockengine.Faults{Errors: 0.5})
		case 2:
			err = w.SetFaults(mockengine.Faults{Frozen: true})
		case 3:
			err = w.SetFaults(mockengine.Faults{Cut: 0.5})
		case 4:
			w.DropNextEvents(0, 5)
		}
		s.disturbedWorker.Add(1)
		pause(ctx, time.Second)
		if err = errors.Join(err, w.SetFaults(mockengine.Faults{})); err != nil && ctx.Err() == nil {
			s.complain("disturb a worker: %v", err)
		}
		pause(ctx, 300*time.Millisecond)
	}
}

// visit lets a worker join through the admin API, and leave when its requests have ended.
func (s *soak) visit(ctx context.Context, t *testing.T, guest *mockengine.Server) {
	for ctx.Err() == nil {
		if status, answer := send(t, http.MethodPost, s.f.Admin+"/admin/workers", fmt.Sprintf(`{"url":%q}`, guest.URL())); status >= 300 {
			s.complain("add a worker: %d %s", status, answer)
		}
		pause(ctx, 4*time.Second)
		status, answer := send(t, http.MethodDelete, s.f.Admin+"/admin/workers?drain=20s&url="+guest.URL(), "")
		if status >= 300 {
			s.complain("remove a worker: %d %s", status, answer)
		}
		if !testenv.Poll(30*time.Second, func() bool {
			_, workers := send(t, http.MethodGet, s.f.Admin+"/admin/workers", "")
			return !strings.Contains(workers, guest.URL())
		}) {
			s.complain("the worker that was removed is still there")
		}
		s.visits.Add(1)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// TestThousandsOfConnections has 1,000 clients that only connect, and 2,000 streams at the same time. Every stream is
// complete, and a further request is served meanwhile.
func TestThousandsOfConnections(t *testing.T) {
	// A stream takes six descriptors: two for each of its connections in this process, and three in the router, which
	// serves no more clients than it has descriptors for.
	idle, streaming := 1000, 2000
	if n := network.Descriptors(); n > 0 && n < 8*(idle+streaming)/2 {
		idle, streaming = n/16, n/8
		t.Logf("with a limit of %d descriptors (ulimit -n) there are only %d connections and %d streams", n, idle, streaming)
	}
	workers := []*mockengine.Server{}
	for range 4 {
		workers = append(workers, mock(t, func(c *mockengine.Config) { c.Speed, c.MaxSequences, c.Blocks = 0.6, 1024, 50_000 }))
	}
	// least_load spreads the streams evenly also on a machine so busy that workers seem to be frozen. So no worker gets
	// more streams than it runs at a time, and all of them run together.
	f := serve(t, workers, "--policy", "least_load")
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range idle {
		c, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streaming}}
	defer client.CloseIdleConnections()
	var begun, ended sync.WaitGroup
	var whole, together atomic.Int64
	answers := make([]string, streaming)
	begun.Add(streaming)
	for i := range streaming {
		ended.Go(func() {
			body := fmt.Sprintf(`{"model":"mock","max_tokens":150,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"%s"}]}`,
				prose(fmt.Sprintf("stream%d", i), 20))
			resp, err := client.Post(f.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
			together.Add(1)
			begun.Done()
			if err != nil {
				answers[i] = err.Error()
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			together.Add(-1)
			if answers[i] = string(text); err == nil && strings.HasSuffix(answers[i], "data: [DONE]\n\n") && strings.Contains(answers[i], `"finish_reason":"length"`) {
				whole.Add(1)
			}
		})
	}
	begun.Wait() // every stream has its header, so its first token has come
	same := together.Load()
	if same < int64(streaming)/2 {
		t.Errorf("only %d streams were under way at the same time", same)
	}
	began := time.Now()
	if a := f.chat(t, []message{{"user", "meanwhile"}}, ""); a.status != http.StatusOK {
		t.Errorf("a request beside the streams: %d %s", a.status, a.body)
	}
	t.Logf("a request beside the streams took %v; at most %d streams at the same time", time.Since(began), same)
	ended.Wait()
	if n := whole.Load(); n != int64(streaming) {
		i := slices.IndexFunc(answers, func(a string) bool { return !strings.HasSuffix(a, "data: [DONE]\n\n") })
		t.Errorf("%d of %d streams are complete; stream %d ends …%s", n, streaming, i, answers[max(i, 0)][max(0, len(answers[max(i, 0)])-300):])
	}
	f.idle(t)
}
