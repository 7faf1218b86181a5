package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// legLimit ends a leg from which nothing comes: a prefill leg at a worker that hangs, or a decode leg to which the KV
// blocks do not come. An engine may wait for them without end: vLLM 0.32.0 has no time limit on a transfer that its
// peer does not answer.
type legLimit struct {
	l     *legs
	leg   fleet.Leg
	after time.Duration // Config.TransferTimeout

	mu     sync.Mutex // guards the fields below
	until  time.Time  // the leg ends then; zero: only if the prefill worker is lost
	longer int        // how often a prefill leg may still get more time, because its worker ends other legs
	timer  *time.Timer
	begun  bool // the time was up, and an answer in one piece had begun: the leg ends at the next check
	over   bool // the leg has ended by itself: the attempt may already be another one
	late   bool // the limit has ended the leg
}

// limit begins the limit of a leg that is about to be sent with the attempt of l's exchange. It returns nil if there
// is none.
func (l *legs) limit(leg fleet.Leg, began time.Time) *legLimit {
	after := l.x.g.cfg.TransferTimeout
	if after <= 0 {
		return nil
	}
	n := &legLimit{l: l, leg: leg, after: after, longer: mostLonger}
	if takes, known := l.takes(leg); known {
		n.until = began.Add(after + takes)
	}
	n.mu.Lock()
	n.timer = time.AfterFunc(after, n.check) // ends with end
	n.mu.Unlock()
	return n
}

// leastCheck is the shortest time between two checks of a leg, but for the last one.
const leastCheck = 10 * time.Millisecond

// mostLonger is how often a prefill leg gets more time. A worker that ends some legs and none of the others does not
// keep these for longer.
const mostLonger = 10

// slack is how many times as long as predicted a leg may take.
const slack = 4

// takes returns how long a leg may go on besides the transfer: slack times what is predicted. A decode leg that is sent
// together with the prefill leg waits for the prompt. The first byte of an answer in one piece comes when the whole
// answer is generated; known is false if nothing limits its length.
func (l *legs) takes(leg fleet.Leg) (d time.Duration, known bool) {
	if leg == fleet.LegPrefill || l.connector.Together() {
		d += l.d.PrefillTime()
	}
	if leg == fleet.LegDecode && !l.pair.Stream {
		most := l.x.prepared.route.MaxTokens
		if most <= 0 {
			most = l.d.Worker.Facts.MaxModelLen() - l.d.PromptTokens
		}
		if most <= 0 {
			return 0, false
		}
		load := &l.d.Candidates[l.d.Chosen].Load
		step := load.Times().Step(load.Requests+1, load.ContextTokens+load.OutputTokens+int64(l.d.PromptTokens))
		d += time.Duration(float64(most) * step * float64(time.Millisecond))
	}
	return slack * d, true
}

// check ends the leg if its time is up, or if the prefill worker cannot compute or send blocks any more. Otherwise it
// looks again later.
func (n *legLimit) check() {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.l.x
	if n.over || x.begun.Load() {
		return
	}
	wait := max(n.after, leastCheck)
	if !n.until.IsZero() {
		wait = min(wait, time.Until(n.until))
	}
	if wait <= 0 && n.leg == fleet.LegPrefill && n.longer > 0 && n.l.prefills(n.after) {
		n.longer--
		wait = n.after
		n.until = time.Now().Add(wait)
	}
	if wait > 0 && !n.begun && n.l.prefillLives() {
		n.timer.Reset(wait)
		return
	}
	if n.leg == fleet.LegDecode && !n.l.pair.Stream && !n.begun {
		if n.late = x.attempt.Abandon(); !n.late { // an answer in one piece that has begun is complete soon
			n.begun = true
			n.timer.Reset(n.after)
		}
		return
	}
	if n.late = x.attempt.BreakOff(); !n.late { // BreakOff, because the header may come before the blocks
		n.timer.Reset(leastCheck) // the leg has no connection yet
	}
}

// prefills reports whether the prefill worker has ended a leg in the last time d: its queue is longer than was known,
// but it does not hang.
func (l *legs) prefills(d time.Duration) bool {
	return time.Now().UnixNano()-l.x.g.roster(l.d.Prefill.Worker.ID).prefilled.Load() < int64(d)
}

// prefillLives reports whether the prefill worker seems to be able to compute, and to send blocks.
func (l *legs) prefillLives() bool {
	snap := l.x.g.Fleet.Snapshot()
	w := snap.ByID(l.d.Prefill.Worker.ID)
	return w != nil && w.Healthy && len(w.Holders) > 0 && !snap.Suspected(w.Holders[0])
}

// end ends the limit with the leg. If the limit has ended the leg, the result says so.
func (n *legLimit) end(result *proxy.Result) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.over = true
	late := n.late
	n.mu.Unlock()
	n.timer.Stop()
	if !late || result.Class != proxy.Abandoned {
		return
	}
	result.Class, result.Retryable = proxy.HeaderTimeout, !result.FirstByte
	if n.leg == fleet.LegPrefill {
		result.Err = api.WorkerTimeout(fmt.Errorf("%s did not end a prefill leg in time", n.l.pair.Prefill.URL))
	} else {
		result.Err = api.WorkerTimeout(fmt.Errorf("nothing came from %s in time after the prefill at %s", n.l.d.Worker.URL, n.l.pair.Prefill.URL))
	}
}
