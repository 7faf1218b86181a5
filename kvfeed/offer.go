package kvfeed

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Place names one rank of the worker at a URL. It means the same at all routers; ids of holders do not.
type Place struct {
	Worker string // the worker's URL
	Rank   int    // the worker's global data-parallel rank
}

// CheckpointStats counts what became of checkpoints.
type CheckpointStats struct {
	Confirmed uint64 // the engine confirmed them, and the feed continued from them
	Refused   uint64 // the engine did not confirm them, or their blocks could not be loaded
	Unfit     uint64 // they were about another engine, model or block size, or too old to be confirmed
}

type checkpointCounters struct{ confirmed, refused, unfit atomic.Uint64 }

// warming has what the feed needs for checkpoints.
type warming struct {
	holding  atomic.Bool   // streams with a replay endpoint wait for a checkpoint: see Hold
	asking   atomic.Bool   // somebody calls Lacking: streams without a replay keep messages
	streams  atomic.Int64  // the length of Feed.streams
	released chan struct{} // capacity 1: reconcile again
	lacking  chan struct{} // capacity 1: see Lacking
	counters checkpointCounters
}

// CheckpointStats returns the counters of checkpoints.
func (feed *Feed) CheckpointStats() CheckpointStats {
	c := &feed.warm.counters
	return CheckpointStats{Confirmed: c.confirmed.Load(), Refused: c.refused.Load(), Unfit: c.unfit.Load()}
}

// Places returns the followed holders, sorted.
func (feed *Feed) Places() (all []Place) {
	for _, f := range feed.list() {
		all = append(all, Place{f.url, f.rank})
	}
	slices.SortFunc(all, func(a, b Place) int {
		if c := strings.Compare(a.Worker, b.Worker); c != 0 {
			return c
		}
		return a.Rank - b.Rank
	})
	return all
}

// Replayable returns the places whose engines have a replay endpoint, sorted. Only these engines confirm a checkpoint
// of an earlier connection: one that was saved, or that comes before the first message of a new connection.
func (feed *Feed) Replayable() []Place {
	replays := map[Place]bool{}
	for _, f := range feed.list() {
		replays[Place{f.url, f.rank}] = f.source.Replay != ""
	}
	return slices.DeleteFunc(feed.Places(), func(p Place) bool { return !replays[p] })
}

// checkpointTries is how often a checkpoint is begun again because the index evicted blocks of the holder meanwhile. An
// index that evicts all the time makes no checkpoints.
const checkpointTries = 3

// ErrNotFollowed means that no worker at this URL has this rank, or that its events are not followed.
var ErrNotFollowed = errors.New("its events are not followed here")

// Checkpoint returns a checkpoint of a followed holder. The holder's events wait meanwhile, some tens of milliseconds
// for 10^5 blocks; other holders' events and all readers of the index go on. The checkpoint takes some 20 bytes for
// each block. If the holder's history is not whole, or its blocks cannot be dumped, the error says why.
func (feed *Feed) Checkpoint(at Place) (c *Checkpoint, err error) {
	f := feed.at(at)
	if f == nil {
		return nil, ErrNotFollowed
	}
	for range checkpointTries {
		err = f.sequence.cut(func(next uint64, digests []uint64) (err error) {
			c, err = f.checkpoint(next, digests)
			return err
		})
		if !errors.Is(err, kvindex.ErrChanged) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// at returns the follower of a place, or nil. It takes the same time for any number of streams: a snapshot of 10,000
// holders calls it for each.
func (feed *Feed) at(at Place) *follower {
	id, known := feed.fleet.Find(at.Worker)
	w := feed.fleet.Snapshot().ByID(id)
	if !known || w == nil {
		return nil
	}
	h, ok := w.Rank(at.Rank)
	if !ok {
		return nil
	}
	feed.mu.Lock()
	defer feed.mu.Unlock()
	if f := feed.streams[h]; f != nil && f.url == at.Worker { // Find takes http://w/ for http://w
		return f
	}
	return nil
}

// Hold lets the streams of engines with a replay endpoint wait until [Feed.Release], except streams whose checkpoint
// was offered. Otherwise such a stream would read the engine's whole history while its checkpoint is under way. Call
// Hold before Run, and Release soon: no event of these engines is applied meanwhile.
func (feed *Feed) Hold() { feed.warm.holding.Store(true) }

// Release ends what Hold began.
func (feed *Feed) Release() {
	feed.warm.holding.Store(false)
	feed.reconcileAgain()
}

func (feed *Feed) reconcileAgain() {
	select {
	case feed.warm.released <- struct{}{}:
	default:
	}
}

// waits reports whether the stream of a holder must not begin yet.
func (feed *Feed) waits(at place, source fleet.EventSource) bool {
	if source.Replay == "" || !feed.warm.holding.Load() {
		return false
	}
	feed.mu.Lock()
	defer feed.mu.Unlock()
	return feed.offered[at] == nil
}

// maxOffered bounds the checkpoints that wait for their workers to join the fleet.
const maxOffered = 4096

// Offer gives the feed a checkpoint of another router, or of a file. The feed continues from it once the engine
// confirms it, and forgets it otherwise: trust is exact only after that. If the history of the holder is whole without
// it, or if the holder's worker has not joined yet, Offer returns nil, too. After ErrTooOld, a newer checkpoint may do.
//
// A checkpoint of a worker that has not joined is kept until Drop.
func (feed *Feed) Offer(c *Checkpoint) error {
	if err := c.Validate(); err != nil {
		feed.warm.counters.unfit.Add(1)
		return err
	}
	if f := feed.at(Place{c.Worker, c.Rank}); f != nil {
		return feed.give(f, c)
	}
	if err := feed.misfit(c); err != nil {
		feed.warm.counters.unfit.Add(1)
		return err
	}
	feed.mu.Lock()
	full := len(feed.offered) >= maxOffered
	if !full {
		feed.offered[place{c.Worker, c.Rank}] = c
	}
	feed.mu.Unlock()
	if full {
		feed.warm.counters.unfit.Add(1)
		return fmt.Errorf("checkpoints of %d holders wait for their workers already", maxOffered)
	}
	if f := feed.at(Place{c.Worker, c.Rank}); f != nil { // its stream began meanwhile, and may have looked already
		return feed.giveOffered(f)
	}
	feed.reconcileAgain()
	return nil
}

// misfit returns why a checkpoint can not be of a worker that has joined, although its stream has not begun.
func (feed *Feed) misfit(c *Checkpoint) error {
	id, known := feed.fleet.Find(c.Worker)
	w := feed.fleet.Snapshot().ByID(id)
	if !known || w == nil {
		return nil
	}
	h, ok := w.Rank(c.Rank)
	if !ok {
		return nil
	}
	if _, ok := feed.router.BlockKeys(h); !ok {
		return nil // probes have not found what it serves
	}
	s := stream{router: feed.router, holder: h, engine: w.Facts.Engine, version: w.Facts.Version, ranks: w.Facts.Ranks}
	return s.fits(c)
}

// Drop forgets the checkpoints of workers that have not joined.
func (feed *Feed) Drop() {
	feed.mu.Lock()
	defer feed.mu.Unlock()
	clear(feed.offered)
}

// ErrTooOld means that a checkpoint includes no message of the present connection, so that nothing confirms it.
var ErrTooOld = errEarly

// give gives a checkpoint to a stream.
func (feed *Feed) give(f *follower, c *Checkpoint) error {
	err := f.fits(c)
	if err == nil {
		err = f.sequence.resumeFrom(f.resumption(c))
	}
	if err == nil || errors.Is(err, errWhole) {
		return nil
	}
	if !errors.Is(err, errEarly) {
		feed.warm.counters.unfit.Add(1)
	}
	return err
}

// useOffered gives a new stream the checkpoint that was offered for it.
func (feed *Feed) useOffered(f *follower) {
	if err := feed.giveOffered(f); err != nil && !errors.Is(err, errEarly) {
		f.log.Warn("a checkpoint is not used", "why", err)
	}
}

// giveOffered gives a stream the checkpoint that was offered for it, if nobody has done so.
func (feed *Feed) giveOffered(f *follower) error {
	at := place{f.url, f.rank}
	feed.mu.Lock()
	c := feed.offered[at]
	delete(feed.offered, at)
	feed.mu.Unlock()
	if c == nil {
		return nil
	}
	return feed.give(f, c)
}

// asked says how often a checkpoint of a holder was asked for.
type asked struct {
	times int
	next  time.Time // when the next question is due; zero: now
}

// The pauses between two questions for a checkpoint of one holder. The first questions follow fast: a router that is
// some messages behind catches up in milliseconds. Later ones are a minute apart: the other routers do not know the
// holder's history either.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Minute
)

// pause returns the time between the last question and the next one.
func (a *asked) pause() time.Duration { return min(firstPause<<min(max(a.times-1, 0), 16), lastPause) }

// Lacking returns up to limit holders whose history is not whole, and of which a checkpoint would help now: those that
// have waited longest. Each call counts as a question for the holders that it returns, and for no other ones; the
// pauses between the questions for one holder grow. next is the time of the next question for some holder; it is zero
// if there will be none. [Feed.Lacks] tells when a call before next is worth it.
//
// Questions come together: if one is due, the questions that have waited for three quarters of their pauses are due,
// too. Otherwise 10,000 holders that no other router knows would be asked about one by one.
func (feed *Feed) Lacking(now time.Time, limit int) (due []Place, next time.Time) {
	all := feed.list()
	lacking := make([]bool, len(all))
	for i, f := range all {
		lacking[i] = f.lacking() // takes the lock of the stream, so feed.mu is not held
	}
	feed.mu.Lock()
	defer feed.mu.Unlock()
	var waiting []*follower
	for i, f := range all {
		if lacking[i] {
			waiting = append(waiting, f)
		} else {
			f.asked = asked{}
		}
	}
	if len(waiting) == 0 {
		return nil, time.Time{}
	}
	sooner := func(a, b *follower) int { return a.asked.next.Compare(b.asked.next) }
	if next = slices.MinFunc(waiting, sooner).asked.next; next.After(now) {
		return nil, next
	}
	slices.SortFunc(waiting, sooner)
	left := false
	for _, f := range waiting {
		switch {
		case len(due) < limit && !now.Before(f.asked.next.Add(-f.asked.pause()/4)):
			f.asked.times++
			f.asked.next = now.Add(f.asked.pause())
			due = append(due, Place{f.url, f.rank})
		case !f.asked.next.After(now):
			left = true
		}
	}
	if left {
		return due, now
	}
	return due, slices.MinFunc(waiting, sooner).asked.next
}

// Lacks returns a channel that gets a value when a stream begins to lack a checkpoint. Before Run, call
// [Feed.KeepMessages].
func (feed *Feed) Lacks() <-chan struct{} { return feed.warm.lacking }

// KeepMessages lets streams without a replay endpoint keep their last messages while their history is not whole, so
// that they can continue from a checkpoint. Call it before Run, if checkpoints will be offered.
func (feed *Feed) KeepMessages() { feed.warm.asking.Store(true) }

// supply lets a stream keep messages for a checkpoint, if somebody offers checkpoints.
func (feed *Feed) supply(f *follower) {
	if !feed.warm.asking.Load() {
		return
	}
	f.supplied = true
	f.sequence.room = func() int { return keptRoom(int(feed.warm.streams.Load())) }
	f.sequence.lacking = func() {
		select {
		case feed.warm.lacking <- struct{}{}:
		default:
		}
	}
}

// lacking reports whether the history of the holder is not whole, and a checkpoint may be confirmed now.
func (f *follower) lacking() bool {
	q := f.sequence
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.whole || !q.connected || q.unnumbered || q.resume != nil {
		return false
	}
	if q.replay == "" {
		return q.kept.len() > 0
	}
	return q.canReplay() && !q.behind
}
