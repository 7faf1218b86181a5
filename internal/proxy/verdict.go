package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// holdBack checks a complete answer before its first byte is forwarded. It returns true if the answer must not be
// forwarded, because another worker may do better.
func (x *exchange) holdBack(body []byte) bool {
	w := &x.watch
	switch {
	case x.res.Status >= 300:
		x.refused(body, x.res.Status)
	case x.stream:
		return false
	case w.Whole() && w.Failed():
		x.refused(body, w.ErrorCode())
	case w.Complete() && !x.otherModel():
		return false
	case w.Complete():
		x.keep(body)
		x.useless(fmt.Errorf("%s answered for the model %q", x.a.Worker, w.Model()))
	case w.Whole() && w.Answers():
		x.keep(body)
		x.useless(fmt.Errorf("%s did not finish its answer", x.a.Worker))
	default:
		x.useless(fmt.Errorf("%s gave no answer: %.64q", x.a.Worker, body))
	}
	return true
}

// overflows checks the beginning of an answer in one piece that is larger than maxHeld. It returns true if the answer
// must not be forwarded: for a refusal, and for an answer without a list of choices, because engines send this list
// before any long field.
func (x *exchange) overflows(body []byte) bool {
	switch {
	case x.stream || x.opaque || x.res.FirstByte:
		return false
	case x.res.Status >= 300:
		x.refused(body, x.res.Status)
		x.shorten()
		return true
	case !x.watch.Answers():
		x.useless(fmt.Errorf("%s gave no answer in %d bytes: %.64q", x.a.Worker, len(body), body))
		return true
	}
	return false
}

// shorten replaces the body of an answer that is held back and incomplete.
func (x *exchange) shorten() {
	a := x.res.Answer
	a.Header.Del("Content-Length")
	a.Header.Del("Content-Encoding")
	a.Header.Set("Content-Type", "application/json")
	a.Body = append(x.a.Dialect.AppendError(nil, api.LongRefusal(a.Status)), '\n')
}

// useless ends an exchange whose answer cannot be used although the worker answered. Another worker may be asked.
func (x *exchange) useless(why error) {
	x.res.Retryable = true
	x.fail(Useless, api.WorkerUseless(why))
}

// refused holds back an answer that refuses the request. code is the status of the answer, or the code of the error in
// its body.
func (x *exchange) refused(body []byte, code int) {
	x.keep(body)
	x.res.Retryable = true
	if w, err := x.client.worker(x.a.Worker); err == nil && w.Key != "" {
		x.res.Answer.Body = []byte(api.WithoutSecrets(string(x.res.Answer.Body), w.Key))
		body = x.res.Answer.Body
		x.res.Answer.Header.Del("Content-Length")
	}
	answered := fmt.Errorf("%s answered %d: %.256s", x.a.Worker, x.res.Status, body)
	again := slices.Contains(x.client.cfg.RetryStatuses, code)
	shutdown := x.shutdown(body)
	switch {
	case shutdown || again && code != http.StatusInternalServerError:
		x.res.Untaken = shutdown || code == http.StatusServiceUnavailable
		x.fail(Refused, api.WorkerUnreachable(answered))
	case code == http.StatusTooManyRequests:
		x.res.Class, x.res.RetryAfter = Limited, x.ans.retryAfter(time.Now())
	case code >= 300 && code < 500:
		x.res.Class = Rejected
	default:
		// Another 5xx status than 500, such as 529, says nothing about the request, so another worker is asked.
		x.res.Retryable = again || x.res.Status < 300 || code != http.StatusInternalServerError
		x.fail(EngineError, api.WorkerUseless(answered))
	}
}

// keep stores the answer in the result instead of forwarding it.
func (x *exchange) keep(body []byte) {
	h := make(http.Header)
	x.nameAnswer(h)
	x.ans.copyTo(h)
	if x.stream {
		delete(h, "Content-Length") // the body is only the beginning of the answer
	}
	x.res.Answer = &Answer{Status: x.ans.status, Header: h, Body: bytes.Clone(body)}
}

// misbegun returns nil if the received bytes can be the beginning of an answer, else the reason why not. In a stream
// the first event with data decides. Comments before that event are forwarded as they come, because they keep clients
// from timing out.
func (x *exchange) misbegun(held []byte) error {
	if x.watching && !x.res.FirstByte && x.watch.Broken() {
		return fmt.Errorf("%s gave no answer: %.64q", x.a.Worker, held)
	}
	if !x.stream || x.judged || x.watch.Events() == 0 {
		return nil
	}
	x.judged = true
	switch {
	case !x.watch.Answers():
		return fmt.Errorf("%s began its stream with an event that is not part of an answer", x.a.Worker)
	case x.otherModel():
		return fmt.Errorf("%s answered for the model %q", x.a.Worker, x.watch.Model())
	}
	return nil
}

// otherModel reports whether the answer names another model than the request.
func (x *exchange) otherModel() bool {
	name := x.watch.Model()
	return len(name) > 0 && x.a.Model != "" && x.a.Knows != nil && string(name) != x.a.Model && !x.a.Knows(name)
}

// shutdown reports whether body says that the engine takes no more requests.
func (x *exchange) shutdown(body []byte) bool {
	for _, text := range x.client.cfg.RetryTexts {
		if bytes.Contains(body, []byte(text)) {
			return true
		}
	}
	return false
}
