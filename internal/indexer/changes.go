package indexer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

const (
	// maxBehind bounds the changes, in bytes, that wait for one reader. A reader that falls further behind loses its
	// stream: it can begin again with a dump, and the index never waits for it. 0.5 M blocks a second are 8 MB a second.
	maxBehind = 32 << 20
	// maxReaders bounds the streams of changes.
	maxReaders = 64
	// changeBytes is the memory of a change without its keys.
	changeBytes = 200
)

// changeKind is Change.Kind of indexer.proto.
type changeKind uint8

const (
	changeBegin changeKind = iota + 1
	changeAdded
	changeDropped
	changeCleared
	changeForgotten
	changeReset
	changeRegrouped
	changeLost
)

// changeNames are the names of the kinds in GET /changes.
var changeNames = [...]string{"", "begin", "added", "dropped", "cleared", "forgotten", "reset", "regrouped", "lost"}

// change is one change of the index: Change of indexer.proto, and a line of GET /changes. It is immutable once it is
// published, because all readers share it.
type change struct {
	number uint64
	kind   changeKind
	rankBlocks
	parent block.Key // of the first block; 0: the first block begins a chain
}

// Changes publishes the changes of a router's indexes to readers. It is safe for concurrent use. Without readers a
// change costs one atomic load.
type Changes struct {
	reading atomic.Int32 // the number of readers

	behind int // maxBehind, or less in a test
	most   int // maxReaders, or less

	mu      sync.Mutex // guards the fields below; a leaf: held for microseconds, also under the locks of indexes
	fleet   *fleet.Fleet
	number  uint64
	readers map[*reader]struct{}
	// places remembers who the holders are, because the last changes of a holder come after its worker left.
	places map[fleet.Holder]place
}

// reader is one stream of changes.
type reader struct {
	of   *Changes
	wake chan struct{} // has room for one

	// The mutex of Changes guards the fields below.
	queue  []*change
	behind int // bytes in queue
	lost   bool
}

// NewChanges returns Changes of a router over f.
func NewChanges(f *fleet.Fleet) *Changes {
	return &Changes{fleet: f, behind: maxBehind, most: maxReaders, readers: map[*reader]struct{}{}, places: map[fleet.Holder]place{}}
}

// Made is warmpath.Options.IndexChanged: it returns the function that publishes the changes of an index.
func (c *Changes) Made(made warmpath.MadeIndex) func(*kvindex.Change) {
	of := rankBlocks{blockSize: made.BlockSize}
	of.model, of.group = unpooled(made.Model)
	if c.reading.Load() > 0 {
		c.publish(&change{kind: changeReset, rankBlocks: of})
	}
	return func(k *kvindex.Change) {
		if c.reading.Load() == 0 {
			return
		}
		out := &change{kind: kindOf(k.Kind), rankBlocks: of, parent: k.Parent}
		out.place = c.placeOf(k.Holder)
		out.cacheGroup, out.depth, out.keys, out.hashes = k.Group, k.Depth, slices.Clone(k.Keys), slices.Clone(k.Hashes)
		switch k.Kind {
		case kvindex.Added, kvindex.Dropped, kvindex.Cleared:
			out.tier = k.Tier.String()
		}
		c.publish(out)
	}
}

func kindOf(k kvindex.ChangeKind) changeKind {
	switch k {
	case kvindex.Added:
		return changeAdded
	case kvindex.Dropped:
		return changeDropped
	case kvindex.Cleared:
		return changeCleared
	case kvindex.Forgotten:
		return changeForgotten
	}
	return changeRegrouped
}

// placeOf returns who a holder is, or was.
func (c *Changes) placeOf(h fleet.Holder) place {
	snap := c.fleet.Snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := snap.Worker(h); w != nil {
		if at := c.places[h]; at.worker != bare(w.URL) {
			c.places[h] = place{bare(w.URL), snap.Rank(h)}
		}
	}
	return c.places[h]
}

// publish gives a change to all readers. It never waits for a reader.
func (c *Changes) publish(one *change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	one.number = c.number
	size := changeBytes + 8*len(one.keys) + 8*len(one.hashes)
	for r := range c.readers {
		switch {
		case r.lost:
			continue
		case r.behind+size > c.behind:
			r.queue, r.behind, r.lost = nil, 0, true
		default:
			r.queue = append(r.queue, one)
			r.behind += size
		}
		select {
		case r.wake <- struct{}{}:
		default: // the reader will look anyway
		}
	}
}

// read begins a stream of changes. It returns nil if there are too many. The caller ends it with close.
func (c *Changes) read() *reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.readers) >= c.most {
		return nil
	}
	r := &reader{of: c, wake: make(chan struct{}, 1)}
	c.reading.Add(1)
	c.readers[r] = struct{}{}
	snap := c.fleet.Snapshot()
	for _, w := range snap.Workers() {
		for _, h := range w.Holders {
			c.places[h] = place{bare(w.URL), snap.Rank(h)}
		}
	}
	r.queue = append(r.queue, &change{kind: changeBegin, number: c.number})
	r.wake <- struct{}{}
	return r
}

// close ends a stream.
func (r *reader) close() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.of.readers, r)
	if r.of.reading.Add(-1) == 0 {
		clear(r.of.places)
	}
}

// streamChanges calls emit for each change that q selects, in order, until ctx ends or emit fails. flush is called when
// there is nothing more to emit for now. The error wraps errNoModel or errBusy, or is that of ctx, emit or flush.
func (s *Service) streamChanges(ctx context.Context, q *changeRequest, emit func(*change) error, flush func() error) error {
	if err := q.check(s.Fleet.Snapshot()); err != nil {
		return err
	}
	from := s.Changes.read()
	if from == nil {
		return fmt.Errorf("%w: %d streams of changes are read already", errBusy, s.Changes.most)
	}
	defer from.close()
	defer s.Telemetry.IndexStream()()
	lost, err := from.follow(ctx, q.selection, emit, flush)
	if lost {
		s.Telemetry.IndexStreamLost()
	}
	return err
}

// follow calls emit for each change of what is selected, in order, until ctx ends or emit fails. flush is called when
// there is nothing more to emit for now. If the reader was too slow, the last change is changeLost, and follow returns
// lost.
func (r *reader) follow(ctx context.Context, about selection, emit func(*change) error, flush func() error) (lost bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-r.wake:
		}
		r.of.mu.Lock()
		queue, number := r.queue, r.of.number
		lost := r.lost
		r.queue, r.behind = nil, 0
		r.of.mu.Unlock()
		for _, one := range queue {
			if one.kind != changeBegin && !about.has(one.model, one.group) {
				continue
			}
			if err := emit(one); err != nil {
				return false, err
			}
		}
		if lost {
			if err := emit(&change{kind: changeLost, number: number}); err != nil {
				return true, err
			}
		}
		if err := flush(); err != nil || lost {
			return lost, err
		}
	}
}

// appendJSON appends the change as a line of GET /changes.
func (c *change) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"number":`...)
	dst = strconv.AppendUint(dst, c.number, 10)
	dst = append(dst, `,"kind":"`...)
	dst = append(dst, changeNames[c.kind]...)
	dst = append(dst, '"')
	if c.kind == changeLost {
		return append(dst, `,"error":"the reader was too slow: begin again, with a new dump"}`+"\n"...)
	}
	if c.kind == changeBegin {
		return append(dst, "}\n"...)
	}
	dst = c.appendName(dst)
	dst = append(dst, `,"block_size":`...)
	dst = strconv.AppendInt(dst, int64(c.blockSize), 10)
	if c.tier != "" {
		dst = append(dst, `,"tier":"`...)
		dst = append(dst, c.tier...)
		dst = append(dst, `","cache_group":`...)
		dst = strconv.AppendInt(dst, int64(c.cacheGroup), 10)
	}
	if len(c.keys) > 0 {
		dst = append(dst, `,"depth":`...)
		dst = strconv.AppendInt(dst, int64(c.depth), 10)
		dst = append(dst, `,"parent":`...)
		dst = strconv.AppendUint(dst, uint64(c.parent), 10)
		dst = append(dst, `,"keys":`...)
		dst = appendList(dst, c.keys)
		dst = append(dst, `,"block_hashes":`...)
		dst = appendList(dst, c.hashes)
	}
	return append(dst, "}\n"...)
}

func (c *change) appendTo(dst []byte) []byte {
	dst = appendNumber(dst, 1, c.number)
	dst = appendNumber(dst, 2, c.kind)
	return c.appendFields(dst, 3, uint64(c.parent))
}

// changeRequest is ChangesRequest of indexer.proto.
type changeRequest struct{ selection }

func (r *changeRequest) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			r.model = f.text()
		case 2:
			r.group = f.text()
		}
		return nil
	})
}
