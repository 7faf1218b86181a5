package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// oneIn gives answer, which is useless, to one request in n at random, and serves the other requests without delay.
func oneIn(n int, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case rand.IntN(n) == 0:
			answer(w, r)
		case r.Header.Get("X-Streams") != "":
			streaming(w, r)
		default:
			plain(w, r)
		}
	}
}

// everySecond gives answer to every second request, and serves the others.
func everySecond(answer http.HandlerFunc) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 0 {
			answer(w, r)
			return
		}
		plain(w, r)
	}
}

// breaks closes the connection instead of answering.
func breaks(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}

// breaksOff closes the connection after the first event of a stream.
func breaksOff(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, firstChunk)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// load sends requests from 16 clients at the same time, and returns the number of failed requests. headers returns the
// headers of request i.
func (f *fixture) load(requests int64, body string, headers func(i int64) []string) (failures int64) {
	var next, failed atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := next.Add(1); i <= requests; i = next.Add(1) {
				var h []string
				if headers != nil {
					h = headers(i)
				}
				resp, text, err := f.try(context.Background(), body, h...)
				if err != nil || resp.StatusCode != 200 || !strings.Contains(text, `"hello"`) || strings.Contains(text, `"error"`) {
					failed.Add(1)
				}
			}
		})
	}
	clients.Wait()
	return failed.Load()
}

// One of three workers answers sooner than the others, and some of its answers are useless. As long as nothing was sent
// to the client, another worker can serve the request, so no request may fail.
func TestAWorkerThatIsUselessNowAndThenFailsNoRequest(t *testing.T) {
	requests, shares := int64(*manyRequests), []int{1, 3, 10}
	if testing.Short() {
		requests, shares = min(requests, 100), []int{3}
	}
	answers := uselessAnswers()
	answers["no answer"] = breaks
	answers["a message that is null"] = answering(200, "application/json", `{"choices":[{"index":0,"message":null,"finish_reason":"stop"}]}`)
	answers["a refusal of 300 KB"] = answering(404, "text/html", strings.Repeat("<p>not here</p>", 20000))
	answers["JSON of 300 KB"] = answering(200, "application/json", `{"x":"`+strings.Repeat("x", 300000)+`"}`)
	answers["HTML of 300 KB"] = answering(200, "text/html", strings.Repeat("<p>hello</p>", 25000))
	for _, name := range []string{"404", "500", "503", "HTML", "no answer", "a message that is null", "a refusal of 300 KB", "JSON of 300 KB", "HTML of 300 KB"} {
		for _, n := range shares {
			t.Run(fmt.Sprintf("%s/one in %d", name, n), func(t *testing.T) {
				t.Parallel()
				f := serve(t, func(s *settings) { s.policy = "marginal" }, worker(t, oneIn(n, answers[name])), worker(t, well), worker(t, well))
				if n := f.load(requests, chat, nil); n > 0 {
					t.Errorf("%d of %d requests failed", n, requests)
				}
				f.idle(t)
			})
		}
	}
}

// Another worker cannot continue a stream that has begun. So only few streams may begin at a worker that loses streams.
func TestAWorkerThatLosesStreamsIsLeftOut(t *testing.T) {
	requests, shares := max(int64(*manyRequests), 2000), []int{1, 3, 4, 10}
	if testing.Short() {
		requests, shares = 800, []int{3}
	}
	for _, n := range shares {
		t.Run(fmt.Sprintf("one in %d", n), func(t *testing.T) {
			t.Parallel()
			f := serve(t, func(s *settings) { s.policy = "marginal" }, worker(t, oneIn(n, breaksOff)), worker(t, well), worker(t, well))
			body := strings.Replace(chat, "{", `{"stream":true,`, 1)
			lost := f.load(requests, body, func(int64) []string { return []string{"X-Streams", "1"} })
			t.Logf("%d of %d streams were lost", lost, requests)
			// Streams are lost until the difference between the workers is significant. After that, the streams under
			// way are lost, and each trial may lose one more stream. This takes longest when each other worker gets a
			// quarter of this worker's streams: then one run in a thousand loses 55 streams.
			if lost > max(requests/100, 75) {
				t.Errorf("%d of %d streams were lost", lost, requests)
			}
			f.idle(t)
		})
	}
}

// hollow is a complete answer without a text, for which the engine generated no token.
const hollow = `{"choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":0}}`

// The client has the empty answer, so another worker cannot give a better one. So only few requests may go to a worker
// that gives empty answers sooner than the others give good ones.
func TestAWorkerWithEmptyAnswersIsLeftOut(t *testing.T) {
	requests := max(int64(*manyRequests), 2000)
	if testing.Short() {
		requests = 800
	}
	const empty = `{"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":0}}`
	const text = `{"id":"cmpl-1","choices":[{"index":0,"text":"hello","finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":1}}`
	for _, c := range []struct{ path, body, empty, good string }{
		{"/v1/chat/completions", chat, hollow, whole}, {"/v1/completions", `{"model":"m","prompt":"hi"}`, empty, text},
	} {
		t.Run(c.path, func(t *testing.T) {
			t.Parallel()
			good := func(w http.ResponseWriter, r *http.Request) {
				takes(r, 5*time.Millisecond)
				answering(200, "application/json", c.good)(w, r)
			}
			ill := worker(t, answering(200, "application/json", c.empty))
			f := serve(t, func(s *settings) { s.policy = "marginal" }, ill, worker(t, good), worker(t, good))
			var next, lost atomic.Int64
			var clients sync.WaitGroup
			for range 16 {
				clients.Go(func() {
					for next.Add(1) <= requests {
						if _, text := f.call(t, "POST", c.path, c.body, "Content-Type", "application/json"); text == c.empty {
							lost.Add(1)
						}
					}
				})
			}
			clients.Wait()
			t.Logf("%d of %d answers were empty", lost.Load(), requests)
			if lost.Load() > max(requests/100, 75) {
				t.Errorf("%d of %d answers were empty", lost.Load(), requests)
			}
			f.idle(t)
		})
	}
}

// No worker is at fault for an empty answer if the request asks for no token, if all workers give empty answers to such
// requests, or if the engine generated a token: the one that ends the answer.
func TestAnEmptyAnswerMayBeRight(t *testing.T) {
	noToken := strings.Replace(chat, "{", `{"max_tokens":0,`, 1)
	atOnce := strings.Replace(hollow, `"completion_tokens":0`, `"completion_tokens":1`, 1)
	for name, c := range map[string]struct {
		body   string
		others http.HandlerFunc
		answer string
	}{
		"no token is asked for":          {noToken, plain, hollow},
		"all workers answer the same":    {chat, everySecond(answering(200, "application/json", hollow)), hollow},
		"the model ends its answer":      {chat, plain, atOnce},
		"the engine reports no usage":    {chat, plain, hollow[:strings.Index(hollow, `,"usage"`)] + "}"},
		"the answer is a call of a tool": {chat, plain, strings.Replace(whole, `"content":"hello"`, `"content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := serve(t, func(s *settings) { s.policy = "round_robin" }, worker(t, everySecond(answering(200, "application/json", c.answer))), worker(t, c.others))
			for i := range 200 {
				f.post(t, c.body)
				if out := f.fleet.Snapshot().Useless(0); len(out) > 0 {
					t.Fatalf("request %d: the worker is left out: %+v", i, out)
				}
			}
		})
	}
}

// One request in five makes every worker close the connection, before the answer or after the answer's first event. The
// requests are at fault, so all other requests are still served, no breaker opens, and at most one worker is left out.
func TestRequestsThatBreakConnectionsOpenNoBreaker(t *testing.T) {
	for name, deadly := range map[string]http.HandlerFunc{"before the answer": breaks, "behind the first event": breaksOff} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Deadly") != "" {
					deadly(w, r)
				}
				well(w, r)
			}
			f := serve(t, func(s *settings) { s.policy = "marginal" }, worker(t, answer), worker(t, answer), worker(t, answer))
			var innocent atomic.Int64
			var next atomic.Int64
			var clients sync.WaitGroup
			requests := int64(1500)
			if testing.Short() {
				requests = 500
			}
			for range 16 {
				clients.Go(func() {
					for i := next.Add(1); i <= requests; i = next.Add(1) {
						if rand.IntN(5) == 0 {
							_, _, _ = f.try(context.Background(), chatStreamed, "X-Deadly", "1", "X-Streams", "1")
							continue
						}
						if resp, text, err := f.try(context.Background(), chat); err != nil || resp.StatusCode != 200 || text != whole {
							innocent.Add(1)
						}
					}
				})
			}
			clients.Wait()
			if n := innocent.Load(); n > 0 {
				t.Errorf("%d of %d requests failed beside those that break connections", n, requests)
			}
			snap := f.fleet.Snapshot()
			out := 0
			for h := range fleet.Holder(3) {
				if !snap.Available(h, time.Now().UnixNano()) {
					t.Errorf("the breaker of holder %d is open", h)
				}
				out += len(snap.Useless(h))
			}
			t.Logf("%d of 3 workers are left out", out)
			if out > 1 {
				t.Errorf("%d of three workers are left out for what all of them do", out)
			}
			f.idle(t)
		})
	}
}

// More than half of the requests are bad, and all workers refuse these. One worker begins to refuse good requests, too,
// and answers sooner than the other workers. The gateway must leave this worker out.
func TestAWorkerThatTurnsUselessAmongBadRequestsIsFound(t *testing.T) {
	requests := max(int64(*manyRequests), 2000)
	if testing.Short() {
		requests = 1500
	}
	refusal := answering(401, "application/json", `{"error":{"message":"no"}}`)
	var turned atomic.Bool
	answer := func(ill bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch {
			case ill && turned.Load(), r.Header.Get("X-Bad") != "":
				refusal(w, r)
			default:
				well(w, r)
			}
		}
	}
	f := serve(t, func(s *settings) { s.policy = "marginal" }, worker(t, answer(true)), worker(t, answer(false)), worker(t, answer(false)))
	var next, good, failed, late atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := next.Add(1); i <= requests; i = next.Add(1) {
				turned.Store(i > requests/3)
				if rand.IntN(10) < 6 {
					_, _, _ = f.try(context.Background(), chat, "X-Bad", "1")
					continue
				}
				good.Add(1)
				if resp, text, err := f.try(context.Background(), chat); err != nil || resp.StatusCode != 200 || text != whole {
					failed.Add(1)
					if i > requests*2/3 {
						late.Add(1)
					}
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d of %d good requests failed, %d of them in the last third", failed.Load(), good.Load(), late.Load())
	// Every sixteenth refusal gets a second opinion, and two refusals in five are of good requests. So about six good
	// requests fail for each second opinion, until a second opinion on a good request shows the worker's fault. The
	// probability that 125 good requests fail is 1 in 20,000.
	if failed.Load() > max(good.Load()/100, 125) {
		t.Errorf("%d of %d good requests failed", failed.Load(), good.Load())
	}
	if late.Load() > max(good.Load()/100, 8) {
		t.Errorf("%d good requests failed in the last third, when the worker is known", late.Load())
	}
}

// Each bad request comes in a new scope, in which nothing is known about any worker, so every refusal needs a second
// opinion: the answer of another worker.
func TestSecondOpinionsStayWithinTheirBudget(t *testing.T) {
	var asked atomic.Int64
	answer := func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answering(400, "application/json", `{"error":{"message":"bad"}}`)(w, r)
	}
	const models, each = 400, 3
	f := serve(t, func(s *settings) {
		s.policy = "round_robin"
		s.facts.Models = nil
		for i := range models {
			s.facts.Models = append(s.facts.Models, fleet.Model{ID: fmt.Sprint("m", i), MaxModelLen: 4096})
		}
	}, worker(t, answer), worker(t, answer), worker(t, answer))
	for i := range models * each {
		if resp, text := f.post(t, strings.Replace(chat, `"m"`, fmt.Sprintf(`"m%d"`, i%models), 1)); resp.StatusCode != 400 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	t.Logf("%d second opinions in %d requests", asked.Load()-models*each, models*each)
	if extra := asked.Load() - models*each; extra > models*each/10+100 || extra < 100 {
		t.Errorf("%d second opinions in %d requests; want a tenth, and 100 at once", extra, models*each)
	}
}

// A worker is useless for very many model names. The gateway must leave it out for all of them.
func TestAWorkerThatIsUselessForManyModelsIsLeftOutForAll(t *testing.T) {
	requests := max(int64(*manyRequests), 1000)
	const models = 1200
	var asked, next, failed atomic.Int64
	ill := worker(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answering(404, "application/json", `{"error":{"message":"no such model"}}`)(w, r)
	})
	f := serve(t, func(s *settings) {
		s.policy = "marginal"
		s.facts.Models = nil
		for i := range models {
			s.facts.Models = append(s.facts.Models, fleet.Model{ID: fmt.Sprint("m", i), MaxModelLen: 4096})
		}
	}, ill, worker(t, well), worker(t, well))
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := next.Add(1); i <= requests; i = next.Add(1) {
				body := strings.Replace(chat, `"m"`, fmt.Sprintf(`"m%d"`, i%models), 1)
				if resp, text, err := f.try(context.Background(), body); err != nil || resp.StatusCode != 200 || text != whole {
					failed.Add(1)
				}
			}
		})
	}
	clients.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), requests)
	}
	t.Logf("%d of %d requests asked the useless worker", asked.Load(), requests)
	if asked.Load() > max(requests/20, 60) {
		t.Errorf("the useless worker was asked %d times in %d requests", asked.Load(), requests)
	}
	useless := f.fleet.Snapshot().Useless(0)
	if len(useless) == 0 || useless[0].Scope != fleet.EveryScope || f.ScopeName(useless[0].Scope).Model != "*" {
		t.Errorf("left out in %d scopes; want all models and endpoints first", len(useless))
	}
}

// The other worker is unavailable, and the worker that was useless is good again: the remaining worker must still be
// asked.
func TestTheLastWorkerIsAskedThoughItsAnswersWereUseless(t *testing.T) {
	var recovered atomic.Bool
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		if recovered.Load() {
			plain(w, r)
			return
		}
		breaks(w, r)
	}), worker(t, plain))
	for range 30 {
		f.post(t, chat)
	}
	if len(f.fleet.Snapshot().Useless(0)) == 0 {
		t.Fatal("the worker is not left out")
	}
	recovered.Store(true)
	f.fleet.SetHealth(1, false, "gone")
	if resp, text := f.post(t, chat); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// A worker answers 429 to one API key. Requests with other keys must still go to that worker.
func TestA429LimitsOnlyTheTenantThatGotIt(t *testing.T) {
	var asked atomic.Int64
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer heavy" {
			asked.Add(1)
			answering(429, "application/json", `{"error":{"message":"slow down"}}`, "Retry-After", "30")(w, r)
			return
		}
		plain(w, r)
	}))
	for range 5 {
		if resp, text := f.post(t, chat, "Authorization", "Bearer heavy"); resp.StatusCode != 429 {
			t.Errorf("heavy: %d %s", resp.StatusCode, text)
		}
		if resp, text := f.post(t, chat, "Authorization", "Bearer light"); resp.StatusCode != 200 {
			t.Errorf("light: %d %s", resp.StatusCode, text)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("the worker was asked %d times for the key to which it said 429", asked.Load())
	}
}

// A client's requests name a rank that only one worker has, and their streams break. No other worker can serve such
// requests, so the broken streams are no evidence against the worker.
func TestARequestThatNamesItsWorkerIsNoEvidence(t *testing.T) {
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Deadly") != "" {
			breaksOff(w, r)
		}
		streaming(w, r)
	}), worker(t, streaming))
	facts := f.fleet.Snapshot().Workers()[0].Facts
	facts.Ranks = 2
	f.fleet.Put(f.fleet.Snapshot().Workers()[0].URL, facts)
	deadly := strings.Replace(chatStreamed, "{", `{"routed_dp_rank":1,`, 1)
	for range 40 {
		_, _, _ = f.try(context.Background(), deadly, "X-Deadly", "1")
	}
	if useless := f.fleet.Snapshot().Useless(0); len(useless) > 0 {
		t.Errorf("the worker is left out for the requests of a client that named it: %v", useless)
	}
}

// Three of five workers answer 429 to every key, and each request has its own key. After the first requests, no request
// is tried at all three of these workers.
func TestWorkersThatLimitManyTenantsAreNotAllAsked(t *testing.T) {
	limits := answering(429, "application/json", `{"error":{"message":"slow down"}}`, "Retry-After", "30")
	f := serve(t, func(s *settings) { s.policy = "marginal" }, worker(t, limits), worker(t, limits), worker(t, limits), worker(t, well), worker(t, well))
	requests := int64(*manyRequests)
	failed := f.load(requests, chat, func(i int64) []string { return []string{"Authorization", fmt.Sprint("Bearer key-", i)} })
	t.Logf("%d of %d requests failed", failed, requests)
	// Each client's first request may fail, before anything is known about the workers.
	if failed > max(requests/100, 16) {
		t.Errorf("%d of %d requests failed", failed, requests)
	}
}

// Three of four workers refuse one of eight tenants, and answer sooner than the fourth worker. The fourth worker must
// serve the tenant's requests.
func TestWorkersThatRefuseATenantDoNotFailItsRequests(t *testing.T) {
	refuses := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer key-0" {
			answering(404, "application/json", `{"error":{"message":"no"}}`)(w, r)
			return
		}
		plain(w, r)
	}
	f := serve(t, func(s *settings) { s.policy = "marginal" }, worker(t, refuses), worker(t, refuses), worker(t, refuses), worker(t, well))
	requests := int64(*manyRequests)
	failed := f.load(requests, chat, func(i int64) []string { return []string{"Authorization", fmt.Sprint("Bearer key-", i%8)} })
	t.Logf("%d of %d requests failed", failed, requests)
	if failed > max(requests/100, 16) {
		t.Errorf("%d of %d requests failed", failed, requests)
	}
}
