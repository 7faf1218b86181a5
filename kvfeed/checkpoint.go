package kvfeed

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

// Checkpoint is what a feed knows of one holder's cache, up to one message of the holder's stream. Another feed, or a
// later process, continues from a checkpoint if the engine confirms it: see [Feed.Offer]. A Checkpoint is not safe for
// concurrent use.
type Checkpoint struct {
	Worker string       `json:"worker"` // the worker's URL
	Rank   int          `json:"rank"`   // the worker's global data-parallel rank
	Ranks  int          `json:"ranks"`  // the number of the worker's ranks
	Engine fleet.Engine `json:"engine"`
	// Version is the engine's version. After an upgrade the removals of an engine may mean something else.
	Version string             `json:"version"`
	Keys    warmpath.BlockKeys `json:"keys"`
	// Next is the number of the first message that the checkpoint does not include.
	Next  uint64 `json:"next"`
	State State  `json:"state"`

	// Digests are the digests of the last messages before Next, oldest first: one at least, MaxDigests at most. They
	// show whether the engine is still the same process.
	Digests []uint64 `json:"-"`
	// Runs are the holder's blocks, parents before children: see [kvindex.Index.Load].
	Runs []kvindex.Held `json:"-"`
}

// MaxDigests is the greatest number of digests in a [Checkpoint].
const MaxDigests = seenSize

// State is the part of a [Checkpoint] that says how far the holder's blocks can be believed, and what its feed learned
// about the engine from its events. The fields have the meanings that they have in the feed.
type State struct {
	Complete   bool   `json:"complete"`
	Missing    string `json:"missing,omitempty"`
	Broken     bool   `json:"broken,omitempty"`
	Reset      bool   `json:"reset,omitempty"`
	Hybrid     string `json:"hybrid,omitempty"`
	Unnamed    bool   `json:"unnamed,omitempty"`
	Groups     uint64 `json:"groups,omitempty"`
	Tiers      uint8  `json:"tiers,omitempty"`
	Offloads   bool   `json:"offloads,omitempty"`
	Namespaced bool   `json:"namespaced,omitempty"`
	Unplaced   bool   `json:"unplaced,omitempty"`
	HasNumber  bool   `json:"has_number,omitempty"`
	Number     int    `json:"number,omitempty"`
	Removes    string `json:"removes,omitempty"`
	Removals   uint8  `json:"removals,omitempty"`
	HasAhead   bool   `json:"has_ahead,omitempty"`
	Ahead      int    `json:"ahead,omitempty"`
	Mixed      string `json:"mixed,omitempty"`
	Unread     string `json:"unread,omitempty"`
	BlockSize  int    `json:"block_size,omitempty"`
	Hash       string `json:"hash,omitempty"`
	HashTried  bool   `json:"hash_tried,omitempty"`
	Used       uint32 `json:"used,omitempty"` // the kvevent.Keys that requests may carry
}

// Validate reports whether a feed may have made the checkpoint. It does not look at Runs: [kvindex.Index.Load] does.
func (c *Checkpoint) Validate() error {
	switch {
	case c.Worker == "":
		return errors.New("a checkpoint without a worker")
	case c.Rank < 0 || c.Rank > fleet.MaxRank || c.Ranks < 1 || c.Ranks > fleet.MaxRanks: // the first rank may be above Ranks
		return fmt.Errorf("a checkpoint of rank %d, of %d ranks", c.Rank, c.Ranks)
	case len(c.Digests) == 0 || len(c.Digests) > MaxDigests || uint64(len(c.Digests)) > c.Next || c.Next > math.MaxInt64:
		return fmt.Errorf("a checkpoint with %d digests before message %d", len(c.Digests), c.Next)
	case c.State.Removals > uint8(lastCopy) || c.State.Ahead < 0 || c.State.Ahead > block.MaxAhead || c.State.BlockSize < 0 || c.State.BlockSize > block.MaxSize:
		return errors.New("a checkpoint with an impossible state")
	}
	return nil
}

// Blocks returns the number of blocks in Runs. A block on several tiers or in several groups counts several times.
func (c *Checkpoint) Blocks() (n int) {
	for i := range c.Runs {
		if c.Runs[i].Tier < block.NumTiers {
			n += len(c.Runs[i].Hashes)
		}
	}
	return n
}

// checkpoint makes a checkpoint of the stream. The sequence hands over no message meanwhile.
func (s *stream) checkpoint(next uint64, digests []uint64) (*Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.portable(); err != nil {
		return nil, err
	}
	keys, ok := s.router.BlockKeys(s.holder)
	if !ok {
		return nil, errors.New("its worker serves no known model")
	}
	c := &Checkpoint{
		Worker: s.url, Rank: s.rank, Ranks: s.ranks, Engine: s.engine, Version: s.version, Keys: keys, Next: next, Digests: digests,
		State: State{
			Complete: s.complete, Missing: s.missing, Broken: s.broken, Reset: s.reset, Hybrid: s.hybrid, Unnamed: s.unnamed,
			Groups: s.groups, Tiers: s.tiers, Offloads: s.offloads, Namespaced: s.namespaced, Unplaced: s.unplaced,
			HasNumber: s.hasNumber, Number: s.number, Removes: s.removes, Removals: uint8(s.removals), HasAhead: s.hasAhead,
			Ahead: s.ahead, Mixed: s.mixed, Unread: s.unread, BlockSize: s.blockSize, Hash: s.hash, HashTried: s.hashTried,
			Used: s.used.Load(),
		},
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if _, known := s.router.HolderStats(s.holder); !known {
		return c, nil // no block was announced since the holder was last forgotten
	}
	generation, err := s.router.Dump(s.holder, func(run *kvindex.Held) error {
		c.Runs = append(c.Runs, *run)
		return nil
	})
	if generation != s.generation.Load() && err == nil {
		err = errors.New("its index was replaced")
	}
	return c, err
}

// portable returns why another feed cannot continue from what this stream knows; nil: it can. s.mu is held.
func (s *stream) portable() error {
	index, known := s.router.HolderStats(s.holder)
	switch {
	case s.closing.Load() || s.renew.Load() || s.generation.Load() != s.router.Generation(s.holder):
		return errors.New("its stream begins again")
	case s.behind || !s.complete && s.missing == "":
		return errors.New("its history is being read")
	case !s.complete:
		return fmt.Errorf("its history is not whole: %s", s.missing)
	case s.misplaced != "":
		return errors.New(s.misplaced)
	case s.ambiguous != "":
		return fmt.Errorf("requests carry %s, which its events do not contain", s.ambiguous)
	case s.leaking != "":
		return fmt.Errorf("its tier %q announces no removals", s.leaking)
	case known && !index.Whole:
		return errors.New("its index dropped some blocks")
	case index.Waiting > 0:
		return errors.New("some of its blocks wait for their parents")
	}
	return nil
}

// fits reports whether the checkpoint is about the engine that the stream follows, as far as the worker's facts say,
// and whether its blocks mean the same here.
func (s *stream) fits(c *Checkpoint) error {
	if err := c.Validate(); err != nil {
		return err
	}
	keys, ok := s.router.BlockKeys(s.holder)
	switch {
	case !ok:
		return errors.New("the worker serves no known model")
	case c.Engine != s.engine || c.Version != s.version || c.Ranks != s.ranks:
		return fmt.Errorf("it is of %v %s with %d ranks, and the worker is %v %s with %d", c.Engine, c.Version, c.Ranks, s.engine, s.version, s.ranks)
	case c.Keys.Model != keys.Model:
		return fmt.Errorf("it is of the model %.100q, and the worker serves %.100q", c.Keys.Model, keys.Model)
	case c.Keys.BlockSize != keys.BlockSize:
		return fmt.Errorf("its blocks have %d tokens, and the blocks here have %d: set routing.block_size or routing.block_sizes alike", c.Keys.BlockSize, keys.BlockSize)
	case c.Keys.Algorithm != keys.Algorithm:
		return fmt.Errorf("its keys are made by %.20q, and the keys here by %s: set routing.block_keys alike", c.Keys.Algorithm, keys.Algorithm)
	case c.Keys != keys:
		return errors.New("its keys are made in another way: the other router has another version")
	}
	return nil
}

// resumption returns the checkpoint as the stream's sequence needs it.
func (s *stream) resumption(c *Checkpoint) *resumption {
	return &resumption{
		next: c.Next, digests: c.Digests, whole: c.State.Complete,
		load:    func() error { return s.resume(c) },
		refused: func(why string) { s.unconfirmed(why) },
	}
}

// resume makes the checkpoint all that is known of the holder. If it returns an error, nothing is known of the holder.
func (s *stream) resume(c *Checkpoint) error {
	s.step()
	defer s.rest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn.Lock()
	defer s.turn.Unlock()
	s.drop("a checkpoint is being read")
	if err := s.fill(c); err != nil {
		s.drop(fmt.Sprintf("a checkpoint could not be read: %v", err))
		s.checkpoints.refused.Add(1)
		s.assess(time.Now())
		return err
	}
	t := &c.State
	s.broken, s.reset, s.hybrid, s.unnamed, s.groups, s.tiers = t.Broken, t.Reset, t.Hybrid, t.Unnamed, t.Groups, t.Tiers
	s.offloads, s.namespaced, s.unplaced, s.hasNumber, s.number = t.Offloads, t.Namespaced, t.Unplaced, t.HasNumber, t.Number
	s.removes, s.removals, s.hasAhead, s.ahead, s.mixed = t.Removes, removals(t.Removals), t.HasAhead, t.Ahead, t.Mixed
	s.unread, s.hash, s.hashTried = t.Unread, t.Hash, t.HashTried
	s.missing, s.resumed = t.Missing, true // sequence.announce calls Complete
	s.used.Or(t.Used & uint32(kvevent.KeyRoot))
	s.blockSize = max(s.blockSize, t.BlockSize)
	s.indexSaid, s.unknownThen, s.wholeThen = kvindex.HolderStats{}, 0, false
	s.checkpoints.confirmed.Add(1)
	s.log.Info("continuing from a checkpoint that the engine confirmed", "blocks", c.Blocks(), "next", c.Next)
	s.assess(time.Now())
	return nil
}

// fill fills the index with the blocks of a checkpoint. s.mu and s.turn are held, and the holder is forgotten.
func (s *stream) fill(c *Checkpoint) error {
	if s.closing.Load() {
		return errors.New("the stream ends")
	}
	if !s.router.SetAhead(s.holder, c.State.Ahead) {
		return fmt.Errorf("its blocks are hashed with a look-ahead of %d tokens, and other engines of the model with too many others", c.State.Ahead)
	}
	for i := range c.Runs {
		s.step()
		generation, err := s.router.Load(s.holder, &c.Runs[i])
		if err != nil {
			return err
		}
		if generation != s.generation.Load() {
			s.renew.Store(true)
			return errors.New("the index was replaced meanwhile")
		}
	}
	return nil
}

// unconfirmed records that the engine does not confirm the checkpoint: the stream is read from its beginning.
func (s *stream) unconfirmed(why string) {
	s.step()
	defer s.rest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget("the history is being read: the engine did not confirm a checkpoint")
	s.broken = false
	s.checkpoints.refused.Add(1)
	s.log.Warn("a checkpoint is not used: the engine does not confirm it", "why", why)
	s.assess(time.Now())
}
