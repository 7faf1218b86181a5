package kvfeed

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
		// The event is about copies outside the engine. Whether the engine can use these copies is unknown. So the
		// copies count for no holder, and their removal removes nothing.
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
			s.expire(now) // also removes the blocks beyond mostUnremoved
		}
		changed = changed || s.mixed != mixed
	case kvevent.Removed:
		s.removed++
		s.removesAll(e)
		if e.LastCopies && s.removals != lastCopy {
			s.lastRemoved()
			changed = true
		}
		generation = s.router.Remove(s.holder, warmpath.Removed{Tier: e.Tier, Group: max(e.Group, 0), Hashes: e.Hashes})
	case kvevent.Cleared:
		s.cleared++
		generation = s.clear(e)
		changed = true
	}
	// Earlier events were applied to the old index: the new index needs the whole history.
	if generation != s.generation.Load() {
		s.renew.Store(true)
	}
	return changed
}

// clear applies a reset. In vLLM, a reset of the accelerator's cache does not empty the offload tiers, and the blocks
// in these tiers are not announced again. SGLang drops its host copies together with the tree. Other engines are
// assumed to drop their host copies, too.
func (s *stream) clear(e *kvevent.Event) (generation uint64) {
	if s.engine == fleet.EngineVLLM {
		generation = s.router.Clear(s.holder, e.Tier)
		s.tiers &^= 1 << e.Tier
	} else {
		for t := range block.Tier(block.NumTiers) {
			generation = s.router.Clear(s.holder, t)
		}
		s.tiers = 0
	}
	// An empty cache has no missing history and no unknown block. But an offload tier that survives the reset may have
	// blocks that the index forgot.
	if s.tiers == 0 && !(s.offloads && s.engine == fleet.EngineVLLM) {
		s.reset = s.reset || !s.complete && s.engine == fleet.EngineVLLM
		s.complete, s.missing, s.broken, s.unread = true, "", false, ""
		s.hasAhead, s.mixed, s.unplaced = false, "", false
	}
	s.askIndex(time.Now())
	return generation
}

// store passes a stored event to the index.
func (s *stream) store(e *kvevent.Event) (generation uint64) {
	x := &s.out
	x.Tier, x.Group, x.Attention, x.Window = e.Tier, max(e.Group, 0), e.Attention, e.Window
	x.Scope = block.Scope{LoRA: e.LoRA, Salt: e.Salt, Extra: s.rootExtra}
	x.Parent, x.HasParent = e.Parent, e.HasParent
	x.Hashes, x.BlockSize = e.Hashes, e.BlockSize
	x.First, x.Tokens = e.Shifted()
	x.Features = e.Features
	if ahead := len(e.Ahead); ahead > 0 {
		for i := range x.Features { // the batch belongs to the stream, so its features may be changed
			f := &x.Features[i]
			if f.Offset -= ahead; !e.HasParent {
				f.Offset = max(f.Offset, 0)
			}
		}
	}
	x.Origin = s.copyOrigin(e)
	x.RootUnknown = !s.rootKnown && !e.Indexable(s.keys(e))
	x.AnyTierOrder = s.engine == fleet.EngineTRTLLM
	if alike := s.aheadAlike(e); !alike {
		x.RootUnknown = true
		x.Tokens, x.Features = nil, nil
	}
	if !e.Aligned() || e.Unread != 0 {
		// The tokens do not determine the blocks. With the hashes alone, the index can still join these blocks to the
		// blocks of another event.
		x.Tokens, x.Features = nil, nil
	}
	s.tiers |= 1 << e.Tier
	return s.router.Store(s.holder, x)
}

// aheadAlike reports whether the blocks of a stored event have the same look-ahead as the first blocks of the stream,
// and the router can match this look-ahead. The look-ahead is the number of tokens after a block that the block's hash
// covers. An engine uses one look-ahead for all blocks. If a block has another look-ahead, the key of its parent may
// cover other tokens, so only the hashes of the event are used. s.mu is held.
func (s *stream) aheadAlike(e *kvevent.Event) bool {
	if !e.Aligned() {
		return true // the event's tokens are not used anyway
	}
	n := len(e.Ahead)
	if !s.hasAhead {
		if !s.router.SetAhead(s.holder, n) && n > 0 {
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

// keys returns the keys that requests to the holder may carry and that matter for the event. For a block below the
// accelerator (in CPU memory, on disk or remote), keys returns the worst case: all keys of a chain's beginning. There
// the index finds nearly all blocks by their hashes. Tiers that do not use the engine's hashes are an exception.
func (s *stream) keys(e *kvevent.Event) kvevent.Keys {
	if e.Tier != block.TierGPU && !s.ofConnector(e) {
		return kvevent.KeyRoot
	}
	return kvevent.Keys(s.used.Load())
}

// claimable reports whether a stored event may be passed to the index. s.mu is held.
//
// vLLM's hashes cover every key that separates requests. So the hashes are right even if the event does not contain
// such a key. But when the event begins a chain, the chain's root (the hash of model, adapter, cache_salt and
// extra_key) is unknown: then store sets RootUnknown, and the index begins no chain.
//
// SGLang's hashes cover the tokens and, in new versions, the salt. Its cache separates requests by extra_key, but
// blocks with the same tokens have the same hash, so an event does not show which request it is about. Once requests
// carry an extra_key, stored events are not applied any more, but removals still are. So the index loses the blocks of
// such a holder over time, and never claims a block that the holder does not have. In SGLang's dynamo format the hashes
// cover extra_key: there the feed tries the values that requests carried. Engines other than vLLM and SGLang are
// treated as SGLang in its default format.
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
	case s.ofConnector(e):
		// The hashes of these blocks are not the engine's own, so nothing shows to which chain their tokens belong.
		ok := e.Aligned() && e.Unread == 0 && e.Hidden&used&kvevent.KeyRoot == 0
		if !ok || s.announcesNoRemovals(e) {
			s.leaking = e.Medium
		}
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

// keyNames returns the name of one key of k, for a message.
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

// learn learns about the engine from a stored event, and reports whether something is new. s.mu is held.
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
		if s.reset { // the first event about an offload tier
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

// smallestBlock is the smallest default size of the router's own blocks (warmpath.Options.BlockSize).
const smallestBlock = 16

// learnBlockSize corrects the block size that the probe found. If a stream has blocks of several sizes, the largest
// size counts: matches are rounded down to the engine's blocks.
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
		// This is the holder's first stored event. If the index was just replaced, the new index misses nothing of this
		// holder.
		s.generation.Store(s.router.Generation(s.holder))
	}
}

// identify finds the algorithm and the seed of the engine's own hashes. The router does not need them. They show an
// operator whether two engines hash alike.
func (s *stream) identify(e *kvevent.Event) {
	const enough = 2 // number of blocks whose hashes must agree
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
