package ingest

import (
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// apply applies one event and reports whether trust may have changed. s.mu is held.
func (s *stream) apply(e *kvevent.Event) (changed bool) {
	if e.Owner != "" && e.Owner != kvevent.OwnerKVCR {
		// Its copies are not the engine's, and what the engine can do with them is not known: they are nobody's credit,
		// and removing them takes nothing of the engine's own.
		s.unapplied++
		return false
	}
	var generation uint64
	switch e.Kind {
	case kvevent.Stored:
		s.stored++
		changed = s.learn(e)
		if !s.claimable(e) {
			s.unapplied++
			return true
		}
		mixed := s.mixed
		generation = s.store(e)
		if s.announcesNoRemovals(e) {
			now := time.Now()
			changed = changed || len(s.unremoved.queue) == 0
			s.unremoved.keep(e, now)
			s.expire(now) // what is too much
		}
		changed = changed || s.mixed != mixed
	case kvevent.Removed:
		s.removed++
		s.removesAll(e)
		if e.LastCopies && s.removals != lastCopy {
			s.toldLast()
			changed = true
		}
		generation = s.router.Remove(s.holder, s.model, warmpath.Removed{Tier: e.Tier, Group: max(e.Group, 0), Handles: e.Hashes})
	case kvevent.Cleared:
		s.cleared++
		generation = s.clear(e)
		changed = true
	}
	// An event of the old index's time is in the old index: the new one needs the whole history.
	if generation != s.generation.Load() {
		s.renew.Store(true)
	}
	return changed
}

// clear applies a reset. vLLM's offload tiers survive a reset of the accelerator's cache and are not announced again;
// SGLang's host copies go with the tree. Of other engines we assume the worse.
func (s *stream) clear(e *kvevent.Event) (generation uint64) {
	if s.engine == fleet.EngineVLLM {
		generation = s.router.Clear(s.holder, s.model, e.Tier)
		s.tiers &^= 1 << e.Tier
	} else {
		for t := range block.Tier(block.NumTiers) {
			generation = s.router.Clear(s.holder, s.model, t)
		}
		s.tiers = 0
	}
	// An empty cache has no missing history and no unknown block. But an offload tier that the reset does not clear
	// may have blocks that the index forgot.
	if s.tiers == 0 && !(s.offloads && s.engine == fleet.EngineVLLM) {
		s.reset = s.reset || !s.complete && s.engine == fleet.EngineVLLM
		s.complete, s.missing, s.broken, s.unread = true, "", false, ""
		s.hasAhead, s.mixed, s.unplaced = false, "", false
	}
	s.askIndex(time.Now())
	return generation
}

// store hands a stored event to the index.
func (s *stream) store(e *kvevent.Event) (generation uint64) {
	x := &s.out
	x.Tier, x.Group, x.Attention, x.Window = e.Tier, max(e.Group, 0), e.Attention, e.Window
	x.Scope = block.Scope{LoRA: e.LoRA, Salt: e.Salt, Extra: s.rootExtra}
	x.Parent, x.HasParent = e.Parent, e.HasParent
	x.Handles, x.BlockSize = e.Hashes, e.BlockSize
	x.First, x.Tokens = e.Shifted()
	x.Features = e.Features
	if ahead := len(e.Ahead); ahead > 0 {
		for i := range x.Features { // the batch is ours
			f := &x.Features[i]
			if f.Offset -= ahead; !e.HasParent {
				f.Offset = max(f.Offset, 0)
			}
		}
	}
	x.Origin = s.origin(e)
	x.RootUnknown = !s.rootKnown && !e.Indexable(s.keys(e))
	x.AnyTierOrder = s.engine == fleet.EngineTRTLLM
	if alike := s.aheadAlike(e); !alike {
		x.RootUnknown = true
		x.Tokens, x.Features = nil, nil
	}
	if !e.Aligned() || e.Unread != 0 {
		// The tokens are not those of the hashes, or not all that makes the blocks. The hashes alone can join them to
		// blocks that another event explains.
		x.Tokens, x.Features = nil, nil
	}
	s.tiers |= 1 << e.Tier
	return s.router.Store(s.holder, s.model, x)
}

// aheadAlike reports whether a stored event's blocks are hashed with the look-ahead of the stream's first: an engine
// hashes all of them alike. Blocks that are not may follow blocks under keys of the other kind, where their tokens would
// mean something else: such an event is known by its hashes alone. s.mu is held.
func (s *stream) aheadAlike(e *kvevent.Event) bool {
	if !e.Aligned() {
		return true // known by its hashes anyway
	}
	n := len(e.Ahead)
	if !s.hasAhead {
		if !s.router.SetAhead(s.holder, s.model, n) && n > 0 {
			s.mixed = fmt.Sprintf("its engine hashes blocks with a look-ahead of %d tokens, and the other ranks or engines of the model with too many others", n)
			return false
		}
		s.ahead, s.hasAhead, s.mixed = n, true, ""
	}
	if n != s.ahead {
		s.mixed = fmt.Sprintf("its events mix blocks that are hashed with a look-ahead of %d tokens and of %d", s.ahead, n)
	}
	return n == s.ahead
}

// keys are those that a request to the holder may carry. Blocks below the accelerator are joined through their hashes,
// but for those that have hashes of their own.
func (s *stream) keys(e *kvevent.Event) kvevent.Keys {
	if e.Tier != block.TierGPU && !s.announcesNoRemovals(e) {
		return kvevent.KeyRoot
	}
	return kvevent.Keys(s.used.Load())
}

// claimable reports whether a stored event may be given to the index at all. s.mu is held.
//
// vLLM folds all that keeps requests apart into its hashes: an event that hides some of it is still true of its hashes,
// and only a chain that begins with it must not be rooted. SGLang's hashes have the tokens in them and, lately, the
// salt. The same hash then stands for the copies of requests that its cache keeps apart, stored and removed under one
// name: neither its root nor its parent says whose copy it is. As soon as requests carry such a key nothing new is
// believed, while removals still are: what remains in the index is what certainly was there before, and fades. In its
// dynamo format the hashes tell the requests apart, and the keys that requests carried are tried against them.
func (s *stream) claimable(e *kvevent.Event) bool {
	used := kvevent.Keys(s.used.Load())
	s.rootExtra, s.rootKnown = "", false
	if s.engine == fleet.EngineSGLang && e.Unread == 0 && (s.namespaced || used&kvevent.KeyExtra != 0) {
		if !e.HasParent {
			var proven bool
			if s.rootExtra, s.rootKnown, proven = s.namespace(e); proven {
				s.namespaced, s.ambiguous = true, ""
			}
		}
		if s.namespaced {
			ok := e.HasParent || s.rootKnown
			s.unplaced = s.unplaced || !ok
			return ok
		}
		s.rootExtra, s.rootKnown = "", false
	}
	switch {
	case s.announcesNoRemovals(e):
		// Their hashes are not the engine's, so that nothing else tells what their tokens are part of.
		s.leaking = e.Medium
		ok := e.Aligned() && e.Unread == 0 && e.Hidden&used&kvevent.KeyRoot == 0
		s.doubted = s.doubted || !ok
		return ok
	case s.engine == fleet.EngineVLLM:
		return true
	case e.Unread != 0:
		return false
	case e.Hidden&used&kvevent.KeyRoot == 0:
		return true
	}
	s.ambiguous = keyNames(e.Hidden & used & kvevent.KeyRoot)
	return false
}

// keyNames names the keys in words.
func keyNames(k kvevent.Keys) string {
	switch {
	case k&kvevent.KeyExtra != 0:
		return "an extra_key"
	case k&kvevent.KeySalt != 0:
		return "a cache_salt"
	default:
		return "an adapter"
	}
}

// learn takes from a stored event what it tells about the engine, and reports whether something is new. s.mu is held.
func (s *stream) learn(e *kvevent.Event) (changed bool) {
	if e.Group >= 0 && e.Group < 64 && s.groups&(1<<e.Group) == 0 {
		s.groups |= 1 << e.Group
		changed = true
	}
	if e.Attention != block.AttentionFull && s.hybrid == "" {
		s.hybrid = e.Attention.String()
		changed = true
	}
	if e.Group >= 0 && !e.HasAttention && !s.unnamed {
		s.unnamed = true
		changed = true
	}
	if e.Tier != block.TierGPU && !s.offloads {
		s.offloads = true
		if s.reset { // no other event told of the tier
			s.complete, s.missing, s.reset = false, "what was offloaded before the reset of the accelerator's cache is not known", false
			changed = true
		}
	}
	if e.Tier != block.TierGPU || e.Attention != block.AttentionFull || !e.Aligned() {
		return changed
	}
	s.learnBlockSize(e.BlockSize)
	if !s.hashTried && !e.HasParent && e.Unread == 0 && len(e.Ahead) == 0 && e.LoRA == "" {
		s.hashTried = true
		s.identify(e)
	}
	return changed
}

// smallestBlock is the size below which the router's own blocks never are (warmpath.Options.BlockSize).
const smallestBlock = 16

// learnBlockSize corrects the block size that the probe told. Matches are rounded down to the engine's blocks, so of
// several sizes in one stream the largest counts.
func (s *stream) learnBlockSize(tokens int) {
	if tokens <= s.blockSize {
		return
	}
	first := s.blockSize == 0
	s.blockSize = tokens
	if configured := s.config.BlockSize; first && configured > tokens {
		s.warn("configured", fmt.Sprintf("events carry %d-token blocks, configured %d: using %d", tokens, configured, max(tokens, smallestBlock)))
	}
	w := s.fleet.Snapshot().Worker(s.holder)
	if w == nil {
		return
	}
	if static := s.fleet.StaticBlockSize(w.Facts.BaseModel()); static > 0 {
		if static != tokens {
			s.warn("block size", fmt.Sprintf("events carry %d-token blocks, routing.block_sizes says %d: using %d", tokens, static, static))
		}
		return
	}
	if w.Facts.BlockSize == tokens || !first && w.Facts.BlockSize > tokens {
		return
	}
	if probed := w.Facts.BlockSize; probed > 0 {
		s.warn("block size", fmt.Sprintf("events carry %d-token blocks, the probe said %d: using %d", tokens, probed, tokens))
	}
	s.fleet.SetBlockSize(s.worker, tokens)
	if s.stored == 1 {
		// Nothing was stored yet: if this made the index anew, it misses nothing of ours.
		s.generation.Store(s.router.Generation(s.holder))
	}
}

// identify finds the algorithm and the seed of the engine's own hashes: for the operator, who may want two engines or
// another router to agree on them. We do not depend on it.
func (s *stream) identify(e *kvevent.Event) {
	const enough = 2 // blocks
	n := min(len(e.Hashes), enough)
	sample := block.EngineSample{Size: e.BlockSize, Tokens: slices.Clone(e.Tokens[:n*e.BlockSize]), Hashes: slices.Clone(e.Hashes[:n])}
	if s.engine == fleet.EngineSGLang {
		sample.Salt = e.Salt
	} else if e.Salt != "" {
		sample.Extra = [][]block.ExtraKey{{block.TextKey(e.Salt)}}
	}
	if len(e.Features) > 0 {
		return
	}
	chain, ok := block.IdentifyEngine(sample, s.config.Seeds...)
	switch {
	case !ok:
		s.hash = "not reproduced"
	case chain.Algorithm == block.SGLangSHA256:
		s.hash = chain.Algorithm.String()
	default:
		s.hash = fmt.Sprintf("%s, seed %q", chain.Algorithm, chain.Seed)
	}
}
