package policy_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// script is the state that a script's lines describe.
type script struct {
	candidates []policy.Candidate
	workers    []*fleet.Worker
	policies   map[string]*policy.Policy // by name and parameters
	sent       []sent                    // oldest first
	cached     []fleet.Cached
	underway   map[fleet.Holder][]fleet.Underway
	now        int64
	routed     bool
}

// sent is a request under way.
type sent struct {
	policy   *policy.Policy
	finished policy.Finished
}

func (s *script) run(command, name string, options []string) (string, error) {
	switch command {
	case "worker":
		if s.routed {
			*s = script{}
		}
		return "", s.worker(name, options)
	case "index", "load", "reported":
		c, err := s.find(name)
		if err != nil {
			return "", err
		}
		if command == "reported" {
			c.Load.Reported.At = max(s.now, 1)
		}
		return "", eachOption(options, func(key, value string) error { return setCandidate(c, key, value) })
	case "underway":
		c, err := s.find(name)
		if err != nil {
			return "", err
		}
		return "", s.addUnderway(c.Holder, options)
	case "route", "explain":
		s.routed = true
		return s.route(name, options, command == "route")
	case "asked":
		c, err := s.find(name)
		if err != nil {
			return "", err
		}
		return "", s.asked(c.Worker.ID, options)
	case "finished", "forget":
		c, err := s.find(name)
		if err != nil {
			return "", err
		}
		if command == "forget" {
			for _, p := range s.policies {
				p.Forget(c.Holder)
			}
			return "", nil
		}
		return "", s.finish(c, slices.Contains(options, "failed"))
	case "wait":
		d, err := time.ParseDuration(name)
		s.now += int64(d)
		return "", err
	}
	return "", fmt.Errorf("unknown command %q", command)
}

func (s *script) worker(name string, options []string) error {
	c := policy.Candidate{Holder: fleet.Holder(len(s.candidates)), BlockSize: 16, Available: true, Trust: fleet.TrustExact}
	c.Hash = block.Mix64(uint64(c.Holder))
	for _, w := range s.workers {
		if w.URL == "http://"+name {
			c.Worker = w
		}
	}
	if c.Worker == nil {
		c.Worker = &fleet.Worker{ID: fleet.WorkerID(len(s.workers)), URL: "http://" + name}
		s.workers = append(s.workers, c.Worker)
	}
	err := eachOption(options, func(key, value string) error { return setCandidate(&c, key, value) })
	s.candidates = append(s.candidates, c)
	return err
}

func (s *script) find(name string) (*policy.Candidate, error) {
	for i := range s.candidates {
		c := &s.candidates[i]
		if label(c) == name || (c.Rank == 0 && label(c) == name+"/0") {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no worker is called %q", name)
}

func (s *script) finish(c *policy.Candidate, failed bool) error {
	for i := range s.sent {
		f := s.sent[i].finished
		if f.Holder != c.Holder {
			continue
		}
		f.Now, f.Outcome = s.now, fleet.OutcomeServed
		if failed {
			f.Outcome = fleet.OutcomeFailed
		}
		s.sent[i].policy.Finished(&f)
		s.sent = slices.Delete(s.sent, i, i+1)
		return nil
	}
	return fmt.Errorf("no request is under way at %s", label(c))
}

// addUnderway adds requests with service levels to a holder.
func (s *script) addUnderway(h fleet.Holder, options []string) error {
	u, waited, since, times := fleet.Underway{Levels: fleet.DefaultServiceLevels()}, time.Duration(0), time.Duration(0), 1
	err := eachOption(options, func(key, value string) (err error) {
		switch key {
		case "levels":
			u.Levels, err = fleet.ParseServiceLevels(value)
		case "waited":
			waited, err = time.ParseDuration(value)
		case "since":
			since, err = time.ParseDuration(value)
		case "waiting":
			since, err = time.ParseDuration(value)
			since, u.Waiting = -since, true
		case "output":
			u.Output, err = strconv.Atoi(value)
		case "most":
			u.MostTokens, err = strconv.Atoi(value)
		case "times":
			times, err = strconv.Atoi(value)
		default:
			return fmt.Errorf("unknown")
		}
		return err
	})
	u.First = s.now - int64(since)
	u.Arrived = min(u.First, s.now) - int64(waited)
	if s.underway == nil {
		s.underway = map[fleet.Holder][]fleet.Underway{}
	}
	for range times {
		s.underway[h] = append(s.underway[h], u)
	}
	return err
}

// AppendUnderway implements policy.Requests.
func (s *script) AppendUnderway(dst []fleet.Underway, h fleet.Holder, _ int64, _ int) (list []fleet.Underway, every int) {
	return append(dst, s.underway[h]...), 1
}

// asked stores the answer of an external source about a worker.
func (s *script) asked(id fleet.WorkerID, options []string) error {
	at := slices.IndexFunc(s.cached, func(e fleet.Cached) bool { return e.Worker == id })
	if at < 0 {
		at = len(s.cached)
		s.cached = append(s.cached, fleet.Cached{Worker: id})
	}
	err := eachOption(options, func(key, value string) error {
		n, err := strconv.Atoi(value)
		switch key {
		case "keys":
			s.cached[at].Keys = int64(n)
		case "tokens":
			s.cached[at].Tokens = n
		default:
			return fmt.Errorf("unknown")
		}
		return err
	})
	slices.SortFunc(s.cached, func(a, b fleet.Cached) int { return int(a.Worker) - int(b.Worker) })
	return err
}

func label(c *policy.Candidate) string {
	return fmt.Sprintf("%s/%d", strings.TrimPrefix(c.Worker.URL, "http://"), c.Rank)
}

func eachOption(options []string, set func(key, value string) error) error {
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := set(key, value); err != nil {
			return fmt.Errorf("option %q: %w", o, err)
		}
	}
	return nil
}

func setCandidate(c *policy.Candidate, key, value string) error {
	switch key {
	case "unavailable":
		c.Available = false
		return nil
	case "node", "zone":
		if c.Worker.Facts.Labels == nil {
			c.Worker.Facts.Labels = map[string]string{}
		}
		c.Worker.Facts.Labels[key] = value
		return nil
	case "adapter":
		c.Worker.Facts.Models = append(c.Worker.Facts.Models, fleet.Model{ID: value, Parent: "m"})
		return nil
	case "kv":
		used, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		c.Load.Reported.KVUsed = used / 100
		return err
	case "filled":
		used, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		c.Load.Filled, c.Load.Room, c.Load.RoomKnown = used/100, 1, true
		return err
	case "trust":
		for l := fleet.TrustNone; l <= fleet.TrustExact; l++ {
			if l.String() == value {
				c.Trust = l
				return nil
			}
		}
		return fmt.Errorf("unknown trust")
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	switch key {
	case "block":
		c.BlockSize = n
	case "rank":
		c.Rank = n
	case "gpu", "cpu", "disk", "remote":
		tier := block.Tier(slices.Index([]string{"gpu", "cpu", "disk", "remote"}, key))
		c.Tier[tier] = n
		c.Match += n
		c.Predicted = max(c.Predicted, c.Match)
	case "active":
		c.Active = n
	case "predicted":
		c.Predicted = n
	case "requests":
		c.Load.Requests = int64(n)
	case "prefill":
		c.Load.PrefillTokens, c.Load.PendingTokens = int64(n), int64(n)
	case "pending":
		c.Load.PendingTokens = int64(n)
	case "context":
		c.Load.ContextBlocks, c.Load.ContextTokens = int64(n), int64(n*c.BlockSize)
	case "processed":
		c.Load.Processed = uint64(n)
	case "waiting":
		c.Load.Waiting = int64(n)
	case "output":
		c.Load.OutputTokens = int64(n)
	case "running":
		c.Load.Reported.Running = int64(n)
	case "queued":
		c.Load.Reported.Waiting = int64(n)
	case "blocks":
		c.Worker.Facts.BlocksPerRank = n
	case "hash":
		c.Hash = uint64(n)
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

// policy returns the policy with this name and these settings. A policy that an earlier line used keeps its memory.
func (s *script) policy(name string, settings func(*policy.Spec) error) (*policy.Policy, error) {
	spec, err := kinds.Parse(name)
	if err != nil {
		return nil, err
	}
	if err := settings(&spec); err != nil {
		return nil, err
	}
	spec.Name = fmt.Sprint(name, spec.ImbalanceTokens, spec.TierWeights)
	if p := s.policies[spec.Name]; p != nil {
		return p, nil
	}
	p, err := policy.Build(spec)
	if err != nil {
		return nil, err
	}
	if s.policies == nil {
		s.policies = map[string]*policy.Policy{}
	}
	s.policies[spec.Name] = p
	return p, nil
}

func (s *script) route(name string, options []string, send bool) (string, error) {
	q := policy.Query{Rank: -1, Known: true, Now: s.now, Model: "m", Cached: s.cached, Requests: s}
	p, err := s.policy(name, func(spec *policy.Spec) error {
		return eachOption(options, func(key, value string) error { return s.setQuery(&q, spec, key, value) })
	})
	if err != nil {
		return "", err
	}
	c := slices.Clone(s.candidates)
	choice := p.Choose(&q, c)
	result := describe(&q, c, choice, p.Terms())
	if send && choice.Index >= 0 {
		chosen := &c[choice.Index]
		p.Routed(&q, chosen)
		s.sent = append(s.sent, sent{p, policy.Finished{Holder: chosen.Holder, RoutedAt: s.now, UncachedTokens: int(chosen.Uncached(&q))}})
	}
	return result, nil
}

func builtIn(name string) (policy.Spec, error) {
	for _, s := range kinds.BuiltIn() {
		if s.Name == name {
			return s, nil
		}
	}
	return policy.Spec{}, fmt.Errorf("no built-in policy is called %q", name)
}

func (s *script) setQuery(q *policy.Query, spec *policy.Spec, key, value string) error {
	switch key {
	case "target":
		q.Target = value
		return nil
	case "session":
		q.Session = policy.Session{Key: value, Source: "x-session-id"}
		return nil
	case "tenant":
		q.Tenant = value
		return nil
	case "levels":
		var err error
		q.Levels, err = fleet.ParseServiceLevels(value)
		return err
	case "waited":
		d, err := time.ParseDuration(value)
		q.Arrived = q.Now - int64(d)
		return err
	case "model":
		q.Model = value
		return nil
	case "lora":
		q.LoRA = value
		return nil
	case "text":
		return promptText(q, value)
	case "prompt":
		return promptTokens(q, value)
	case "exclude":
		for _, name := range strings.Split(value, ",") {
			c, err := s.find(name)
			if err != nil {
				return err
			}
			q.Exclude = append(q.Exclude, c.Worker.ID)
		}
		return nil
	case "weights":
		for i, w := range strings.Split(value, ",") {
			var err error
			if spec.TierWeights[i], err = strconv.ParseFloat(w, 64); err != nil {
				return err
			}
		}
		return nil
	}
	value, estimated := strings.CutPrefix(value, "?")
	n, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	switch key {
	case "tokens":
		q.PromptTokens, q.Known = n, !estimated
	case "rank":
		q.Rank = n
	case "limit":
		q.MaxRequests = n
	case "turn":
		q.Turn = uint64(n)
	case "random":
		q.Random = uint64(n)
	case "imbalance":
		spec.ImbalanceTokens = n
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

// promptText reads "…" or "…"*N.
func promptText(q *policy.Query, value string) error {
	times := 1
	if i := strings.LastIndexByte(value, '*'); i > strings.LastIndexByte(value, '"') {
		n, err := strconv.Atoi(value[i+1:])
		if err != nil {
			return err
		}
		value, times = value[:i], n
	}
	text, err := strconv.Unquote(value)
	q.Prompt.Text = []byte(strings.Repeat(text, times))
	return err
}

// promptTokens reads NAME:N,NAME:N: the first N tokens of each named text.
func promptTokens(q *policy.Query, value string) error {
	q.Prompt.Tokens = nil
	for _, part := range strings.Split(value, ",") {
		name, count, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(count)
		if err != nil {
			return err
		}
		base := uint64(0)
		for _, b := range []byte(name) {
			base = base*131 + uint64(b)
		}
		for i := range n {
			q.Prompt.Tokens = append(q.Prompt.Tokens, block.Token(block.Mix64(base*4096+uint64(i))>>40))
		}
	}
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		return err
	}
	q.PromptTokens, q.Known = len(q.Prompt.Tokens), true
	q.Prompt.BlockSize = h.Size()
	q.Prompt.Keys = h.Append(nil, h.Root(block.Scope{Model: q.Model, LoRA: q.LoRA}), 0, q.Prompt.Tokens, nil)
	return nil
}
