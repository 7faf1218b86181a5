package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// transferLimit ends a decode leg to which the KV blocks do not come. An engine may wait for them without end: vLLM
// 0.32.0 has no time limit on a transfer that its peer does not answer.
type transferLimit struct {
	l     *legs
	after time.Duration // Config.TransferTimeout
	until time.Time     // the leg ends then, unless an answer has begun; zero: only if the prefill worker is lost

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	over  bool // the leg has ended by itself: the attempt may already be another one
	late  bool // the limit has ended the leg
}

// limitTransfer begins the limit of a decode leg that is about to be sent. It returns nil if there is none.
func (l *legs) limitTransfer(began time.Time) *transferLimit {
	after := l.x.g.cfg.TransferTimeout
	if after <= 0 {
		return nil
	}
	n := &transferLimit{l: l, after: after}
	if takes, known := l.takes(); known {
		n.until = began.Add(after + takes)
	}
	n.mu.Lock()
	n.timer = time.AfterFunc(after, n.check) // ends with end
	n.mu.Unlock()
	return n
}

// slack is how many times as long as predicted a leg may take.
const slack = 4

// takes returns how long the decode leg may go on before its first byte besides the transfer: slack times what is
// predicted. A leg that is sent together with the prefill leg waits for the prompt. The first byte of an answer in one
// piece comes when the whole answer is generated; known is false if nothing limits its length.
func (l *legs) takes() (d time.Duration, known bool) {
	ms := 0.0
	if l.connector.Together() {
		ms += l.d.Division.Prefill
	}
	if !l.pair.Stream {
		most := l.x.prepared.route.MaxTokens
		if most <= 0 {
			most = l.d.Worker.Facts.MaxModelLen() - l.d.PromptTokens
		}
		if most <= 0 {
			return 0, false
		}
		load := &l.d.Candidates[l.d.Chosen].Load
		ms += float64(most) * load.Times().Step(load.Requests+1, load.ContextTokens+load.OutputTokens+int64(l.d.PromptTokens))
	}
	return time.Duration(slack * ms * float64(time.Millisecond)), true
}

// check ends the leg if its time is up, or if the prefill worker cannot send blocks any more. Otherwise it looks again
// later.
func (n *transferLimit) check() {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.l.x
	if n.over || x.begun.Load() {
		return
	}
	wait := n.after
	if !n.until.IsZero() {
		wait = min(wait, time.Until(n.until))
	}
	if wait > 0 && n.l.prefillLives() {
		n.timer.Reset(wait)
		return
	}
	if n.l.pair.Stream { // the header of a stream may come before the blocks
		n.late = x.attempt.BreakOff()
	} else {
		n.late = x.attempt.Abandon() // an answer that has begun is complete soon
	}
}

// prefillLives reports whether the prefill worker seems to be able to send blocks.
func (l *legs) prefillLives() bool {
	snap := l.x.g.Fleet.Snapshot()
	w := snap.ByID(l.d.Prefill.Worker.ID)
	return w != nil && w.Healthy && len(w.Holders) > 0 && !snap.Suspected(w.Holders[0])
}

// end ends the limit with the leg. If the limit has ended the leg, the result says so.
func (n *transferLimit) end(result *proxy.Result) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.over = true
	late := n.late
	n.mu.Unlock()
	n.timer.Stop()
	if late && result.Class == proxy.Abandoned {
		result.Class, result.Retryable = proxy.HeaderTimeout, !result.FirstByte
		result.Err = api.WorkerTimeout(fmt.Errorf("nothing came from %s within %v after the prefill at %s", n.l.d.Worker.URL, n.after, n.l.pair.Prefill.URL))
	}
}
