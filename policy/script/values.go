package script

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.starlark.net/starlark"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// attributes has the names of all attributes of requests, workers and outcomes.
var attributes = names(requestAttributes, workerAttributes, outcomeAttributes)

func names(lists ...[]string) map[string]bool {
	all := map[string]bool{}
	for _, list := range lists {
		for _, name := range list {
			all[name] = true
		}
	}
	return all
}

func knownAttributes() string { return strings.Join(slices.Sorted(maps.Keys(attributes)), ", ") }

// object has what the values of this package have in common. They are valid during one call.
type object struct{}

func (object) Freeze()              {}
func (object) Truth() starlark.Bool { return true }
func (object) Hash() (uint32, error) {
	return 0, fmt.Errorf("this is no key: use worker.url, for example")
}

var requestAttributes = []string{"arrived", "lora", "model", "now", "prompt_tokens", "random", "session", "tenant", "tokens_known", "turn"}

// request is a request as a script sees it.
type request struct {
	object
	q *policy.Query
}

func (r *request) String() string      { return "request" }
func (r *request) Type() string        { return "request" }
func (r *request) AttrNames() []string { return requestAttributes }

// Attr returns an attribute. docs/policies/script.md has the meanings.
func (r *request) Attr(name string) (starlark.Value, error) {
	q := r.q
	switch name {
	case "arrived":
		if q.Arrived == 0 {
			return seconds(q.Now), nil
		}
		return seconds(q.Arrived), nil
	case "lora":
		return starlark.String(q.LoRA), nil
	case "model":
		return starlark.String(q.Model), nil
	case "now":
		return seconds(q.Now), nil
	case "prompt_tokens":
		return starlark.MakeInt(q.PromptTokens), nil
	case "random":
		return starlark.Float(float64(q.Random>>11) / (1 << 53)), nil
	case "session":
		return starlark.String(q.Session.Key), nil
	case "tenant":
		return starlark.String(q.Tenant), nil
	case "tokens_known":
		return starlark.Bool(q.Known), nil
	case "turn":
		return starlark.MakeUint64(q.Turn), nil
	}
	return nil, nil
}

// seconds returns Unix nanoseconds as Unix seconds.
func seconds(ns int64) starlark.Float { return starlark.Float(float64(ns) / float64(time.Second)) }

var workerAttributes = []string{
	"backlog", "confirmed", "context_tokens", "disk_tokens", "cpu_tokens", "gpu_tokens", "remote_tokens", "hash", "labels", "last_resort",
	"match", "output_tokens", "pace_withheld", "prefill_tokens", "rank", "requests", "room", "trust", "uncached", "url", "waiting", "work",
}

// worker is a candidate as a script sees it: one rank of a worker.
type worker struct {
	object
	index int
	q     *policy.Query
	c     *policy.Candidate
}

func (w *worker) String() string      { return "worker" }
func (w *worker) Type() string        { return "worker" }
func (w *worker) AttrNames() []string { return workerAttributes }

// Attr returns an attribute. docs/policies/script.md has the meanings.
func (w *worker) Attr(name string) (starlark.Value, error) {
	c := w.c
	switch name {
	case "match":
		return starlark.MakeInt(c.Kept()), nil
	case "work":
		return starlark.MakeInt64(c.Work()), nil
	case "uncached":
		return starlark.MakeInt64(c.Uncached(w.q)), nil
	case "requests":
		return starlark.MakeInt64(c.Load.Requests), nil
	case "waiting":
		return starlark.MakeInt64(c.Load.Waiting), nil
	case "url":
		return starlark.String(c.Worker.URL), nil
	case "rank":
		return starlark.MakeInt(c.Rank), nil
	case "labels":
		return &labels{of: c.Worker.Facts.Labels}, nil
	case "confirmed":
		return starlark.MakeInt(c.Match), nil
	case "gpu_tokens":
		return starlark.MakeInt(c.Tier[block.TierGPU]), nil
	case "cpu_tokens":
		return starlark.MakeInt(c.Tier[block.TierCPU]), nil
	case "disk_tokens":
		return starlark.MakeInt(c.Tier[block.TierDisk]), nil
	case "remote_tokens":
		return starlark.MakeInt(c.Tier[block.TierRemote]), nil
	case "prefill_tokens":
		return starlark.MakeInt64(c.Load.PrefillTokens), nil
	case "context_tokens":
		return starlark.MakeInt64(c.Load.ContextBlocks * int64(max(c.BlockSize, 1))), nil
	case "output_tokens":
		return starlark.MakeInt64(c.Load.OutputTokens), nil
	case "backlog":
		return starlark.Float(c.Load.Backlog.Seconds()), nil
	case "room":
		return starlark.Float(c.Load.Room), nil
	case "pace_withheld":
		return starlark.Float(c.Withheld), nil
	case "hash":
		return starlark.MakeUint64(c.Hash), nil
	case "trust":
		return starlark.String(c.Trust.String()), nil
	case "last_resort":
		return starlark.Bool(c.Bar != fleet.BarNone), nil
	}
	return nil, nil
}

// labels is the labels of a worker, to read: worker.labels["zone"], worker.labels.get("zone"), "zone" in worker.labels.
type labels struct {
	object
	of map[string]string
}

func (l *labels) String() string { return "labels" }
func (l *labels) Type() string   { return "labels" }

// Get returns labels[key].
func (l *labels) Get(key starlark.Value) (starlark.Value, bool, error) {
	k, ok := key.(starlark.String)
	if !ok {
		return nil, false, fmt.Errorf("a label is a text, not %s", brief(key))
	}
	v, found := l.of[string(k)]
	return starlark.String(v), found, nil
}

var outcomeAttributes = []string{"first_token_seconds", "model", "output_tokens", "rank", "result", "seconds", "uncached", "url"}

// outcome is how a request ended.
type outcome struct {
	object
	f      *policy.Finished
	holder holder
}

// holder is what a script is told of a holder whose request ended: it may be gone.
type holder struct {
	url  string
	rank int
}

func (o *outcome) String() string      { return "outcome" }
func (o *outcome) Type() string        { return "outcome" }
func (o *outcome) AttrNames() []string { return outcomeAttributes }

// Attr returns an attribute. docs/policies/script.md has the meanings.
func (o *outcome) Attr(name string) (starlark.Value, error) {
	f := o.f
	switch name {
	case "first_token_seconds":
		if f.FirstTokenAt == 0 {
			return starlark.None, nil
		}
		return seconds(f.FirstTokenAt - f.RoutedAt), nil
	case "model":
		return starlark.String(f.Model), nil
	case "output_tokens":
		return starlark.MakeInt(f.OutputTokens), nil
	case "rank":
		return starlark.MakeInt(o.holder.rank), nil
	case "result":
		return starlark.String(f.Outcome.String()), nil
	case "seconds":
		return seconds(f.Now - f.RoutedAt), nil
	case "uncached":
		return starlark.MakeInt(f.UncachedTokens), nil
	case "url":
		return starlark.String(o.holder.url), nil
	}
	return nil, nil
}

const maxReason = 200 // the bytes of a reason that a script gives

// choice is what choose returns if it has more to say than a worker or scores.
type choice struct {
	object
	worker  *worker
	scores  starlark.Value // nil: none
	reason  string
	reasons starlark.Value // for each worker why it was not chosen; nil: none
}

func (c *choice) String() string { return "choice" }
func (c *choice) Type() string   { return "choice" }

// newChoice is choice(worker, scores, reason, reasons).
func newChoice(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, named []starlark.Tuple) (starlark.Value, error) {
	c := &choice{}
	var w, scores, reasons starlark.Value
	err := starlark.UnpackArgs(b.Name(), args, named, "worker?", &w, "scores?", &scores, "reason?", &c.reason, "reasons?", &reasons)
	if err != nil {
		return nil, err
	}
	given := func(v starlark.Value) bool { return v != nil && v != starlark.None }
	if given(w) {
		var ok bool
		if c.worker, ok = w.(*worker); !ok {
			return nil, fmt.Errorf("choice: worker is one of the workers, not %s", brief(w))
		}
	}
	if given(scores) {
		c.scores = scores
	}
	if given(reasons) {
		c.reasons = reasons
	}
	if c.worker == nil && c.scores == nil {
		return nil, fmt.Errorf("choice: give a worker, or scores")
	}
	c.reason = strings.Clone(shorten(c.reason, maxReason))
	return c, nil
}
