package kvevent

import (
	"math"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// polledBlock is one element of a stored event's blocks. Its tokens are at the end of the batch's tokens.
type polledBlock struct {
	hash    Hash
	hasHash bool
	tokens  int
	tier    block.Tier
	unread  Keys
}

// stored reads a chain of blocks. Full blocks of one tier become one event.
func (t *TRTLLM) stored(b *Batch, parent, blocks []byte) (problem string) {
	var last Hash
	chained := parent != nil && !isNull(parent)
	if chained {
		var ok bool
		if last, _, ok = jsonInteger(parent); !ok {
			return "parent_hash is no integer"
		}
	}
	if !isArray(blocks) {
		return "blocks is no array"
	}
	events, hashes, tokens := len(b.Events), len(b.hashes), len(b.tokens)
	s := jsonscan.New(blocks, maxDepth)
	for more := s.Open('['); more; more = s.Next(']') {
		before := len(b.tokens)
		p, problem := readBlock(b, &s)
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

// isFull reports whether a block of that many tokens is full. It learns the size of a full block.
func (t *TRTLLM) isFull(tokens int) bool {
	if t.BlockSize > 0 {
		return tokens == t.BlockSize
	}
	t.full = max(t.full, tokens)
	return tokens > 0 && tokens == t.full
}

// chain adds a block to the last event. If the block does not continue that event, it begins a new event after parent.
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
	e.Hidden = KeyLoRA | KeySalt // both are in TensorRT-LLM's block keys, and not in its events
}

// readBlock reads one block and appends its tokens to the batch. After a problem the scanner is somewhere in the block.
func readBlock(b *Batch, s *jsonscan.Scanner) (p polledBlock, problem string) {
	if s.Peek() != '{' {
		return p, "a block is no object"
	}
	before := len(b.tokens)
	for more := s.Open('{'); more; more = s.Next('}') {
		key, _ := s.Key()
		ok := true
		switch string(key) {
		case "block_hash":
			p.hash, _, p.hasHash = jsonInteger(s.Raw())
			ok = p.hasHash
		case "cache_level":
			var level uint64
			level, ok = jsonSize(s.Raw(), maxRank)
			p.tier = levelTier(level)
		case "tokens":
			b.tokens = b.tokens[:before]
			ok = p.readTokens(b, s)
		case "mm_keys": // they contain where in an item the block begins, not where in the block the item begins
			if value := s.Raw(); !isNull(value) && !isEmptyArray(value) {
				p.unread |= KeyFeature
			}
		default:
			s.Skip()
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

// readTokens reads [{"token_id": …, "token_extra_id": …}, …].
func (p *polledBlock) readTokens(b *Batch, s *jsonscan.Scanner) bool {
	if s.Peek() != '[' {
		return false
	}
	for more := s.Open('['); more; more = s.Next(']') {
		if s.Peek() != '{' {
			return false
		}
		id, known := uint64(0), false
		for more := s.Open('{'); more; more = s.Next('}') {
			switch key, _ := s.Key(); string(key) {
			case "token_id":
				if id, known = jsonSize(s.Raw(), math.MaxUint32); !known {
					return false
				}
			case "token_extra_id": // a prompt table or a multimodal item is behind the token
				if extra, ok := jsonSize(s.Raw(), math.MaxUint64); !ok || extra != 0 {
					p.unread |= KeyOther
				}
			default:
				s.Skip()
			}
		}
		if !known {
			return false
		}
		b.tokens = append(b.tokens, block.Token(id))
	}
	return true
}
