package peers

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// hashKey returns the hash of the request's session, or of its prompt if it names no session. source says which of the
// two was used; "" means that there is neither.
func hashKey(q *policy.Query, fallback string) (key uint64, source policy.Branch) {
	switch {
	case q.Session.Key != "":
		return policy.HashText(q.Session.Source, q.Session.Key), policy.BranchSession
	case fallback != "prompt":
	case len(q.Prompt.Text) > 0:
		return hashPrompt(q.Prompt.Text), policy.BranchNoKey
	case len(q.Prompt.Keys) > 0:
		return block.Mix64(uint64(q.Prompt.Keys[len(q.Prompt.Keys)-1])), policy.BranchNoKey
	}
	return 0, ""
}

func hashPrompt[T ~byte | ~uint32](prompt []T) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, x := range prompt {
		h = (h ^ uint64(x)) * 0x100000001b3
	}
	return block.Mix64(h)
}

// keyless are the choices for a request that names no session.
var keyless = []string{"prompt", "least_load", "random"}

// unkeyed chooses for a request that names no session.
func unkeyed(q *policy.Query, c []policy.Candidate, fallback string) policy.Pick {
	if fallback == "random" {
		return policy.Pick{Index: policy.Any(q, c), Branch: policy.BranchNoKey}
	}
	return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchNoKey, Ranked: true}
}

// RendezvousHash sends each session to the worker for which a hash of both is the highest. When a worker leaves, only
// its sessions move. When one joins, the only sessions that move are those that it gets [Thaler and Ravishankar, Using
// name-based mappings to increase hit rates, 1998; bet0x/vllm-router 0.12]. The hash has 64 bits; the source's has 23.
type RendezvousHash struct {
	// Fallback decides for requests that name no session: prompt (a hash of the whole prompt, as the source does),
	// least_load or random.
	Fallback string `yaml:"fallback"`
	// Weighted gives each worker sessions in proportion to the KV blocks that it has room for, if all workers report
	// theirs.
	Weighted bool `yaml:"weighted"`
}

// DefaultRendezvousHash returns the source's defaults.
func DefaultRendezvousHash() RendezvousHash { return RendezvousHash{Fallback: "prompt"} }

// Validate returns all problems.
func (p RendezvousHash) Validate() error {
	var wrong policy.Problems
	wrong.OneOf("fallback", p.Fallback, keyless...)
	return wrong.Join()
}

// Spec returns the policy.
func (p RendezvousHash) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, Chooser: func() policy.Chooser { return &rendezvous{RendezvousHash: p} }, NeedsText: p.Fallback == "prompt", Terms: []string{"draw"}}
}

type rendezvous struct {
	policy.Stateless
	RendezvousHash
}

// Choose scores each candidate weight / −ln u, with u a uniform number of key and holder. Then the highest score
// belongs to a candidate with a probability in proportion to its weight [Schindelhauer and Schomaker, Weighted
// Distributed Hash Tables, 2005].
func (p *rendezvous) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	key, source := hashKey(q, p.Fallback)
	if source == "" {
		return unkeyed(q, c, p.Fallback)
	}
	weighted := p.Weighted
	for i := range c {
		weighted = weighted && c[i].Worker.Facts.BlocksPerRank > 0
	}
	b := 0
	for i := range c {
		x := &c[i]
		u := (float64(block.Mix64(x.Hash^key)>>11) + 0.5) / (1 << 53)
		weight := 1.0
		if weighted {
			weight = float64(x.Worker.Facts.BlocksPerRank)
		}
		x.Terms[0] = u
		x.Score = weight / -math.Log(u)
		if x.Score > c[b].Score || (x.Score == c[b].Score && x.Hash > c[b].Hash) {
			b = i
		}
	}
	return policy.Pick{Index: b, Branch: source, Ranked: true}
}

// ConsistentHash sends each session to the next worker on a ring [Karger and others, Consistent Hashing and Random
// Trees, 1997; vllm-project/router and bet0x/vllm-router 0.11]. Where that worker cannot be used, the next one on the
// ring takes over, so that its sessions spread.
type ConsistentHash struct {
	// VirtualNodes is how many places on the ring a worker has.
	VirtualNodes int `yaml:"virtual_nodes"`
	// Fallback decides for requests that name no session: prompt (a hash of the whole prompt, as the source does),
	// least_load or random.
	Fallback string `yaml:"fallback"`
}

// DefaultConsistentHash returns the source's defaults.
func DefaultConsistentHash() ConsistentHash {
	return ConsistentHash{VirtualNodes: 160, Fallback: "prompt"}
}

// Validate returns all problems.
func (p ConsistentHash) Validate() error {
	var wrong policy.Problems
	wrong.Within("virtual_nodes", float64(p.VirtualNodes), 1, 1000)
	wrong.OneOf("fallback", p.Fallback, keyless...)
	return wrong.Join()
}

// Spec returns the policy.
func (p ConsistentHash) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, NeedsText: p.Fallback == "prompt", Terms: []string{"step"},
		Chooser: func() policy.Chooser { return &consistent{ring: newRing(p.VirtualNodes), fallback: p.Fallback} },
	}
}

type consistent struct {
	ring     *ring
	fallback string
}

func (p *consistent) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	key, source := hashKey(q, p.fallback)
	if source == "" {
		return unkeyed(q, c, p.fallback)
	}
	at, steps := p.ring.walk(key, c, func(*policy.Candidate) bool { return true })
	c[at].Terms[0] = float64(steps)
	if steps > 1 && source == policy.BranchSession {
		source = policy.BranchMoved
	}
	return policy.Pick{Index: at, Branch: source}
}

func (p *consistent) Routed(*policy.Query, *policy.Candidate) {}
func (p *consistent) Finished(*policy.Finished)               {}
func (p *consistent) Forget(h fleet.Holder)                   { p.ring.remove(h) }

// PrefixHash sends prompts with the same beginning to the next worker on a ring, and passes over workers that have more
// than their share of the load [SMG 1.9.0, model_gateway/src/policies/prefix_hash.rs; Mirrokni and others, Consistent
// Hashing with Bounded Loads, 2018]. By its documentation the source walks the ring; its code takes the worker with the
// least load. This port walks the ring, which keeps displaced prompts together.
type PrefixHash struct {
	// PrefixTokenCount is how many tokens of the prompt are hashed. Without tokens, four bytes of text stand for a
	// token.
	PrefixTokenCount int `yaml:"prefix_token_count"`
	// LoadFactor is how many times the mean number of requests a worker may have before the next one is taken.
	LoadFactor float64 `yaml:"load_factor"`
	// VirtualNodes is how many places on the ring a worker has.
	VirtualNodes int `yaml:"virtual_nodes"`
}

// DefaultPrefixHash returns SMG's defaults.
func DefaultPrefixHash() PrefixHash {
	return PrefixHash{PrefixTokenCount: 256, LoadFactor: 1.25, VirtualNodes: 150}
}

// Validate returns all problems.
func (p PrefixHash) Validate() error {
	var wrong policy.Problems
	wrong.Within("prefix_token_count", float64(p.PrefixTokenCount), 1, 1<<20)
	wrong.AtLeast("load_factor", p.LoadFactor, 1)
	wrong.Within("virtual_nodes", float64(p.VirtualNodes), 1, 1000)
	return wrong.Join()
}

// Spec returns the policy.
func (p PrefixHash) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, NeedsMatches: true, NeedsText: true, Everyone: true, Terms: []string{"step"},
		Chooser: func() policy.Chooser { return &prefixHash{PrefixHash: p, ring: newRing(p.VirtualNodes)} },
	}
}

type prefixHash struct {
	PrefixHash
	ring *ring
}

func (p *prefixHash) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	var key uint64
	switch tokens, text := q.Prompt.Tokens, q.Prompt.Text; {
	case len(tokens) > 0:
		key = hashPrompt(tokens[:min(len(tokens), p.PrefixTokenCount)])
	case len(text) > 0:
		key = hashPrompt(text[:min(len(text), 4*p.PrefixTokenCount)])
	default:
		return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchNoTokens, Ranked: true}
	}
	total := int64(0)
	for i := range c {
		total += c[i].Load.Requests
	}
	most := float64(total+1) / float64(len(c)) * p.LoadFactor
	at, steps := p.ring.walk(key, c, func(x *policy.Candidate) bool { return total == 0 || float64(x.Load.Requests) <= most })
	c[at].Terms[0] = float64(steps)
	if steps > 1 {
		return policy.Pick{Index: at, Branch: policy.BranchOverflow}
	}
	return policy.Pick{Index: at, Branch: policy.BranchPrefix}
}

func (p *prefixHash) Routed(*policy.Query, *policy.Candidate) {}
func (p *prefixHash) Finished(*policy.Finished)               {}
func (p *prefixHash) Forget(h fleet.Holder)                   { p.ring.remove(h) }

// ring has the places of holders on a circle of 2^64 positions. It adds a holder when it is first a candidate, which
// allocates. Readers never wait.
type ring struct {
	nodes   int
	current atomic.Pointer[circle]
	mu      sync.Mutex // held while current is replaced
}

// circle is immutable.
type circle struct {
	places []place // ascending
	known  []bool  // by holder
}

type place struct {
	at     uint64
	holder fleet.Holder
}

func newRing(nodes int) *ring {
	r := &ring{nodes: nodes}
	r.current.Store(&circle{})
	return r
}

// walk goes round the ring from key. It returns the first candidate that suits, and its step: step 1 is the first
// holder on the way, candidate or not. If none suits, it returns the first candidate.
func (r *ring) walk(key uint64, c []policy.Candidate, suits func(*policy.Candidate) bool) (index, steps int) {
	circle := r.learn(c)
	start := sort.Search(len(circle.places), func(i int) bool { return circle.places[i].at >= key })
	first, firstStep := -1, 0
	var met [8]fleet.Holder // holders met so far; mostly the first one is taken
	for i := range circle.places {
		h := circle.places[(start+i)%len(circle.places)].holder
		if slices.Contains(met[:min(steps, len(met))], h) {
			continue
		}
		if steps < len(met) {
			met[steps] = h
		}
		steps++
		at := position(c, h)
		if at < 0 {
			continue
		}
		if suits(&c[at]) {
			return at, steps
		}
		if first < 0 {
			first, firstStep = at, steps
		}
	}
	return max(first, 0), firstStep
}

func position(c []policy.Candidate, h fleet.Holder) int {
	for i := range c {
		if c[i].Holder == h {
			return i
		}
	}
	return -1
}

// learn returns a circle with all candidates on it.
func (r *ring) learn(c []policy.Candidate) *circle {
	now := r.current.Load()
	if now.knows(c) {
		return now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now = r.current.Load()
	next := &circle{places: slices.Clone(now.places), known: slices.Clone(now.known)}
	for i := range c {
		h := int(c[i].Holder)
		if h < len(next.known) && next.known[h] {
			continue
		}
		for len(next.known) <= h {
			next.known = append(next.known, false)
		}
		next.known[h] = true
		for node := range r.nodes {
			next.places = append(next.places, place{block.Mix64(c[i].Hash + uint64(node)*block.Golden), c[i].Holder})
		}
	}
	slices.SortFunc(next.places, func(a, b place) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.holder, b.holder)) })
	r.current.Store(next)
	return next
}

// knows reports whether all candidates are on the circle.
func (x *circle) knows(c []policy.Candidate) bool {
	for i := range c {
		if h := int(c[i].Holder); h >= len(x.known) || !x.known[h] {
			return false
		}
	}
	return true
}

// remove takes a holder from the ring; it comes back when it is a candidate again.
func (r *ring) remove(h fleet.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.current.Load()
	if int(h) >= len(now.known) || !now.known[h] {
		return
	}
	next := &circle{known: slices.Clone(now.known)}
	next.known[h] = false
	for _, p := range now.places {
		if p.holder != h {
			next.places = append(next.places, p)
		}
	}
	r.current.Store(next)
}
