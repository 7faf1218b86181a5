package mockengine

import (
	"fmt"
	"net/http"
	"time"

	"github.com/valyala/fastjson"
)

// FaultDoc describes the requests of POST /mock/fault for the users of the mock engine.
const FaultDoc = `  {"kind":"die"}                            close all sockets and do not come back
  {"kind":"restart","down":"2s"}            die, come back with an empty cache at the same addresses
  {"kind":"kill_engine"}                    vLLM's EngineCore dies: error event, then [DONE]
  {"kind":"freeze"}                         answer nothing at all
  {"kind":"stall"}                          make no step, while /health answers
  {"kind":"drop_events","share":0.01}       lose live event messages; or "count":3 for the next ones, with "rank"
  {"kind":"lose_replay","share":0.7}        lose replayed messages and end markers
  {"kind":"limit_replay","count":1000}      end each replay after count messages, without its end marker
  {"kind":"errors","share":0.1}             answer generation requests with 500
  {"kind":"cut","share":0.1}                cut streams in the middle
  {"kind":"slow_first_token","delay":"3s"}  add to the time of each first token
  {"kind":"clear"}                          end all faults that last

"on":false ends freeze and stall; share 0, count 0 and delay "0s" end the others.`

// setFault serves POST /mock/fault. The body has a kind of fault and the parameters of this kind: see [FaultDoc]. The
// answer has the current faults, except for the kinds die and restart: the answer to them is 202 without a body, before
// the engine ends.
func (l *life) setFault(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		o, err := l.applyFault(body)
		if err != nil {
			l.refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		if o == nil {
			l.showFaults(w, r)
			return
		}
		// The client must get the whole answer before the connection is cut. Without a length the answer would be sent
		// in chunks, and the last chunk would follow only after this handler has returned.
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		l.work.Add(1)
		go func() { // ends when Run takes the order, or when this life ends
			defer l.work.Done()
			o.done = make(chan struct{})
			select {
			case l.server.orders <- *o:
			case <-l.ctx.Done():
			}
		}()
	})
}

func (l *life) showFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, l.server.Faults())
}

// applyFault changes the faults. For die and restart it returns an order for Run instead.
func (l *life) applyFault(body *fastjson.Value) (*order, error) {
	f := l.server.Faults()
	on := true
	if v := body.Get("on"); v != nil {
		on = v.Type() == fastjson.TypeTrue
	}
	share := body.GetFloat64("share")
	switch kind := text(body, "kind"); kind {
	case "die":
		return &order{}, nil
	case "restart":
		down, err := duration(body, "down")
		return &order{restart: true, down: down}, err
	case "kill_engine":
		l.killEngine()
		return nil, nil
	case "clear":
		f = Faults{}
	case "freeze":
		f.Frozen = on
	case "stall":
		f.Stalled = on
	case "drop_events":
		if n := body.GetInt("count"); n > 0 {
			l.server.DropNextEvents(body.GetInt("rank"), n)
			return nil, nil
		}
		f.DropEvents = share
	case "lose_replay":
		f.LoseReplay = share
	case "limit_replay":
		f.ReplayLimit = body.GetInt("count")
	case "errors":
		f.Errors = share
	case "cut":
		f.Cut = share
	case "slow_first_token":
		delay, err := duration(body, "delay")
		if err != nil {
			return nil, err
		}
		f.FirstToken = delay
	default:
		return nil, fmt.Errorf("kind %q is none of die, restart, kill_engine, freeze, stall, drop_events, lose_replay, "+
			"limit_replay, errors, cut, slow_first_token, clear", kind)
	}
	return nil, l.server.SetFaults(f)
}

// duration reads a field in the format of time.ParseDuration. An absent field is 0.
func duration(body *fastjson.Value, key string) (time.Duration, error) {
	s := text(body, key)
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > time.Hour {
		return 0, fmt.Errorf("%s: %q is not a duration of at most an hour, like 2s", key, s)
	}
	return d, nil
}
