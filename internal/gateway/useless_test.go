package gateway_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/testenv"
)

var manyRequests = flag.Int("useless.requests", 400, "requests of each case of TestAUselessWorkerAttractsNoTraffic and TestManyUselessWorkersFailNoRequest; docs/reliability.md tells of 20000")

// answering answers without delay with a given status, content type and body.
func answering(status int, kind, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", kind)
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// uselessAnswers has the useless answers that a worker may give without delay, by name.
func uselessAnswers() map[string]http.HandlerFunc {
	refusal := func(status int, headers ...string) http.HandlerFunc {
		return answering(status, "application/json", fmt.Sprintf(`{"error":{"message":"no %d"}}`, status), headers...)
	}
	both := func(whole, stream http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Streams") != "" {
				stream(w, r)
				return
			}
			whole(w, r)
		}
	}
	done := answering(200, "text/event-stream", doneChunk)
	return map[string]http.HandlerFunc{
		"429": refusal(429), "429 for a while": refusal(429, "Retry-After", "30"),
		"401": refusal(401), "403": refusal(403), "404": refusal(404), "400": refusal(400), "500": refusal(500), "503": refusal(503),
		"529":         refusal(529), // a status that retry_statuses does not list
		"encoded":     answering(200, "application/json", whole, "Content-Encoding", "gzip"),
		"HTML":        answering(200, "text/html", "<html><body>Welcome</body></html>"),
		"empty":       answering(200, "application/json", ""),
		"broken JSON": both(answering(200, "application/json", whole[:len(whole)-9]), answering(200, "text/event-stream", firstChunk[:40]+"\n\n"+doneChunk)),
		"only [DONE]": done,
		"another model": both(answering(200, "application/json", strings.Replace(whole, "{", `{"model":"other",`, 1)),
			answering(200, "text/event-stream", strings.Replace(firstChunk, "{", `{"model":"other",`, 1)+lastChunk+doneChunk)),
	}
}

// well gives a good answer after 5 ms.
func well(w http.ResponseWriter, r *http.Request) {
	takes(r, 5*time.Millisecond)
	if r.Header.Get("X-Streams") != "" {
		streaming(w, r)
		return
	}
	plain(w, r)
}

// A worker gives useless answers sooner than the others answer, so its load is always the lowest. No request that
// another worker could serve may fail.
func TestAUselessWorkerAttractsNoTraffic(t *testing.T) {
	requests, policies := int64(*manyRequests), []string{"marginal", "least_load", "round_robin"}
	if testing.Short() {
		requests, policies = min(requests, 100), policies[:1]
	}
	for name, answer := range uselessAnswers() {
		for _, streamed := range []string{"", "1"} {
			for _, policy := range policies {
				t.Run(fmt.Sprintf("%s/streamed=%t/%s", name, streamed != "", policy), func(t *testing.T) {
					t.Parallel()
					var asked atomic.Int64
					ill := worker(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); answer(w, r) })
					f := serve(t, func(s *settings) { s.policy = policy }, ill, worker(t, well), worker(t, well))
					var failures atomic.Int64
					var next atomic.Int64
					var clients sync.WaitGroup
					body := chat
					if streamed != "" {
						body = strings.Replace(chat, "{", `{"stream":true,`, 1)
					}
					for range 16 {
						clients.Go(func() {
							for next.Add(1) <= requests {
								resp, text, err := f.try(context.Background(), body, "X-Streams", streamed)
								if err != nil || resp.StatusCode != 200 || !strings.Contains(text, `"hello"`) || strings.Contains(text, "other") {
									if failures.Add(1) <= 3 {
										t.Errorf("%v %v %q", err, resp, text)
									}
								}
							}
						})
					}
					clients.Wait()
					t.Logf("%d of %d requests failed; the useless worker was asked %d times", failures.Load(), requests, asked.Load())
					// The limit allows for the requests until the worker is known as useless, and for the requests under way at that
					// time.
					if asked.Load() > max(requests/10, 40) {
						t.Errorf("the useless worker was asked %d times in %d requests", asked.Load(), requests)
					}
					f.idle(t)
				})
			}
		}
	}
}

// Several workers give the same useless answers, sooner than the others answer. Only the first requests may fail: each
// of them may be tried at up to three useless workers before anything is known about these workers.
func TestManyUselessWorkersFailNoRequest(t *testing.T) {
	requests, fleets := int64(*manyRequests), [][2]int{{2, 1}, {2, 2}, {3, 1}, {3, 2}}
	if testing.Short() {
		fleets = [][2]int{{2, 1}, {3, 2}}
	}
	answers := uselessAnswers()
	answers["an error with 200"] = answering(200, "application/json", `{"error":{"message":"why"}}`)
	for _, name := range []string{"401", "404", "500", "an error with 200", "HTML", "another model"} {
		for _, size := range fleets {
			t.Run(fmt.Sprintf("%s/%d useless/%d good", name, size[0], size[1]), func(t *testing.T) {
				t.Parallel()
				var asked atomic.Int64
				var urls []string
				for range size[0] {
					urls = append(urls, worker(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); answers[name](w, r) }))
				}
				for range size[1] {
					urls = append(urls, worker(t, well))
				}
				f := serve(t, func(s *settings) { s.policy = "marginal" }, urls...)
				var failures, next atomic.Int64
				var clients sync.WaitGroup
				for range 16 {
					clients.Go(func() {
						for next.Add(1) <= requests {
							resp, text, err := f.try(context.Background(), chat)
							if err != nil || resp.StatusCode != 200 || !strings.Contains(text, `"hello"`) || strings.Contains(text, "other") {
								failures.Add(1)
							}
						}
					})
				}
				clients.Wait()
				t.Logf("%d of %d requests failed; the useless workers were asked %d times", failures.Load(), requests, asked.Load())
				if failures.Load() > max(requests/100, 16) { // each client's first request may fail
					t.Errorf("%d of %d requests failed", failures.Load(), requests)
				}
				if asked.Load() > max(requests/10, 40)*int64(size[0]) {
					t.Errorf("the useless workers were asked %d times in %d requests", asked.Load(), requests)
				}
				f.idle(t)
			})
		}
	}
}

// Two workers give the same useless answer, and the third worker was not asked yet: it must be asked.
func TestTwoEqualAnswersDoNotEndTheSearch(t *testing.T) {
	for name, answer := range uselessAnswers() {
		ill := []string{worker(t, answer), worker(t, answer)}
		f := serve(t, func(s *settings) { s.policy = "round_robin" }, append(ill, worker(t, plain))...)
		for i := range 30 {
			if resp, text := f.post(t, chat); resp.StatusCode != 200 || text != whole {
				t.Errorf("%s: request %d: %d %s", name, i, resp.StatusCode, text)
			}
		}
	}
}

// The request is bad. The client gets the workers' answer, and no breaker opens. Once the router knows that such
// requests are at fault, it sends most further bad requests to only one worker.
func TestARequestThatAllWorkersRefuseIsTheClientsFault(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		status int
	}{
		"404 for a model that nobody serves": {answering(404, "application/json", `{"error":{"message":"why"}}`), 404},
		"401 for a bad key":                  {answering(401, "application/json", `{"error":{"message":"why"}}`), 401},
		"400 for a bad request":              {answering(400, "application/json", `{"error":{"message":"why"}}`), 400},
		"500 for a deadly request":           {answering(500, "application/json", `{"error":{"message":"why"}}`), 500},
		"a stream of a refusal":              {answering(200, "text/event-stream", `data: {"error":{"message":"why","code":400}}`+"\n\n"+doneChunk), 200},
	} {
		for _, workers := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s/%d", name, workers), func(t *testing.T) {
				var asked atomic.Int64
				var urls []string
				for range workers {
					urls = append(urls, worker(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); c.answer(w, r) }))
				}
				f := serve(t, func(s *settings) { s.policy = "round_robin" }, urls...)
				const requests = 100
				for range requests {
					resp, text := f.post(t, chatStreamed)
					if resp.StatusCode != c.status || !strings.Contains(text, "why") || strings.Contains(text, "[DONE]") {
						t.Fatalf("%d %s", resp.StatusCode, text)
					}
				}
				if extra := asked.Load() - requests; extra > int64(8*workers) {
					t.Errorf("%d second opinions in %d requests", extra, requests)
				}
				snap := f.fleet.Snapshot()
				for _, h := range []fleet.Holder{0, 1, 2}[:workers] {
					if got := snap.Standing(h, fleet.ScopeOf("m", "/v1/chat/completions"), "", time.Now().UnixNano()); got != (fleet.Standing{Share: 1}) {
						t.Errorf("holder %d: %+v", h, got)
					}
				}
			})
		}
	}
}

// Second opinions are at most a tenth of the traffic, and a hundred in addition.
func TestBadRequestsDoNotDoubleTheLoad(t *testing.T) {
	var asked atomic.Int64
	answer := func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("X-Bad") != "" {
			answering(400, "application/json", `{"error":{"message":"bad"}}`)(w, r)
			return
		}
		plain(w, r)
	}
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, worker(t, answer), worker(t, answer), worker(t, answer))
	const requests = 1500
	for i := range requests {
		bad := ""
		if i%3 == 0 {
			bad = "1"
		}
		if resp, text := f.post(t, chat, "X-Bad", bad); (resp.StatusCode == 400) != (bad != "") {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	if extra := asked.Load() - requests; extra > requests/10+100 {
		t.Errorf("%d second opinions in %d requests, a third of them bad", extra, requests)
	}
	snap := f.fleet.Snapshot()
	for h := range fleet.Holder(3) {
		if got := snap.Standing(h, fleet.ScopeOf("m", "/v1/chat/completions"), "", time.Now().UnixNano()); got != (fleet.Standing{Share: 1}) {
			t.Errorf("holder %d: %+v", h, got)
		}
	}
}

// A client knows requests that one worker refuses and others serve, such as a prompt that is too long there. Such
// requests must not lead to the worker being left out.
func TestAClientCannotPoisonAWorker(t *testing.T) {
	short := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Long") != "" {
			answering(400, "application/json", `{"error":{"message":"too long"}}`)(w, r)
			return
		}
		plain(w, r)
	}
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, worker(t, short), worker(t, plain))
	for i := range 300 {
		long := ""
		if i/2%3 == 0 {
			long = "1"
		}
		if resp, text := f.post(t, chat, "X-Long", long); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		if got := f.fleet.Snapshot().Standing(0, fleet.ScopeOf("m", "/v1/chat/completions"), "", time.Now().UnixNano()); got.Bar != fleet.BarNone {
			t.Fatalf("request %d: %+v though the worker serves two requests of three", i, got)
		}
	}
}

// A worker that is useless for one endpoint serves the other endpoint. The same code handles a worker that is useless
// for one model: the router counts useless answers by scope, and a scope is a model at an endpoint.
// The two paths have two dialects, or one: vLLM serves /rerank and /v1/rerank, SGLang only the second.
func TestAWorkerThatIsUselessForOneEndpointServesTheOther(t *testing.T) {
	const ranked = `{"results":[{"index":0,"relevance_score":0.5}]}`
	for _, c := range []struct{ serves, body, answer, lacks, other string }{
		{"/v1/chat/completions", chat, whole, "/v1/completions", `{"model":"m","prompt":"hi"}`},
		{"/v1/rerank", `{"model":"m","query":"a","documents":["b"]}`, ranked, "/rerank", `{"model":"m","query":"a","documents":["b"]}`},
	} {
		var served, refused atomic.Int64
		url := worker(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == c.lacks {
				refused.Add(1)
				answering(404, "application/json", `{"error":{"message":"no such endpoint"}}`)(w, r)
				return
			}
			served.Add(1)
			answering(200, "application/json", c.answer)(w, r)
		})
		f := serve(t, func(s *settings) { s.policy = "random" }, url, worker(t, answering(200, "application/json", c.answer)))
		for range 120 {
			for _, q := range [][2]string{{c.serves, c.body}, {c.lacks, c.other}} {
				if status, text := f.call(t, "POST", q[0], q[1], "Content-Type", "application/json"); status != 200 {
					t.Fatalf("%s: %d %s", q[0], status, text)
				}
			}
		}
		if served.Load() < 30 || refused.Load() > 10 {
			t.Errorf("the worker was asked %d times for %s, which it serves, and %d times for %s", served.Load(), c.serves, refused.Load(), c.lacks)
		}
	}
}

// One log line of level WARN names the worker, the model, the endpoint and the kind of answer. One line of level INFO
// says that the worker is asked again.
func TestAWorkerThatIsLeftOutForItsAnswersIsSeen(t *testing.T) {
	var well atomic.Bool
	ill := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if well.Load() {
			plain(w, r)
			return
		}
		answering(401, "application/json", `{"error":{"message":"no"}}`)(w, r)
	})
	var lines testenv.Buffer
	f := serve(t, func(s *settings) {
		s.policy = "round_robin"
		s.parts = func(p *gateway.Parts) { p.Log = slog.New(slog.NewTextHandler(&lines, nil)) }
	}, ill, worker(t, plain))
	useless := func() []fleet.Useless { return f.fleet.Snapshot().Useless(0) }
	for i := 0; len(useless()) == 0; i++ {
		if i == 300 {
			t.Fatalf("the worker is not left out after %d requests", i)
		}
		f.post(t, chat, "Authorization", "Bearer secret")
	}
	scope := fleet.ScopeOf("m", "/v1/chat/completions")
	if got := useless(); len(got) != 1 || got[0].Scope != scope || f.ScopeName(scope) != (gateway.LeftOut{Model: "m", Endpoint: "/v1/chat/completions"}) {
		t.Errorf("%+v %+v", got, f.ScopeName(scope))
	}
	well.Store(true)
	testenv.Until(t, "a trial succeeds", func() bool {
		f.post(t, chat)
		return len(useless()) == 0
	})
	text := lines.String()
	for _, want := range []string{"level=WARN msg=\"worker gets no requests for this model and endpoint", "worker=" + ill, "model=m",
		"endpoint=/v1/chat/completions", "answer=refused", "level=INFO msg=\"worker gets requests again"} {
		if strings.Count(text, want) == 0 {
			t.Errorf("the log lacks %s:\n%s", want, text)
		}
	}
	if strings.Count(text, "level=WARN") != 1 || strings.Count(text, "gets requests again") != 1 || strings.Contains(text, "secret") {
		t.Errorf("log:\n%s", text)
	}
}

// The failed attempts of a record begin with a reason of warmpath_retries_total. The advice to try again is only for
// the client, so a record does not contain it.
func TestAFailedAttemptIsRecordedByReasonAndStatus(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"refused: answered 401":       answering(401, "application/json", `{"error":{"message":"no"}}`),
		"limited: answered 429":       answering(429, "application/json", `{"error":{"message":"no"}}`),
		"failed: answered 503: ":      answering(503, "application/json", `{"error":{"message":"no"}}`),
		"broken: answered 500: ":      answering(500, "application/json", `{"error":{"message":"no"}}`),
		"useless: gave no answer: \"": answering(200, "text/html", "<html></html>"),
	} {
		ill := worker(t, answer)
		f := serve(t, func(s *settings) { s.policy = "round_robin" }, ill, worker(t, plain))
		for f.post(t, chat); len(f.last(t, 1).Failed) == 0; {
			f.post(t, chat)
		}
		if got := f.last(t, 1).Failed[0]; !strings.HasPrefix(got, ill+": "+want) || strings.Contains(got, "try again") {
			t.Errorf("failed is %q, want %q", got, ill+": "+want)
		}
	}
}

// The client's error says that the answer was useless; the record's error has only the cause.
func TestAUselessAnswerOfTheOnlyWorkerIsReportedAsUseless(t *testing.T) {
	f := serve(t, nil, worker(t, answering(200, "text/html", "<html></html>")))
	resp, text := f.post(t, chat)
	if resp.StatusCode != 502 || !strings.Contains(text, "the worker's answer was useless, and no other worker could answer; try again") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if got := f.last(t, 1).Error; strings.Contains(got, "try again") || !strings.Contains(got, "gave no answer") {
		t.Errorf("error is %q, want the cause alone", got)
	}
}

func TestTheClientGetsTheSmallestRetryAfter(t *testing.T) {
	limit := func(after string) http.HandlerFunc {
		return answering(429, "application/json", `{"error":{"message":"slow down"}}`, "Retry-After", after)
	}
	var asked atomic.Int64
	count := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { asked.Add(1); h(w, r) }
	}
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, worker(t, count(limit("40"))), worker(t, count(limit("20"))), worker(t, count(limit("100000"))))
	resp, text := f.post(t, chat)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "20" || asked.Load() != 3 {
		t.Errorf("%d workers asked: %d, Retry-After %q: %s", asked.Load(), resp.StatusCode, resp.Header.Get("Retry-After"), text)
	}
	resp, text = f.post(t, chat)
	if after := resp.Header.Get("Retry-After"); resp.StatusCode != 429 || after != "20" && after != "19" || asked.Load() != 3 {
		t.Errorf("all are limited, %d asked: %d, Retry-After %q: %s", asked.Load(), resp.StatusCode, after, text)
	}
	checkShape(t, resp, text)
	if until := f.fleet.Snapshot().LimitedUntil(2, "", time.Now().UnixNano()); until > time.Now().Add(time.Minute).UnixNano() {
		t.Errorf("a worker is left alone for %v, more than a minute", time.Until(time.Unix(0, until)))
	}
}

// All workers name another model in their answers than the request does. The other name means the same model, so the
// answers are good.
func TestAFleetThatNamesItsModelOtherwiseIsBelieved(t *testing.T) {
	for _, workers := range []int{1, 2} {
		for _, streamed := range []bool{false, true} {
			var asked atomic.Int64
			body, other := chat, answering(200, "application/json", strings.Replace(whole, "{", `{"model":"m-2026-11",`, 1))
			if streamed {
				body = chatStreamed
				other = answering(200, "text/event-stream", strings.Replace(firstChunk, "{", `{"model":"m-2026-11",`, 1)+lastChunk+doneChunk)
			}
			var urls []string
			for range workers {
				urls = append(urls, worker(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); other(w, r) }))
			}
			f := serve(t, func(s *settings) { s.policy = "round_robin" }, urls...)
			for range 60 {
				if resp, text := f.post(t, body); resp.StatusCode != 200 || !strings.Contains(text, "m-2026-11") {
					t.Fatalf("%d %s", resp.StatusCode, text)
				}
			}
			if extra := asked.Load() - 60; extra > 10 {
				t.Errorf("%d workers, streamed %t: %d second opinions in 60 requests", workers, streamed, extra)
			}
		}
	}
}
