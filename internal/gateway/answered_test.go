package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// pieces is an engine that streams an answer of events, with one token each. The first event comes after first, and
// each further event after each. usage is the number of tokens in the usage; 0: the stream has no usage. A broken
// stream has no end.
type pieces struct {
	first, each   time.Duration
	events, usage int
	broken        bool
}

func (p pieces) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(text string) {
		_, _ = io.WriteString(w, "data: "+text+"\n\n")
		w.(http.Flusher).Flush()
	}
	for i := range p.events {
		after := p.each
		if i == 0 {
			after = p.first
		}
		takes(r, after)
		say(`{"choices":[{"index":0,"text":"a","finish_reason":null}]}`)
	}
	if p.broken {
		return
	}
	say(`{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`)
	if p.usage > 0 {
		say(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, p.usage))
	}
	say("[DONE]")
}

// inOnePiece returns an engine that answers in one piece after the time d. tokens is the number of tokens in the usage;
// 0: the answer has no usage.
func inOnePiece(d time.Duration, tokens int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		takes(r, d)
		usage := ""
		if tokens > 0 {
			usage = fmt.Sprintf(`,"usage":{"prompt_tokens":3,"completion_tokens":%d}`, tokens)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]`+usage+`}`)
	}
}

// answered lists the metric of answers by service level, such as "5s/100ms kept 1, 2s broken 1", and leaves out zeros.
func answered(t *testing.T, tel *telemetry.Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	tel.Handler(telemetry.Sources{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var found []string
	for _, m := range regexp.MustCompile(`warmpath_service_level_answers_total\{kept="(\w+)",level="([^"]+)"\} ([1-9]\d*)`).FindAllStringSubmatch(w.Body.String(), -1) {
		found = append(found, m[2]+map[string]string{"true": " kept ", "false": " broken "}[m[1]]+m[3])
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// complete posts a completion request to g, and returns the record of the request.
func complete(g *gateway.Gateway, body io.Reader, headers ...string) telemetry.Record {
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	func() {
		defer func() { _ = recover() }() // an answer that breaks off aborts the handler
		g.ServeHTTP(httptest.NewRecorder(), r)
	}()
	return g.Telemetry.Last(1)[0]
}

const (
	streamed   = `{"stream":true,"model":"m","prompt":[1,2,3]}`
	unstreamed = `{"model":"m","prompt":[1,2,3]}`
)

func TestAnswersWithinAndBeyondEachServiceLevelAreCounted(t *testing.T) {
	for _, c := range []struct {
		name, body string
		levels     string
		engine     http.Handler
		want       string
	}{
		{"a stream is judged by its first token and by the mean of the others", streamed, "5s/100ms,2s/50ms,2s,500ms",
			pieces{first: time.Second, each: 80 * time.Millisecond, events: 11, usage: 11},
			"2s kept 1, 2s/50ms broken 1, 500ms broken 1, 5s/100ms kept 1"},
		{"the usage says how many tokens a stream has", streamed, "5s/50ms,5s/10ms",
			pieces{first: time.Second, each: 80 * time.Millisecond, events: 11, usage: 41}, // 800 ms for 40 tokens
			"5s/10ms broken 1, 5s/50ms kept 1"},
		{"without a usage the tokens of a stream are counted", streamed, "5s/100ms,5s/50ms",
			pieces{first: time.Second, each: 80 * time.Millisecond, events: 11},
			"5s/100ms kept 1, 5s/50ms broken 1"},
		{"the choices of a stream grow at the same time", strings.Replace(streamed, "{", `{"n":2,`, 1), "5s/100ms,5s/50ms",
			pieces{first: time.Second, each: 80 * time.Millisecond, events: 21, usage: 42}, // 1.6 s for 20 tokens of each choice
			"5s/100ms kept 1, 5s/50ms broken 1"},
		{"the answers to several prompts grow at the same time", strings.Replace(streamed, "[1,2,3]", `[[1],[2]]`, 1), "5s/100ms,5s/50ms",
			pieces{first: time.Second, each: 80 * time.Millisecond, events: 21, usage: 41},
			"5s/100ms kept 1, 5s/50ms broken 1"},
		{"an answer in one piece has the time of both limits", unstreamed, "2s/50ms,2s/100ms,2s",
			inOnePiece(3*time.Second, 12), // 2 s + 11 · 50 ms and 2 s + 11 · 100 ms; 2s alone limits what was not seen
			"2s/100ms kept 1, 2s/50ms broken 1"},
		{"the choices of an answer in one piece grow at the same time", strings.Replace(unstreamed, "{", `{"n":3,`, 1), "2s/50ms,2s/100ms",
			inOnePiece(3050*time.Millisecond, 34), "2s/100ms kept 1, 2s/50ms broken 1"}, // 34 tokens: one choice has 12 or more
		{"a usage beyond the client's limit is not believed", strings.Replace(unstreamed, "{", `{"max_tokens":2,`, 1), "2s/50ms",
			inOnePiece(3*time.Second, 1_000_000_000), "2s/50ms broken 1"},
		{"the length of an answer in one piece without a usage is not known", unstreamed, "2s/50ms,2s", inOnePiece(3*time.Second, 0), ""},
		{"a stream that breaks off counts elsewhere", streamed, "5s/100ms", pieces{first: time.Second, events: 3, broken: true}, ""},
		{"a refusal counts elsewhere", streamed, "5s/100ms", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }), ""},
		{"a request without levels keeps and breaks none", streamed, "", pieces{first: time.Second, events: 3}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := askEnginesAs(t, rig{gateway: gateway.DefaultConfig(), answer: c.engine.ServeHTTP}, 1, time.Millisecond, time.Millisecond)
			var all []fleet.ServiceLevel
			if c.levels != "" {
				all = levelsOf(strings.Split(c.levels, ",")...)
			}
			x.UseServiceLevels(gateway.ServiceLevels{All: all})
			rec := complete(x.Gateway, strings.NewReader(c.body))
			if got := answered(t, x.Telemetry); got != c.want {
				t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
			}
			var shown []string
			for _, name := range rec.KeptLevels {
				shown = append(shown, name+" kept 1")
			}
			for _, name := range rec.BrokenLevels {
				shown = append(shown, name+" broken 1")
			}
			if slices.Sort(shown); strings.Join(shown, ", ") != c.want {
				t.Errorf("%s: the record has %q\nwant %s", c.name, shown, c.want)
			}
		})
	}
}

// slow is a body that arrives after a time.
type slow struct {
	io.Reader
	after time.Duration
}

func (s *slow) Read(b []byte) (int, error) {
	<-time.After(s.after)
	s.after = 0
	return s.Reader.Read(b)
}

func TestTheTimeOfALevelBeginsWhenTheRequestArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := askEnginesAs(t, rig{gateway: gateway.DefaultConfig(), answer: pieces{first: time.Second, events: 3}.ServeHTTP}, 1, time.Millisecond, time.Millisecond)
		x.UseServiceLevels(gateway.ServiceLevels{All: levelsOf("2s", "3s")})
		complete(x.Gateway, &slow{strings.NewReader(streamed), 1500 * time.Millisecond})
		if got := answered(t, x.Telemetry); got != "2s broken 1, 3s kept 1" {
			t.Errorf("the body came after 1.5 s, the first token after 2.5 s: %s", got)
		}
	})
}

func TestTheWaitInTheQueueCountsForALevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := askEnginesAs(t, rig{gateway: gateway.DefaultConfig(), answer: pieces{first: time.Second, each: time.Second, events: 3}.ServeHTTP, parts: func(p *gateway.Parts) {
			p.Queue, p.MaxRequests = queue.DefaultConfig(), 1
			p.Queue.Order = queue.FCFS
		}}, 1, time.Millisecond, time.Millisecond)
		x.UseServiceLevels(gateway.ServiceLevels{All: levelsOf("2s", "5s")})
		l, err := network.NewMemory().Host("10.0.0.1").Listen("tcp", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- x.Serve(ctx, l) }() // gives the turns of the queue; ends with ctx, and the test waits for it
		var requests sync.WaitGroup
		for range 2 {
			requests.Go(func() { complete(x.Gateway, strings.NewReader(streamed)) })
			synctest.Wait() // the first request is at the engine before the second one comes
		}
		requests.Wait()
		if got := answered(t, x.Telemetry); got != "2s broken 1, 2s kept 1, 5s kept 2" {
			t.Errorf("first tokens after 1 s and, after a wait of 3 s, 4 s: %s", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A client must not be able to make new series: a level that only its header names has a common name in the metric.
func TestALevelThatOnlyARequestNamesHasACommonName(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	f.UseServiceLevels(gateway.ServiceLevels{
		All: levelsOf("1h/1m"), ByModel: map[string][]fleet.ServiceLevel{"other": levelsOf("1h/30m")}, ByTenant: map[string][]fleet.ServiceLevel{"t": levelsOf("50m/1m")}, ByRequest: true,
	})
	f.post(t, chat, "X-Warmpath-Service-Levels", "60m/1m,60m/30m,50m/1m,40m/1m")
	rec := f.last(t, 1)
	if got := answered(t, f.Telemetry); got != "1h0m0s/1m0s kept 1, 1h0m0s/30m0s kept 1, 50m0s/1m0s kept 1, request kept 1" {
		t.Error(got)
	}
	if got := fmt.Sprint(rec.KeptLevels); got != "[1h0m0s/1m0s 1h0m0s/30m0s 50m0s/1m0s 40m0s/1m0s]" {
		t.Errorf("the record has %s", got)
	}
}

// A reload may remove a level while a request with this level is under way.
func TestARequestCountsForTheLevelsThatItCameWith(t *testing.T) {
	came, answer := make(chan struct{}), make(chan struct{})
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		close(came)
		<-answer
		plain(w, r)
	}))
	f.UseServiceLevels(gateway.ServiceLevels{All: levelsOf("50m/1m")})
	var request sync.WaitGroup
	request.Go(func() { _, _, _ = f.try(t.Context(), chat) })
	<-came
	f.UseServiceLevels(gateway.ServiceLevels{All: levelsOf("40m/1m")})
	close(answer)
	request.Wait()
	f.last(t, 1)
	if got := answered(t, f.Telemetry); got != "50m0s/1m0s kept 1" {
		t.Error(got)
	}
}
