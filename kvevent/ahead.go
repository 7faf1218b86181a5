package kvevent

import "github.com/warmpath/warmpath/block"

// ahead reads the field lookahead_token_ids. The field has one list for each hash: the tokens after the hash's block
// that the hash also covers. All lists have the same length. The list of the last block becomes e.Ahead. The tokens of
// the other lists repeat token_ids; if they differ from token_ids, the event is unusable (vLLM's v1/core/block_pool.py:
// _lookahead_token_ids).
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

// remaining reads the field remaining_copy_counts. The field has one number for each hash: how many copies of the block
// are left. The event keeps only the hashes with 0 copies, because only these blocks are gone. The field comes from a
// change of vLLM that is not merged (#48933).
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

// forEachHash moves the cursor to r.later, where the value of the field begins, and takes the head of the value: an
// array with one element for each hash. name and what are words for the error: the field's name, and a word for one
// element.
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
