package warmpath

import (
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Placement is what a router tells its peers about one request that it has placed: the load that the request puts on a
// holder, and what policies and stores of prompts learn from it. See docs/design/0065. Each leg of a divided request is
// a placement of its own.
type Placement struct {
	ID   uint64 // names the placement among those of its router; not 0
	URL  string // the worker's address
	Rank int    // the global number of the holder's data-parallel rank

	Model, Base, LoRA string         // see [Record]
	Policy            string         // the policy that decided
	Session           policy.Session // the conversation, if the client named one
	Tenant            string
	Class             uint64 // see [Decision.Class]
	Leg               fleet.Leg

	// Keys are the keys of the prompt's first blocks, of BlockSize tokens each, at most MaxPlacementKeys. They are empty
	// if the prompt was not matched. If the holder's engine hashes with a look-ahead of Ahead tokens, AheadKeys are the
	// keys for that engine. Keys of routers with different hash algorithms match nowhere.
	BlockSize       int
	Keys, AheadKeys []block.Key
	Ahead           int
	// Text has the first MaxPlacementText bytes of the prompt, and Tokens the first MaxPlacementTokens tokens. They are
	// only told if the policy that decided, or the shadow policy, learns from them, and only in Observer.Placed.
	Text   []byte
	Tokens []block.Token
	// TextBytes is the length of the whole text in bytes; 0 is not known.
	TextBytes int

	FromText    bool        // the keys are keys of the text
	TokensKnown bool        // PromptTokens is not an estimate
	Trust       fleet.Trust // how far UncachedTokens can be believed

	// See [fleet.Work] for the following figures.
	PromptTokens, UncachedTokens, ContextBlocks, MostTokens, Choices int
	Whole, Guess                                                     bool

	Levels []fleet.ServiceLevel // the service levels of the request; none if it is empty
	Waited time.Duration        // how long the request had waited when it was placed
	// Age is how long ago the request was placed, as far as it is known to those who tell of a request again. What peers
	// learn from the request is that old. 0 is just now.
	Age time.Duration
	// PrefillCompleted says that the prompt is computed already. It is set by those who tell of a request again, because a
	// message about it was lost.
	PrefillCompleted bool
}

// Bounds of a placement. Longer prompts are told by their beginning, which is what later prompts have in common. A
// message about a placement then takes at most 400 KB.
const (
	// MaxPlacementKeys bounds Keys and AheadKeys each: 16,384 blocks of 16 tokens are a prompt of 262,144 tokens, more
	// than most models take. The load of a longer prompt counts as a whole.
	MaxPlacementKeys = 1 << 14
	// MaxPlacementText bounds Text, in bytes, and MaxPlacementTokens bounds Tokens: 64 KiB each, as far as policies that
	// learn from prompts usually need to tell them apart.
	MaxPlacementText   = 64 << 10
	MaxPlacementTokens = 1 << 14
	// MaxPlacementAge bounds Age, so that sums of times do not overflow. Nothing is learned for so long.
	MaxPlacementAge = 365 * 24 * time.Hour
)

// Ending is what a router tells its peers about the end of a request.
type Ending struct {
	Unsent       bool          // the worker computed nothing of the prompt, so it is not in the holder's cache
	Outcome      fleet.Outcome // for policies; the health of the holder does not depend on it
	OutputTokens int           // the length of the answer, see [policy.Finished]
}

// Observer is told what happens to the requests that a router places ([Options.Observer]). Its methods are called
// concurrently, while the request waits: so they must not block. PrefillCompleted and Freed of one request come after
// Placed, and may come in any order.
type Observer interface {
	// Placed reports that the request of d is placed, before it is sent. It is called once for each leg. d.ID names the
	// placement, and d.Placement has its facts. The observer must not keep d.
	Placed(d *Decision)
	// PrefillCompleted reports that the first token has come.
	PrefillCompleted(id uint64)
	// Freed reports the end of the request. It is called once for each call of Placed.
	Freed(id uint64, e Ending)
}

// ID names the request, or the leg, among those of its router. It is 0 if the router has no observer.
func (d *Decision) ID() uint64 { return d.id }

// tellPlaced tells o of d.
func (d *Decision) tellPlaced(o Observer) {
	d.id = d.router.placed.Add(1)
	o.Placed(d)
}

// Placement fills p with what peers need to know of d. It reuses the memory of p's slices. It must be called before
// Done.
func (d *Decision) Placement(p *Placement) {
	w, q := &d.work, &d.query
	keys, ahead, text, tokens, levels := p.Keys[:0], p.AheadKeys[:0], p.Text[:0], p.Tokens[:0], p.Levels[:0]
	*p = Placement{
		ID: d.id, URL: d.Worker.URL, Rank: d.Rank, Model: d.Model, Base: d.Base, LoRA: d.LoRA, Policy: d.Policy,
		Session: q.Session, Tenant: q.Tenant, Class: q.Class, Leg: d.Leg, TextBytes: d.textBytes, BlockSize: d.BlockSize,
		FromText: d.FromText, TokensKnown: d.TokensKnown, Trust: d.Trust,
		PromptTokens: w.PromptTokens, UncachedTokens: w.UncachedTokens, ContextBlocks: w.ContextBlocks,
		MostTokens: w.MostTokens, Choices: w.Choices, Whole: w.Whole, Guess: w.Guess,
		PrefillCompleted: d.firstToken.Load() != 0,
	}
	if w.Arrived > 0 {
		p.Waited = max(time.Duration(d.Now-w.Arrived), 0)
	}
	p.Levels = append(levels, w.Levels...)
	p.Keys = append(keys, d.keys[:min(len(d.keys), MaxPlacementKeys)]...)
	p.AheadKeys, p.Text, p.Tokens = ahead, text, tokens
	if x := d.index(); x != nil && len(d.ahead) > 0 {
		if a := x.aheads.Load(); a != nil && a.of[d.Holder] > 0 {
			p.Ahead = a.of[d.Holder]
			p.AheadKeys, _ = d.SentKeys(ahead)
		}
	}
	p.addPrompt(d.policy.Learns(), &q.Prompt)
	if d.shadow != nil {
		p.addPrompt(d.shadow.Learns(), &q.Prompt)
	}
}

// SentKeys appends to dst the keys of the prompt's first blocks, as the engine of the holder makes them: at most
// MaxPlacementKeys. size is the number of tokens of a block. For an observer that needs only the keys, SentKeys is much
// cheaper than Placement. It must be called before Done.
func (d *Decision) SentKeys(dst []block.Key) (keys []block.Key, size int) {
	own := d.keys
	if x := d.index(); x != nil {
		own = d.keysOn(x, d.Holder)
	}
	return append(dst, own[:min(len(own), MaxPlacementKeys)]...), d.BlockSize
}

// index returns the index of the request's base model; nil if there is none.
func (d *Decision) index() *modelIndex { return (*d.router.indexes.Load())[d.Base] }

// addPrompt adds the text or the tokens of a prompt to p, if p does not have them yet.
func (p *Placement) addPrompt(form policy.PromptForm, prompt *policy.Prompt) {
	if form == policy.FormNone {
		return
	}
	text := form == policy.FormText
	if text && len(prompt.Text) == 0 || !text && len(prompt.Tokens) == 0 {
		text = !text // the preferred form is not known
	}
	switch {
	case text && len(p.Text) == 0:
		p.Text = append(p.Text, prompt.Text[:min(len(prompt.Text), MaxPlacementText)]...)
	case !text && len(p.Tokens) == 0:
		p.Tokens = append(p.Tokens, prompt.Tokens[:min(len(prompt.Tokens), MaxPlacementTokens)]...)
	}
}
