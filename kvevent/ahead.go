package kvevent

import "github.com/warmpath/warmpath/block"

// ahead reads the field lookahead_token_ids. It has one list for each hash: the tokens after the hash's block that the
// hash covers too. All lists have the same length. Only the tokens of the last list are new. The tokens of the other
// lists repeat token_ids, and are compared with it (vLLM's v1/core/block_pool.py: _lookahead_token_ids).
func (d *Decoder) ahead(b *Batch, e *Event, r *reading) (problem string) {
	c := &d.c
	resume := c.i
	defer func() { c.i = resume }()
	if problem := d.forEachHash(e, r, "lookahead_token_ids", "list"); problem != "" {
		return problem
	}
	if len(e.Ahead) > 0 {
		return "token pairs and lookahead_token_ids in one event"
	}
	aligned, width := e.Aligned(), 0
	var list [block.MaxAhead]block.Token
	for i := range e.Hashes {
		m, ok := c.array()
		switch {
		case !ok:
			return "a look-ahead is no array"
		case m == 0:
			return "a look-ahead is empty"
		case m > block.MaxAhead:
			return "a look-ahead has more than 64 tokens"
		case i > 0 && m != width:
			return "look-aheads differ in length"
		}
		width = m
		if _, ok := c.appendTokens(list[:0], m); !ok {
			return "a token of a look-ahead is no integer of 32 bits"
		}
		if !aligned {
			continue
		}
		after := e.Tokens[(i+1)*e.BlockSize:]
		for k, t := range after[:min(len(after), m)] {
			if t != list[k] {
				return "a look-ahead contradicts token_ids"
			}
		}
	}
	start := len(b.tokens) - len(e.Tokens)
	b.tokens = append(room(b.tokens, width), list[:width]...)
	e.Tokens = b.tokens[start : len(b.tokens)-width : len(b.tokens)]
	e.Ahead = b.tokens[len(b.tokens)-width : len(b.tokens) : len(b.tokens)]
	return ""
}

// remaining reads the field remaining_copy_counts. It has one number for each hash: how many copies of the block are
// left. The event keeps only the hashes without copies, because only their blocks are gone. The field is part of an
// open change of vLLM (#48933).
func (d *Decoder) remaining(e *Event, r *reading) (problem string) {
	c := &d.c
	resume := c.i
	defer func() { c.i = resume }()
	if problem := d.forEachHash(e, r, "remaining_copy_counts", "count"); problem != "" {
		return problem
	}
	gone, digests := e.Hashes[:0], e.Digests[:0]
	for i, h := range e.Hashes {
		left, ok := c.size(maxCopies)
		if !ok {
			return "a count of remaining copies is no count"
		}
		if left == 0 {
			gone = append(gone, h)
			if i < len(e.Digests) {
				digests = append(digests, e.Digests[i])
			}
		}
	}
	e.Hashes, e.Digests, e.LastCopies = gone, digests, true
	return ""
}

// forEachHash moves the cursor to r.later, the field that is read last. The field must be an array with one element for
// each hash. For the error, name is the name of the field, and what is a word for an element.
func (d *Decoder) forEachHash(e *Event, r *reading, name, what string) (problem string) {
	d.c.i = r.later
	n, ok := d.c.array()
	switch {
	case !ok:
		return name + " is no array"
	case n != len(e.Hashes):
		return name + " has not one " + what + " for each block hash"
	}
	return ""
}
