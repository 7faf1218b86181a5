package kvevent

import (
	"math"

	"github.com/warmpath/warmpath/block"
)

// polledBlock is one element of a stored event's blocks; its tokens are at the end of the batch's.
type polledBlock struct {
	hash    Hash
	hasHash bool
	tokens  int
	tier    block.Tier
	unread  Keys
}

// stored takes a chain of blocks. Full ones of one tier become one event.
func (t *TRTLLM) stored(b *Batch, parent, blocks int) (problem string) {
	c := &t.c
	var last Hash
	chained := false
	if c.i = parent; parent > 0 && !c.word("null") {
		var ok bool
		if last, _, ok = c.integer(); !ok {
			return "parent_hash is no integer"
		}
		chained = true
	}
	c.i = blocks
	if blocks == 0 || !c.sign('[') {
		return "blocks is no array"
	}
	events, hashes, tokens := len(b.Events), len(b.hashes), len(b.tokens)
	for n := 0; c.next(n, ']'); n++ {
		before := len(b.tokens)
		p, problem := t.block(b)
		if problem != "" {
			b.Events, b.hashes, b.tokens = b.Events[:events], b.hashes[:hashes], b.tokens[:tokens]
			return problem
		}
		if !t.isFull(p.tokens) {
			b.tokens = b.tokens[:before]
		} else {
			t.chain(b, p, last, chained, len(b.Events) > events)
		}
		last, chained = p.hash, true
	}
	return ""
}

// isFull learns the size of a full block.
func (t *TRTLLM) isFull(tokens int) bool {
	if t.BlockSize > 0 {
		return tokens == t.BlockSize
	}
	t.full = max(t.full, tokens)
	return tokens > 0 && tokens == t.full
}

// chain adds a block to the last event, or begins one after parent when it does not continue that.
func (t *TRTLLM) chain(b *Batch, p polledBlock, parent Hash, hasParent, continues bool) {
	b.hashes = append(b.hashes, p.hash)
	if continues {
		e := &b.Events[len(b.Events)-1]
		tail := e.Hashes[len(e.Hashes)-1]
		if e.Tier == p.tier && e.BlockSize == p.tokens && hasParent && tail == parent {
			e.Hashes = b.hashes[len(b.hashes)-len(e.Hashes)-1 : len(b.hashes) : len(b.hashes)]
			e.Tokens = b.tokens[len(b.tokens)-len(e.Tokens)-p.tokens : len(b.tokens) : len(b.tokens)]
			e.Unread |= p.unread
			return
		}
	}
	e := b.add(Stored)
	e.Tier, e.Medium, e.BlockSize = p.tier, levelMedium(p.tier), p.tokens
	e.Parent, e.HasParent = parent, hasParent
	e.Hashes = b.hashes[len(b.hashes)-1 : len(b.hashes) : len(b.hashes)]
	e.Tokens = b.tokens[len(b.tokens)-p.tokens : len(b.tokens) : len(b.tokens)]
	e.Unread = p.unread
	e.Hidden = KeyLoRA | KeySalt // both are in TensorRT-LLM's block keys, neither is in its events
}

// block takes one block and appends its tokens to the batch.
func (t *TRTLLM) block(b *Batch) (p polledBlock, problem string) {
	c := &t.c
	if !c.sign('{') {
		return p, "a block is no object"
	}
	before := len(b.tokens)
	for n := 0; c.next(n, '}'); n++ {
		key := c.key()
		ok := true
		switch string(key) {
		case "block_hash":
			p.hash, _, p.hasHash = c.integer()
			ok = p.hasHash
		case "cache_level":
			var level uint64
			level, ok = c.size(maxRank)
			p.tier = levelTier(level)
		case "tokens":
			b.tokens = b.tokens[:before]
			ok = t.tokens(b, &p)
		case "mm_keys": // say where in an item the block begins, not where in the block the item does
			if !c.word("null") && !t.emptyArray() {
				p.unread |= KeyFeature
			}
		default:
			c.skip()
		}
		if !ok {
			return p, "a part of a block is of the wrong kind"
		}
	}
	if !p.hasHash {
		return p, "a block without block_hash"
	}
	p.tokens = len(b.tokens) - before
	return p, ""
}

func (t *TRTLLM) emptyArray() bool {
	c := &t.c
	start := c.i
	if c.sign('[') && c.sign(']') {
		return true
	}
	c.i = start
	c.skip()
	return false
}

// tokens takes [{"token_id": …, "token_extra_id": …}, …].
func (t *TRTLLM) tokens(b *Batch, p *polledBlock) bool {
	c := &t.c
	if !c.sign('[') {
		return false
	}
	for n := 0; c.next(n, ']'); n++ {
		if !c.sign('{') {
			return false
		}
		id, known := uint64(0), false
		for m := 0; c.next(m, '}'); m++ {
			key := c.key()
			switch string(key) {
			case "token_id":
				if id, known = c.size(math.MaxUint32); !known {
					return false
				}
			case "token_extra_id": // a prompt table or a multimodal item stands behind the token
				extra, ok := c.size(math.MaxUint64)
				if !ok || extra != 0 {
					p.unread |= KeyOther
				}
				if !ok {
					c.skip()
				}
			default:
				c.skip()
			}
		}
		if !known {
			return false
		}
		b.tokens = append(b.tokens, block.Token(id))
	}
	return true
}
