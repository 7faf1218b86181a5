package script

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.starlark.net/starlark"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// chooser is a policy that a script decides. Its methods are called concurrently: each call has an interpreter of its
// own, and all of them share the script's frozen functions. Only the callbacks wait for each other, so that a callback
// can read the state and then change it.
type chooser struct {
	file      string
	steps     uint64
	functions functions
	fallback  policy.Chooser
	failed    func(call string, err error) // nil: nobody wants to know
	calls     sync.Pool                    // *call

	callbacks sync.Mutex              // held during a callback, and guards holders
	holders   map[fleet.Holder]holder // where requests were sent, for on_finished; nil without on_finished
}

// call is what one call of the script needs. It is used again after the call.
type call struct {
	thread  starlark.Thread
	meter   meter
	request request
	workers []worker
	values  []starlark.Value
	args    starlark.Tuple
}

func newChooser(file string, steps int, f functions) *chooser {
	c := &chooser{file: file, steps: uint64(steps), functions: f, fallback: policy.DefaultMarginal().Spec("").Chooser()}
	c.calls.New = func() any {
		k := &call{}
		k.thread.SetLocal(meterKey, &k.meter)
		return k
	}
	if f.finished != nil {
		c.holders = map[fleet.Holder]holder{}
	}
	return c
}

// OnFailure sets the function that is told of failed calls of the script.
func (c *chooser) OnFailure(failed func(call string, err error)) { c.failed = failed }

// run calls a function of the script.
func (c *chooser) run(k *call, function starlark.Callable, writable bool, args ...starlark.Value) (v starlark.Value, err error) {
	defer func() {
		if p := recover(); p != nil { // a bug of the interpreter must not end the requests of others
			v, err = nil, &Error{File: c.file, Problem: shorten(fmt.Sprint("bug of the interpreter: ", p), maxReason)}
		}
	}()
	if function == nil {
		return nil, &Error{File: c.file, Problem: "the script was not read"}
	}
	k.meter = meter{writable: writable}
	k.thread.Steps = 0
	k.thread.SetMaxExecutionSteps(c.steps)
	k.args = append(k.args[:0], args...)
	if v, err = starlark.Call(&k.thread, function, k.args, nil); err != nil {
		k.thread.Uncancel()
		return nil, placed(c.file, err)
	}
	return v, nil
}

// begin returns an unused call with the request and the workers.
func (c *chooser) begin(q *policy.Query, candidates []policy.Candidate) *call {
	k := c.calls.Get().(*call)
	k.request.q = q
	if cap(k.workers) < len(candidates) {
		k.workers = make([]worker, len(candidates))
	}
	k.workers, k.values = k.workers[:len(candidates)], k.values[:0]
	for i := range candidates {
		k.workers[i] = worker{index: i, q: q, c: &candidates[i]}
		k.values = append(k.values, &k.workers[i])
	}
	return k
}

// end keeps the call for later, without what belongs to the request.
func (c *chooser) end(k *call) {
	k.request.q = nil
	clear(k.workers)
	clear(k.values)
	clear(k.args)
	c.calls.Put(k)
}

// Choose asks the script. If the script fails, the default policy decides.
func (c *chooser) Choose(q *policy.Query, candidates []policy.Candidate) policy.Pick {
	k := c.begin(q, candidates)
	defer c.end(k)
	answer, err := c.run(k, c.functions.choose, false, &k.request, starlark.NewList(k.values))
	if err == nil {
		var pick policy.Pick
		if pick, err = read(answer, q, candidates); err == nil && pick.Index >= 0 {
			return pick
		}
	}
	for i := range candidates { // an answer that is wrong at its end may have set some
		candidates[i].Score, candidates[i].Note = 0, ""
	}
	pick := c.fallback.Choose(q, candidates)
	for i := range candidates {
		candidates[i].Terms = [policy.MaxTerms]float64{candidates[i].Score}
	}
	pick.Branch, pick.Reason = policy.BranchScript, "the script left the choice to the default policy"
	if err != nil {
		err = inFile(c.file, err)
		pick.Branch, pick.Reason = policy.BranchBroken, err.Error()+": the default policy decided"
		c.report("choose", err)
	}
	return pick
}

func inFile(file string, err error) error {
	var placed *Error
	if errors.As(err, &placed) {
		return placed
	}
	return &Error{File: file, Problem: err.Error()}
}

func (c *chooser) report(call string, err error) {
	if c.failed != nil {
		c.failed(call, err)
	}
}

// read turns the answer of choose into a pick. The index is -1 if the script leaves the choice to the default policy.
func read(answer starlark.Value, q *policy.Query, candidates []policy.Candidate) (policy.Pick, error) {
	pick := policy.Pick{Index: -1, Branch: policy.BranchScript}
	said, ok := answer.(*choice)
	switch v := answer.(type) {
	case starlark.NoneType:
		return pick, nil
	case *worker:
		said = &choice{worker: v}
	case *starlark.List:
		said = &choice{scores: v}
	default:
		if !ok {
			return pick, fmt.Errorf("choose returned a %s: return one of the workers, a list of scores, choice(…) or None", answer.Type())
		}
	}
	if said.scores != nil {
		if err := readScores(said.scores, candidates); err != nil {
			return pick, err
		}
	}
	if said.reasons != nil {
		if err := readReasons(said.reasons, candidates); err != nil {
			return pick, err
		}
	}
	pick.Reason = said.reason
	if said.worker != nil {
		pick.Index = said.worker.index
		return pick, nil
	}
	pick.Index, pick.Ranked, pick.Tie = policy.Best(q, candidates), true, policy.TieWork
	return pick, nil
}

// perWorker returns v if it is a list with a value for each worker.
func perWorker(what string, v starlark.Value, n int) (starlark.Indexable, error) {
	list, ok := v.(starlark.Indexable)
	if _, text := v.(starlark.String); !ok || text {
		return nil, fmt.Errorf("%s is a %s: it must be a list with a value for each worker", what, v.Type())
	}
	if list.Len() != n {
		return nil, fmt.Errorf("%s has %d values for %d workers", what, list.Len(), n)
	}
	return list, nil
}

func readScores(v starlark.Value, candidates []policy.Candidate) error {
	list, err := perWorker("scores", v, len(candidates))
	if err != nil {
		return err
	}
	for i := range candidates {
		score, ok := starlark.AsFloat(list.Index(i))
		if !ok || !(score >= -policy.MaxNumber && score <= policy.MaxNumber) {
			return fmt.Errorf("the score of worker %d is %s: it must be a number within ±1e12", i, brief(list.Index(i)))
		}
		candidates[i].Score, candidates[i].Terms[0] = score, score
	}
	return nil
}

func readReasons(v starlark.Value, candidates []policy.Candidate) error {
	list, err := perWorker("reasons", v, len(candidates))
	if err != nil {
		return err
	}
	for i := range candidates {
		switch reason := list.Index(i).(type) {
		case starlark.NoneType:
		case starlark.String:
			candidates[i].Note = strings.Clone(shorten(string(reason), maxReason))
		default:
			return fmt.Errorf("reason %d is %s: it must be a text or None", i, brief(reason))
		}
	}
	return nil
}

// Routed calls on_routed.
func (c *chooser) Routed(q *policy.Query, to *policy.Candidate) {
	if c.functions.routed == nil && c.holders == nil {
		return
	}
	c.callbacks.Lock()
	defer c.callbacks.Unlock()
	if c.holders != nil {
		c.holders[to.Holder] = holder{to.Worker.URL, to.Rank}
	}
	if c.functions.routed == nil {
		return
	}
	k := c.begin(q, nil)
	defer c.end(k)
	if _, err := c.run(k, c.functions.routed, true, &k.request, &worker{q: q, c: to}); err != nil {
		c.report("on_routed", err)
	}
}

// Finished calls on_finished.
func (c *chooser) Finished(f *policy.Finished) {
	if c.functions.finished == nil {
		return
	}
	c.callbacks.Lock()
	defer c.callbacks.Unlock()
	k := c.begin(nil, nil)
	defer c.end(k)
	if _, err := c.run(k, c.functions.finished, true, &outcome{f: f, holder: c.holders[f.Holder]}); err != nil {
		c.report("on_finished", err)
	}
}

// Forget does nothing: what a script keeps is not known to depend on a cache.
func (c *chooser) Forget(fleet.Holder) {}

// Retire drops the addresses of holders that will not come back.
func (c *chooser) Retire(holders []fleet.Holder) {
	c.callbacks.Lock()
	defer c.callbacks.Unlock()
	for _, h := range holders {
		delete(c.holders, h)
	}
}
