package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// askedEngines is a gateway in front of engines that are asked for token ids, because the models' files cannot be
// read. It runs in virtual time over a network in memory.
type askedEngines struct {
	*gateway.Gateway
	t     *testing.T
	fleet *fleet.Fleet

	mu    sync.Mutex
	asked map[string]int // number of questions for token ids, by the engine's address; guarded by mu
}

// askEngines starts n engines that answer a question for ids after answersAfter. perToken is the time that they take to
// compute a prompt token, as the fleet assumes. Call askEngines in a bubble of synctest.
func askEngines(t *testing.T, n int, answersAfter, perToken time.Duration) *askedEngines {
	t.Helper()
	return askEnginesAs(t, rig{gateway: gateway.DefaultConfig()}, n, answersAfter, perToken)
}

// rig says how the gateway and the engines of askEnginesAs differ from those of askEngines.
type rig struct {
	gateway gateway.Config
	answer  http.HandlerFunc     // how engines answer requests; nil: plain
	parts   func(*gateway.Parts) // changes the gateway's parts; nil: no change
}

// askEnginesAs does the same as askEngines, as how says.
func askEnginesAs(t *testing.T, how rig, n int, answersAfter, perToken time.Duration) *askedEngines {
	t.Helper()
	memory := network.NewMemory()
	if how.answer == nil {
		how.answer = plain
	}
	x := &askedEngines{t: t, asked: map[string]int{}}
	timing := fleet.DefaultTiming
	timing.Token, timing.Attention = float64(perToken)/float64(time.Millisecond), 0
	x.fleet = fleet.New(fleet.Config{Timing: timing})
	for i := range n {
		address := fmt.Sprintf("10.0.0.%d:80", i+1)
		l, err := memory.Host(strings.TrimSuffix(address, ":80")).Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/tokenize" {
				how.answer(w, r)
				return
			}
			x.mu.Lock()
			x.asked["http://"+address]++
			x.mu.Unlock()
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-time.After(answersAfter):
				_, _ = w.Write([]byte(`{"count":3,"tokens":[1,2,3]}`))
			case <-r.Context().Done():
			}
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close(); <-done })
		x.fleet.Put("http://"+address, fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, CanTokenize: true})
	}
	router, err := warmpath.New(warmpath.Options{Fleet: x.fleet, Policy: policy.DefaultKVAware().Spec("kv_aware")})
	if err != nil {
		t.Fatal(err)
	}
	client := memory.Host("10.0.1.1")
	cfg := proxy.DefaultConfig()
	cfg.Network = client
	upstream := proxy.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = upstream.Run(ctx) }()
	transport := &http.Transport{DialContext: client.Dial}
	source := tokens.New(tokens.DefaultConfig(), &http.Client{Transport: transport})
	t.Cleanup(func() { cancel(); <-ended; source.Close(); transport.CloseIdleConnections() })
	parts := gateway.Parts{
		Router: router, Fleet: x.fleet, Tokens: source, Client: upstream, Bodies: proxy.NewBodies(proxy.DefaultBodyConfig()),
		Telemetry: telemetry.New(telemetry.DefaultConfig()), Log: slog.New(slog.DiscardHandler),
		Scoped: func(string, int, string, string) {},
	}
	if how.parts != nil {
		how.parts(&parts)
	}
	x.Gateway = gateway.New(how.gateway, parts)
	return x
}

// complete sends a completion request. prompt is JSON: a text in quotes, or ids in brackets. It returns how long the
// request waited for its ids.
func (x *askedEngines) complete(prompt string) (waited time.Duration) {
	x.t.Helper()
	w := httptest.NewRecorder()
	x.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":`+prompt+`}`)))
	if w.Code != http.StatusOK {
		x.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return time.Duration(x.Telemetry.Last(1)[0].TokensMS * float64(time.Millisecond))
}

// The gateway reports the load of each engine to the token source.
func TestTheLeastBusyEngineIsAskedForTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := askEngines(t, 2, 3*time.Millisecond, time.Millisecond)
		x.fleet.Report(0, fleet.Reported{At: time.Now().UnixNano(), Running: 5, Waiting: 2})
		if got := x.Tokens.Loads()(tokens.Worker{ID: 0}); got.Requests != 7 || got.Waiting != 2 {
			t.Errorf("the busy engine has %d requests, %d of them waiting", got.Requests, got.Waiting)
		}
		for i := range 20 {
			x.complete(fmt.Sprintf(`"prompt %d"`, i))
		}
		busy, idle := x.asked["http://10.0.0.1:80"], x.asked["http://10.0.0.2:80"]
		if busy > 1 || idle < 19 { // one call is made before either engine has answered a call
			t.Errorf("the busy engine was asked %d times, the idle one %d times", busy, idle)
		}
	})
}

// The gateway reports to the token source how long a token takes to compute, and whether prompts were cached.
func TestARequestWaitsForIdsAsLongAsAMatchIsWorth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = 4 * 10_000 // number of bytes of a prompt with about 10,000 tokens
		// A request waits for its ids at most this long: a tenth of the time that its tokens take to compute, times the
		// chance that the prompt is cached.
		for perToken, want := range map[time.Duration][3]time.Duration{
			100 * time.Microsecond: {50 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond},
			200 * time.Microsecond: {100 * time.Millisecond, 10 * time.Millisecond, 200 * time.Millisecond},
		} {
			x := askEngines(t, 1, time.Hour, perToken)
			waits := func(when string, want time.Duration) {
				t.Helper()
				if got := x.complete(`"` + strings.Repeat(when, text/len(when)) + `"`); got < want*9/10 || got > want*11/10 {
					t.Errorf("%v a token, %s: waited %v, want about %v", perToken, when, got, want)
				}
				testenv.Pass(time.Minute) // long enough for the gateway to give up its question to the engine
			}
			ids := func(first int) string {
				all := make([]string, 64)
				for i := range all {
					all[i] = fmt.Sprint(first + i)
				}
				return "[" + strings.Join(all, ",") + "]"
			}
			waits("nothing is known", want[0])
			for i := range 200 {
				x.complete(ids(64 * i))
			}
			waits("nothing was cached", want[1])
			for range 200 {
				x.complete(ids(0))
			}
			waits("all was cached", want[2])
		}
	})
}
