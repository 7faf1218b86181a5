package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/bench/internal/synth"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
)

// row is one line of a Mooncake trace. Each of its hash ids stands for a block of 512 tokens and all tokens before the
// block.
type row struct {
	Timestamp    float64 `json:"timestamp"` // ms
	OutputLength int     `json:"output_length"`
	IDs          []int   `json:"hash_ids"`
}

// readTrace returns the rows and the SHA-256 of the unpacked file.
func readTrace(path string) (rows []row, sum string, err error) {
	packed, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("read trace: %w", err)
	}
	data := packed
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, "", fmt.Errorf("unpack %s: %w", path, err)
		}
		if data, err = io.ReadAll(z); err != nil {
			return nil, "", fmt.Errorf("unpack %s: %w", path, err)
		}
	}
	digest := sha256.Sum256(data)
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, "", fmt.Errorf("read %s: %w", path, err)
		}
		rows = append(rows, r)
	}
	return rows, hex.EncodeToString(digest[:]), lines.Err()
}

// shape has the parameters with which a trace becomes a corpus.
type shape struct {
	Holders     int // number of holders
	BlockSize   int // tokens in a block
	Blocks      int // number of blocks in each holder's pool
	Length      int // number of blocks for each hash id of the trace
	Duplication int // number of copies of the trace; each copy has its own hash ids
	Speedup     int // factor by which the engine model is faster than its profile
	Seed        uint64
}

// kind is the kind of an operation. Among operations at the same time, queries come first.
type kind uint8

const (
	query kind = iota
	stored
	removed
	cleared
)

// operation is the lookup of a request or an event.
type operation struct {
	at       float64 // in a timeline: time in seconds; in a corpus: 0 (the holder's first operation) to 1 (its last)
	holder   uint32
	kind     kind
	rooted   bool   // stored only: the first block has no parent
	parent   uint64 // stored only: key of the first block's parent
	from, to uint32 // the hashes of the operation's blocks are locals[from:to] and keys[from:to]
	before   uint32 // number of queries before the operation
}

// corpus has the operations of a replay, in order, and the hashes of their blocks.
type corpus struct {
	shape
	operations    []operation
	locals, keys  []uint64 // hashes of the blocks of all operations; the local hash of a removed block is 0
	requests      int
	events        [4]int // number of events by kind
	requestBlocks int
	eventBlocks   [4]int
	perHolder     []int // number of events of each holder
	sum           string
}

func (c *corpus) blocks() int {
	return c.requestBlocks + c.eventBlocks[stored] + c.eventBlocks[removed]
}

// build runs the requests of each holder through a separate engine model, and merges the timelines.
func build(rows []row, s shape) (*corpus, error) {
	highest := 0
	for _, r := range rows {
		for _, id := range r.IDs {
			highest = max(highest, id)
		}
	}
	if int64(s.Duplication)*int64(highest+1)*int64(s.Length) >= int64(generated) {
		return nil, errors.New("build corpus: ids would not fit in tokens: use a smaller -duplication")
	}
	// Each request gets a random holder, because the rows of the trace have no sessions.
	random := rand.New(rand.NewPCG(s.Seed, 0))
	shares := make([][]arrival, s.Holders)
	for copies := range s.Duplication {
		for i := range rows {
			h := random.IntN(s.Holders)
			serial := uint32(copies*len(rows) + i)
			shares[h] = append(shares[h], arrival{row: &rows[i], shift: copies * (highest + 1), serial: serial})
		}
	}
	lines := make([]*timeline, s.Holders)
	problems := make([]error, s.Holders)
	var group sync.WaitGroup
	next := make(chan int)
	for range 2 {
		group.Go(func() {
			for h := range next {
				lines[h], problems[h] = simulate(shares[h], s)
			}
		})
	}
	for h := range s.Holders {
		next <- h
	}
	close(next)
	group.Wait()
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return merge(lines, s)
}

// arrival is a request of one copy of the trace.
type arrival struct {
	*row
	shift  int
	serial uint32
}

// timeline has the operations of one holder and the hashes of their blocks. operation.at is in seconds of the engine
// model's time.
type timeline struct {
	operations   []operation
	locals, keys []uint64
}

// generated is the first token id of answers. Prompts have smaller ids. Each block of an answer is unique.
const generated block.Token = 1 << 31

// longestAnswer bounds the number of different token ids in an answer, so that two answers have no id in common. The
// last id repeats in a longer answer.
const longestAnswer = 64 // blocks

func simulate(share []arrival, s shape) (*timeline, error) {
	slices.SortStableFunc(share, func(a, b arrival) int {
		switch {
		case a.Timestamp < b.Timestamp:
			return -1
		case a.Timestamp > b.Timestamp:
			return 1
		}
		return 0
	})
	cfg := engine.DefaultConfig()
	cfg.BlockSize, cfg.Blocks = s.BlockSize, s.Blocks+1 // one block more, because the engine never uses its null block
	cfg.MaxBatchTokens, cfg.MaxSequences, cfg.MaxModelLen = 1<<30, 1<<30, 1<<30
	cfg.Hash = func(dst []engine.Hash, _ *engine.Request, tokens []block.Token) []engine.Hash {
		for i := len(dst); (i+1)*s.BlockSize <= len(tokens); i++ {
			key := localHash(tokens[i*s.BlockSize])
			if i > 0 {
				key = synth.NextKey(uint64(dst[i-1]), key)
			}
			dst = append(dst, engine.Hash(key))
		}
		return dst
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("build corpus: %w", err)
	}
	line := &timeline{}
	var now time.Duration
	var step engine.Step
	for len(share) > 0 || !e.Idle() {
		if e.Idle() {
			now = max(now, due(share[0]))
		}
		for len(share) > 0 && due(share[0]) <= now {
			if err := line.submit(e, share[0], s); err != nil {
				return nil, err
			}
			share = share[1:]
		}
		if !e.Step(&step) {
			continue
		}
		now += max(step.Duration/time.Duration(s.Speedup), 1)
		line.note(step.Events, now, s)
	}
	return line, nil
}

func due(a arrival) time.Duration { return time.Duration(a.Timestamp * float64(time.Millisecond)) }

// localHash returns the local hash of a block that repeats one token.
func localHash(token block.Token) uint64 { return block.Mix64(uint64(token) + 1) }

// submit submits a request to the engine and records its lookup. It leaves out a request that does not fit in the pool.
func (l *timeline) submit(e *engine.Engine, a arrival, s shape) error {
	r := &engine.Request{Prompt: make([]block.Token, 0, len(a.IDs)*s.Length*s.BlockSize), Output: make([]block.Token, max(a.OutputLength, 1))}
	for _, id := range a.IDs {
		for part := range s.Length {
			token := block.Token((id+a.shift)*s.Length + part)
			for range s.BlockSize {
				r.Prompt = append(r.Prompt, token)
			}
		}
	}
	for i := range r.Output {
		r.Output[i] = generated + a.serial*longestAnswer + uint32(min(i/s.BlockSize, longestAnswer-1))
	}
	if err := e.Submit(r); errors.Is(err, engine.ErrTooLong) {
		return nil
	} else if err != nil {
		return fmt.Errorf("build corpus: %w", err)
	}
	from := uint32(len(l.keys))
	parent := uint64(0)
	for i := 0; i < len(r.Prompt); i += s.BlockSize {
		local := localHash(r.Prompt[i])
		key := local
		if i > 0 {
			key = synth.NextKey(parent, local)
		}
		l.locals, l.keys = append(l.locals, local), append(l.keys, key)
		parent = key
	}
	l.operations = append(l.operations, operation{at: due(a).Seconds(), kind: query, from: from, to: uint32(len(l.keys))})
	return nil
}

// note records the events of a step.
func (l *timeline) note(events []engine.Event, now time.Duration, s shape) {
	for i := range events {
		ev := &events[i]
		o := operation{at: now.Seconds(), from: uint32(len(l.keys))}
		switch ev.Kind {
		case engine.Stored:
			o.kind, o.parent, o.rooted = stored, uint64(ev.Parent), !ev.HasParent
		case engine.Removed:
			o.kind = removed
		case engine.Cleared:
			o.kind = cleared
		}
		for j, hash := range ev.Hashes {
			local := uint64(0)
			if ev.Kind == engine.Stored {
				local = localHash(ev.Tokens[j*s.BlockSize])
			}
			l.locals, l.keys = append(l.locals, local), append(l.keys, uint64(hash))
		}
		o.to = uint32(len(l.keys))
		if n := len(l.operations); i > 0 && o.kind == removed && l.operations[n-1].kind == removed {
			// Dynamo's corpus has one event for all blocks that a pass evicts. The engine model has an event for each block,
			// like vLLM. So join consecutive removals of a pass here.
			l.operations[n-1].to = o.to
			continue
		}
		l.operations = append(l.operations, o)
	}
}

// merge scales the times of each timeline to the range from 0 (first operation) to 1 (last operation), and sorts the
// operations of all timelines by time. Among operations at the same time, queries come first, and then the order is by
// holder and by the holder's timeline.
func merge(lines []*timeline, s shape) (*corpus, error) {
	c := &corpus{shape: s, perHolder: make([]int, s.Holders)}
	total := 0
	for _, l := range lines {
		total += len(l.keys)
	}
	if int64(total) >= 1<<32 {
		return nil, errors.New("build corpus: too many blocks: use a smaller -duplication")
	}
	c.locals, c.keys = make([]uint64, 0, total), make([]uint64, 0, total)
	for h, l := range lines {
		if len(l.operations) == 0 {
			continue
		}
		// Sort, because a lookup is recorded at the arrival of its request, which may be before the end of the running step.
		slices.SortStableFunc(l.operations, before)
		first, last := l.operations[0].at, l.operations[len(l.operations)-1].at
		for _, o := range l.operations {
			o.at = (o.at - first) / max(last-first, 1e-9)
			o.holder = uint32(h)
			o.from, o.to = o.from+uint32(len(c.keys)), o.to+uint32(len(c.keys))
			c.count(&o)
			c.operations = append(c.operations, o)
		}
		c.locals, c.keys = append(c.locals, l.locals...), append(c.keys, l.keys...)
		*l = timeline{}
	}
	slices.SortStableFunc(c.operations, before)
	queries := uint32(0)
	sum := sha256.New()
	for i := range c.operations {
		o := &c.operations[i]
		o.before = queries
		if o.kind == query {
			queries++
		}
		fmt.Fprintln(sum, o.at, o.holder, o.kind, o.parent, c.keys[o.from:o.to])
	}
	c.sum = hex.EncodeToString(sum.Sum(nil))
	return c, nil
}

func before(a, b operation) int {
	questionFirst := func(k kind) int { return min(int(k), 1) }
	switch {
	case a.at < b.at:
		return -1
	case a.at > b.at:
		return 1
	case questionFirst(a.kind) != questionFirst(b.kind):
		return questionFirst(a.kind) - questionFirst(b.kind)
	}
	return int(a.holder) - int(b.holder)
}

func (c *corpus) count(o *operation) {
	n := int(o.to - o.from)
	if o.kind == query {
		c.requests++
		c.requestBlocks += n
		return
	}
	c.events[o.kind]++
	c.eventBlocks[o.kind] += n
	c.perHolder[o.holder]++
}
