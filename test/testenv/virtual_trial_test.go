package testenv_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
)

// marked is a text in the body of a client's request. Workers give useless answers to requests with this text.
const marked = "trouble"

const completions = "/v1/completions"

// refusals has the kinds of useless answers that a trial draws from; see lieAbout.
var refusals = []string{"401", "404", "429", "500", "html"}

// trials are the kinds of useless answers in a trial.
var trials = []string{
	"one in k",      // one worker gives a useless answer to each k-th request
	"bad requests",  // all workers give useless answers to the bad requests of one client
	"no answer",     // all workers close the connection of a bad request
	"broken stream", // all workers close the connection of a bad request after the first event
}

// honest is the number of good requests in a trial. The trial checks only the answers to good requests.
const honest = 16

// trial ends all faults, makes workers give useless answers to a part of the requests, and sends good requests one
// after the other. All good requests must succeed, because there is always a worker that is idle and would answer well.
// The step's field How is the kind of trial, and Seed selects the useless answer. N is k for the kind "one in k", and
// otherwise the number of bad requests before each good request.
func (w *world) trial(s step) {
	w.calm()
	var peers []*engine
	for _, e := range w.listed() {
		if e.setup.Model == "mock" {
			peers = append(peers, e)
		}
	}
	if len(peers) < 2 || w.setup.Attempts < 2 || w.first() != "" {
		return // there is no second worker with the model, or the router may not send a request twice
	}
	refusal := refusals[s.Seed%uint64(len(refusals))]
	bad, path := peers, "/v1/chat/completions"
	if s.How == "one in k" {
		// Use an endpoint that other trials do not use, because the router keeps the behaviour of workers by endpoint and
		// model. Shortly after bad requests that all workers refused, or after useless answers of another worker, the router
		// takes a refusal for a fault of the request.
		bad, path = peers[s.Worker%len(peers):][:1], completions
		if slices.ContainsFunc(peers, func(e *engine) bool { return e.blamed && e != bad[0] }) {
			return
		}
		bad[0].blamed = true
	}
	var asked atomic.Int64
	for _, e := range bad {
		e.replace(func() (func(), error) {
			return e.inFront(func(rw http.ResponseWriter, r *http.Request, body []byte) (done bool) {
				trouble := bytes.Contains(body, []byte(marked))
				if s.How == "one in k" {
					trouble = asked.Add(1)%int64(s.N) == 0
				}
				if trouble {
					w.useless(rw, r, s.How, refusal)
				}
				return trouble
			})
		})
	}
	pass(settled)
	if !w.eventually(settle, w.unready) {
		return
	}
	for i := range uint64(honest) {
		if s.How != "one in k" {
			for range s.N {
				w.send(w.short(s.Seed+i, marked, path))
			}
		}
		a := w.short(s.Seed+i, "honest", path)
		w.send(a)
		w.eventually(a.limit, func() string {
			if w.waiting(a) {
				return a.what + " is not answered"
			}
			return ""
		})
		if !strings.HasPrefix(a.outcome, "200") {
			w.problem("%s, number %d, ended with %s, though another worker would have served it (%s, N %d, answer %s)", a.what, i, a.outcome, s.How, s.N, refusal)
		}
		if w.first() != "" {
			return
		}
		pass(100 * time.Millisecond)
	}
	for _, e := range bad {
		e.replace(nil)
	}
}

// settled is longer than the time between two health checks.
const settled = 12 * time.Second

// short makes a request of user for an answer of three tokens.
func (w *world) short(seed uint64, user, path string) *ask {
	prompt := `"messages":[{"role":"user","content":` + line(text(seed)) + `}]`
	if path == completions {
		prompt = `"prompt":` + line(text(seed))
	}
	stream := seed%2 == 0
	return &ask{
		what: "a request by user " + user, key: fmt.Sprint(path, " ", seed), model: "mock", user: user, path: path, stream: stream,
		limit: w.setup.RequestTimeout + margin,
		body:  fmt.Appendf(nil, `{"model":"mock","max_tokens":3,"user":%q,"stream":%v,%s}`, user, stream, prompt),
	}
}

// useless gives a useless answer, or closes the connection.
func (w *world) useless(rw http.ResponseWriter, r *http.Request, how, refusal string) {
	switch how {
	case "broken stream":
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, `data: {"id":"x","object":"text_completion","model":"mock","choices":[{"index":0,"text":" a","delta":{"content":" a"}}]}`+"\n\n")
		_ = http.NewResponseController(rw).Flush()
		fallthrough
	case "no answer":
		panic(http.ErrAbortHandler)
	}
	lieAbout(rw, r, refusal)
}

// inFront starts the mock engine with a proxy at the engine's address. The proxy calls answer for each generation
// request. If answer returns false, the proxy sends the request to the mock engine.
func (e *engine) inFront(answer func(rw http.ResponseWriter, r *http.Request, body []byte) (done bool)) (end func(), err error) {
	cfg := e.mock()
	cfg.Listen = fmt.Sprintf("%s:%d", e.ip, httpPort+1)
	server, err := mockengine.New(cfg)
	if err != nil {
		return nil, err
	}
	l, err := e.host.Listen("tcp", fmt.Sprintf(":%d", httpPort))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DialContext: e.host.Dial}
	behind := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: cfg.Listen}) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	ctx, stop := context.WithCancel(context.Background())
	front := &http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/completions") {
				body, _ := io.ReadAll(r.Body)
				if answer(rw, r, body) {
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			behind.ServeHTTP(rw, r)
		}),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan struct{}, 2)
	// Both goroutines end with the function that inFront returns, which also waits for them.
	go func() { _ = server.Run(ctx); ended <- struct{}{} }()
	go func() { _ = front.Serve(l); ended <- struct{}{} }()
	<-server.Ready()
	return func() {
		stop()
		_ = front.Close()
		<-ended
		<-ended
		transport.CloseIdleConnections()
	}, nil
}
