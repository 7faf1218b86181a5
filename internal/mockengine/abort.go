package mockengine

import (
	"net/http"
	"sync"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/internal/engine"
)

// abortable has the requests under way that a client can abort by their ids.
type abortable struct {
	mu   sync.Mutex
	runs map[*run]bool
}

func (a *abortable) add(x *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs == nil {
		a.runs = map[*run]bool{}
	}
	a.runs[x] = true
}

func (a *abortable) remove(x *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.runs, x)
}

// abort serves SGLang's /abort_request. As there, the answer is the same whether or not a request has the id.
func (l *life) abort(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		id, all := text(body, "rid"), body.GetBool("abort_all")
		l.abortable.mu.Lock()
		for x := range l.abortable.runs {
			if all || id != "" && x.requestID == id {
				closeOnce(x.aborted)
			}
		}
		l.abortable.mu.Unlock()
		w.WriteHeader(http.StatusOK)
	})
}

// isAborted reports whether a client has aborted the request.
func (x *run) isAborted() bool {
	select {
	case <-x.aborted:
		return true
	default:
		return false
	}
}

// cut ends the answers of an aborted request after the tokens that are there.
func (x *run) cut() {
	for i := range x.parts {
		p := &x.parts[i]
		if p.done() {
			continue
		}
		if x.rank != nil {
			x.rank.cancel([]*engine.Request{&p.request})
		}
		a, n := &p.answer, int(p.progress.tokens.Load())
		a.tokens = append(a.tokens[:n:n], tokenEnd)
		a.text, a.call, a.reason, a.stop = min(a.text, n), nil, "abort", ""
		p.progress.tokens.Store(int64(len(a.tokens)))
	}
}
