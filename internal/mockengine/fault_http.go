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
  {"kind":"prefill_errors","share":0.5}     answer prefills for other engines with 500
  {"kind":"refuse_decode","share":0.5}      answer requests that bring remote blocks with 503
  {"kind":"lease","delay":"50ms"}           keep blocks for other engines so long only
  {"kind":"hold_transfer"}                  never end the reads of this engine's blocks
  {"kind":"late_bootstrap","delay":"2s"}    SGLang: the bootstrap server is not ready so long after the start
  {"kind":"wrong_room","share":0.1}         SGLang: prefill in another room than the decode worker's
  {"kind":"die_after_prefill"}              die after the next prefill for another engine; with "down":"2s": restart
  {"kind":"die_in_transfer"}                die in the middle of the next read of this engine's blocks; the same
  {"kind":"clear"}                          end all faults that last

"on":false ends freeze, stall, hold_transfer and the two deaths; share 0, count 0 and delay "0s" end the others.`

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
		l.obey(o)
	})
}

// obey gives an order to Run, without waiting.
func (l *life) obey(o *order) {
	l.work.Add(1)
	go func() { // ends when Run takes the order, or when this life ends
		defer l.work.Done()
		o.done = make(chan struct{})
		select {
		case l.server.orders <- *o:
		case <-l.ctx.Done():
		}
	}()
}

// dies carries out a planned death. It returns false if none is planned for the moment.
func (l *life) dies(at moment) bool {
	o := l.server.faults.due(at)
	if o != nil {
		l.obey(o)
	}
	return o != nil
}

// planDeath reads a fault that ends the engine at a moment.
func (l *life) planDeath(at moment, on bool, body *fastjson.Value) error {
	if !on {
		l.server.faults.plan(at, nil)
		return nil
	}
	down, err := duration(body, "down")
	if err == nil {
		l.server.faults.plan(at, &order{restart: given(body, "down"), down: down})
	}
	return err
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
		for at := range numMoments {
			l.server.faults.plan(at, nil)
		}
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
	case "prefill_errors":
		f.PrefillErrors = share
	case "refuse_decode":
		f.DecodeRefusals = share
	case "hold_transfer":
		f.HoldTransfers = on
	case "die_after_prefill":
		return nil, l.planDeath(afterPrefill, on, body)
	case "die_in_transfer":
		return nil, l.planDeath(inTransfer, on, body)
	case "wrong_room":
		f.WrongRoom = share
	case "slow_first_token", "lease", "late_bootstrap":
		delay, err := duration(body, "delay")
		if err != nil {
			return nil, err
		}
		switch kind {
		case "lease":
			f.Lease = delay
		case "late_bootstrap":
			f.LateBootstrap = delay
		default:
			f.FirstToken = delay
		}
	default:
		return nil, fmt.Errorf("kind %q is none of die, restart, kill_engine, freeze, stall, drop_events, lose_replay, "+
			"limit_replay, errors, cut, slow_first_token, prefill_errors, refuse_decode, lease, hold_transfer, "+
			"late_bootstrap, wrong_room, die_after_prefill, die_in_transfer, clear", kind)
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
