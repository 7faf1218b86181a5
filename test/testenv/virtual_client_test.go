package testenv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// ask is one request of a client.
type ask struct {
	began   time.Time
	limit   time.Duration // time within which the request must end
	what    string        // description for messages
	key     string        // requests with the same key must get the same answer; "": the answer is not compared
	prompt  string        // key of the prompt; "": the prompt is not made of token ids
	target  string        // URL of the worker that the request names; "": none
	rank    int
	user    string // the client's API key; "": none
	model   string
	leave   func(*ask, context.CancelFunc) // called at the sending, so that the client can leave early; nil: the client stays
	how     string
	path    string
	body    []byte
	stream  bool
	last    bool   // the request is under way when the router is stopped
	outcome string // result of the request, set at its end
	status  int
}

// margin is added to the router's request_timeout: after this time a request must have ended. Other deadlines of a
// connection may fire late by a quarter of their length, which is at most 2.5 s in these tests.
const margin = 10 * time.Second

var corpus = strings.Fields(`a router sends each request to the worker whose cache is already warm for it and tells why
	it did so while engines keep blocks of tokens and drop the oldest of them when they need room for others`)

// prompt makes a prompt that has a common prefix with other prompts of its family. At least the last ids of the prompt,
// as many as least says, belong only to this prompt. prompt stores the ids, because checks compare the router's claims
// with them.
func (w *world) prompt(seed uint64, least int) (key string, ids []uint32) {
	family := seed % 7
	length := least + int(seed>>3%400)
	key = fmt.Sprintf("%d/%d", seed, length)
	if ids := w.prompts[key]; ids != nil {
		return key, ids
	}
	shared := rand.New(rand.NewPCG(family, 1))
	own := rand.New(rand.NewPCG(seed, 2))
	common := min(int(seed>>12%uint64(length)), length-least)
	for i := range length {
		from := own
		if i < common {
			from = shared
		}
		ids = append(ids, 1000+from.Uint32N(50000))
	}
	w.prompts[key] = ids
	w.recent = append(w.recent, key)
	return key, ids
}

func text(seed uint64) string {
	d := rand.New(rand.NewPCG(seed, 3))
	var b strings.Builder
	for range 20 + d.IntN(200) {
		b.WriteString(corpus[d.IntN(len(corpus))])
		b.WriteByte(' ')
	}
	return b.String()
}

// question makes a request whose max_tokens is above least. how is the form of the prompt: ids, text or chat.
func (w *world) question(seed uint64, how string, least int) *ask {
	d := rand.New(rand.NewPCG(seed, 4))
	a := &ask{how: how, stream: d.IntN(2) == 0, limit: w.setup.RequestTimeout + margin, model: "mock", path: "/v1/completions"}
	if d.IntN(12) == 0 {
		a.model = []string{"other", "nobody's"}[d.IntN(2)]
	}
	tokens := least + 1 + d.IntN(40)
	body := map[string]any{"model": a.model, "max_tokens": tokens, "stream": a.stream, "user": fmt.Sprint("user", seed%5), "priority": seed % 3}
	switch how {
	case "chat":
		a.path = "/v1/chat/completions"
		body["messages"] = []map[string]string{{"role": "system", "content": text(seed % 3)}, {"role": "user", "content": text(seed)}}
	case "text":
		body["prompt"] = text(seed)
	default:
		var ids []uint32
		a.prompt, ids = w.prompt(seed, 1)
		body["prompt"] = ids
	}
	a.key = fmt.Sprint(how, " ", seed, " ", tokens)
	a.what = fmt.Sprintf("%s of seed %d, stream %v, model %s", how, seed, a.stream, a.model)
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	a.body = raw
	return a
}

// send sends request a. Another goroutine reads the answer.
func (w *world) send(a *ask) {
	a.began = time.Now()
	w.mu.Lock()
	w.asks = append(w.asks, a)
	w.mu.Unlock()
	go func() {
		ctx, cancel := context.WithCancel(w.base)
		defer cancel()
		a.outcome = w.exchange(ctx, cancel, a)
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, b := range w.asks {
			if a == b {
				w.asks = append(w.asks[:i], w.asks[i+1:]...)
				break
			}
		}
		w.counts[a.outcome]++
		w.used[a.prompt] = time.Now()
	}()
}

// half is a request body that sends only the part first, and then blocks until ctx ends.
type half struct {
	ctx   context.Context
	first io.Reader
}

func (h *half) Read(b []byte) (int, error) {
	n, err := h.first.Read(b)
	if err == io.EOF {
		<-h.ctx.Done()
		return 0, h.ctx.Err()
	}
	return n, err
}

// exchange sends request a, reads its answer and returns the outcome.
func (w *world) exchange(ctx context.Context, cancel context.CancelFunc, a *ask) string {
	var body io.Reader = bytes.NewReader(a.body)
	if a.how == "body" {
		body = &half{ctx, bytes.NewReader(a.body[:len(a.body)/2])}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+routerIP+":8080"+a.path, body)
	if err != nil {
		panic(err)
	}
	req.ContentLength = int64(len(a.body))
	if a.target != "" {
		req.Header.Set("X-Warmpath-Policy", "direct")
		req.Header.Set("X-Warmpath-Target", a.target)
		req.Header.Set("X-Data-Parallel-Rank", fmt.Sprint(a.rank))
	}
	if a.user != "" {
		req.Header.Set("Authorization", "Bearer "+a.user)
	}
	if a.leave != nil {
		a.leave(a, cancel)
	}
	resp, err := w.clients.Do(req)
	if err != nil {
		if a.last && ctx.Err() == nil {
			w.problem("%s got no answer when the router stopped: %v", a.what, err)
		}
		return "no answer"
	}
	defer func() { _ = resp.Body.Close() }()
	a.status = resp.StatusCode
	var answer []byte
	switch a.how {
	case "deaf": // this client does not read the answer
		<-ctx.Done()
		return "left"
	case "slow":
		one := make([]byte, 16)
		for err == nil {
			pass(50 * time.Millisecond)
			var n int
			n, err = resp.Body.Read(one)
			answer = append(answer, one[:n]...)
		}
		if err == io.EOF {
			err = nil
		}
	default:
		answer, err = io.ReadAll(resp.Body)
	}
	switch {
	case ctx.Err() != nil:
		return "left"
	case err != nil && a.last:
		w.problem("%s was cut without a word when the router stopped: %v\n%q", a.what, err, tail(answer))
		return "cut"
	case err != nil:
		return "cut"
	case resp.StatusCode != http.StatusOK:
		return fmt.Sprint(resp.StatusCode)
	}
	return w.judge(a, resp, answer)
}

// choice has the fields that the tests read from an answer, or from an event of a stream.
type choice struct {
	Model   string `json:"model"`
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Error any `json:"error"`
}

func (c *choice) text() string {
	if len(c.Choices) == 0 {
		return ""
	}
	return c.Choices[0].Text + c.Choices[0].Message.Content + c.Choices[0].Delta.Content
}

// judge checks an answer with status 200 that the client has read to its end. It does not check the text if another
// server was at the engine's address during the request.
func (w *world) judge(a *ask, resp *http.Response, answer []byte) string {
	worker := resp.Header.Get("X-Warmpath-Worker")
	honest := false
	for _, e := range w.engines {
		if e.url() == worker {
			w.mu.Lock()
			honest = !e.lying && e.liedAt.Before(a.began)
			w.mu.Unlock()
		}
	}
	got, model, err := a.read(answer)
	switch {
	case errors.Is(err, errEvent):
		return "error event"
	case err != nil:
		w.problem("the answer to %s by %s is not whole, and does not say so: %v\n%q", a.what, worker, err, tail(answer))
		return "not whole"
	case !honest:
		return "200 of a liar"
	case model != a.model:
		w.problem("the answer to %s by %s is of model %s", a.what, worker, model)
		return "other model"
	}
	w.mu.Lock()
	before, known := w.answers[a.key]
	w.answers[a.key] = got
	w.mu.Unlock()
	if known && before != got {
		w.problem("the answer to %s by %s is %q, and was %q before", a.what, worker, got, before)
		return "other answer"
	}
	return "200"
}

var errEvent = errors.New("an error event")

func (a *ask) read(answer []byte) (got, model string, err error) {
	var c choice
	if !a.stream {
		err := json.Unmarshal(answer, &c)
		return c.text(), c.Model, err
	}
	done := false
	for _, event := range bytes.Split(answer, []byte("\n\n")) {
		data, is := bytes.CutPrefix(bytes.TrimSpace(event), []byte("data: "))
		switch {
		case !is:
			continue
		case string(data) == "[DONE]":
			done = true
			continue
		}
		c = choice{}
		if err := json.Unmarshal(data, &c); err != nil {
			return got, model, err
		}
		if c.Error != nil {
			return got, model, errEvent
		}
		got, model = got+c.text(), c.Model
	}
	if !done {
		return got, model, errors.New("no [DONE]")
	}
	return got, model, nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-300):] }

// operator sends a request to the admin listener. It returns the body if the status is 200.
func (w *world) operator(method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+routerIP+":9090"+path, nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey)
	resp, err := w.clients.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, tail(body))
	}
	return body, err
}
