package testenv_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
)

// contents gives a number to each content of a block: the block's tokens and all tokens before them. Diaries that share
// a contents give equal blocks equal numbers, although the hashes of their engines differ.
type contents struct {
	mu  sync.Mutex // guards ids
	ids map[string]int
}

// of returns the number of the block with these tokens after the block with number parent. Parent 0 means that the
// block begins a prompt.
func (c *contents) of(parent int, tokens []block.Token) int {
	var b strings.Builder
	_ = binary.Write(&b, binary.LittleEndian, int64(parent))
	_ = binary.Write(&b, binary.LittleEndian, tokens)
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok := c.ids[b.String()]
	if !ok {
		id = len(c.ids) + 1
		c.ids[b.String()] = id
	}
	return id
}

// sight is a snapshot of a diary: which contents the engine has cached, and the order in which it stored and evicted
// contents.
type sight struct {
	live     map[int]int // by content: number of copies
	evicted  []int       // contents, in the order of eviction
	order    []int       // contents, in the order in which they were stored; a content may occur several times
	stored   int
	messages int
	problem  string
}

// labDiary applies the events of one engine, and identifies blocks by content, not by hash.
type labDiary struct {
	known   *contents
	mu      sync.Mutex // guards the fields below
	decoder kvevent.Decoder
	batch   kvevent.Batch
	content map[kvevent.Hash]int
	now     sight
	isUp    bool
}

func newLabDiary(known *contents) *labDiary {
	return &labDiary{known: known, content: map[kvevent.Hash]int{}, now: sight{live: map[int]int{}}}
}

func (d *labDiary) up() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isUp
}

func (d *labDiary) look() sight {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.now
	s.live, s.evicted, s.order = maps.Clone(s.live), slices.Clone(s.evicted), slices.Clone(s.order)
	return s
}

// begin empties the lists of evicted and stored contents.
func (d *labDiary) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.evicted, d.now.order, d.now.stored = nil, nil, 0
}

func (d *labDiary) Message(seq uint64, payload []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.messages++
	if err := d.decoder.Decode(payload, &d.batch); err != nil || d.batch.Skipped > 0 {
		d.now.problem = fmt.Sprintf("message %d: %v, %d events skipped", seq, err, d.batch.Skipped)
		return
	}
	for i := range d.batch.Events {
		d.note(&d.batch.Events[i])
	}
}

func (d *labDiary) note(e *kvevent.Event) {
	switch e.Kind {
	case kvevent.Stored:
		if !e.Aligned() {
			d.now.problem = fmt.Sprintf("an event with %d hashes for %d tokens", len(e.Hashes), len(e.Tokens))
			return
		}
		parent := 0
		if e.HasParent {
			parent = d.content[e.Parent]
		}
		for i, h := range e.Hashes {
			parent = d.known.of(parent, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
			d.content[h] = parent
			d.now.live[parent]++
			d.now.order = append(d.now.order, parent)
			d.now.stored++
		}
	case kvevent.Removed:
		for _, h := range e.Hashes {
			id := d.content[h]
			if d.now.live[id]--; d.now.live[id] <= 0 {
				delete(d.now.live, id)
			}
			d.now.evicted = append(d.now.evicted, id)
		}
	case kvevent.Cleared:
		clear(d.now.live)
	}
}

func (d *labDiary) Restarted(why string) { d.fail("restarted: " + why) }
func (d *labDiary) Lost(from, to uint64) { d.fail(fmt.Sprintf("messages %d to %d are lost", from, to)) }
func (d *labDiary) Complete()            {}
func (d *labDiary) Behind(bool)          {}
func (d *labDiary) Unnumbered()          {}

func (d *labDiary) fail(problem string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.problem = problem
}

func (d *labDiary) State(connected bool, _ error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isUp = connected
}
