package kvfeed

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

// stream applies the events of one holder. It is the [Handler] of the holder's sequence: one goroutine at a time calls
// the Handler's methods, in order. The feed checks the stream from another goroutine.
type stream struct {
	router      *warmpath.Router
	fleet       *fleet.Fleet
	config      *Config
	log         *slog.Logger // names worker and rank
	noteChange  func()       // called when the stream may have caught up
	holder      fleet.Holder
	worker      fleet.WorkerID
	url         string
	rank        int
	ranks       int // number of the worker's ranks, including ranks that requests do not use
	engine      fleet.Engine
	source      fleet.EventSource
	version     string         // the engine's version
	used        *atomic.Uint32 // kvevent.Keys that requests to the holder may carry, see keysOf
	extras      *extras        // values of extra_key that requests to the holder carried
	wire        func() StreamStats
	checkpoints *checkpointCounters // shared by all streams of the feed
	supplied    bool                // somebody looks for a checkpoint while the history is not whole

	began      atomic.Int64  // when the present call of the handler began or last made progress, Unix nanoseconds; 0: none
	moved      atomic.Int64  // when any call of the handler last made progress or ended, Unix nanoseconds
	turn       *sync.Mutex   // held to change the index; shared by all streams of a worker; locked after mu
	closing    atomic.Bool   // the stream is ending
	generation atomic.Uint64 // generation of the index that the stream feeds
	renew      atomic.Bool   // the index was replaced: the holder's history must be replayed into the new one

	// Only the goroutine that calls the Handler's methods uses the following fields.
	decoder kvevent.Decoder
	batch   kvevent.Batch
	out     kvindex.Stored
	joined  kvevent.Event // several removals joined in one event; its hashes are in gone
	gone    []kvevent.Hash

	mu sync.Mutex // guards the fields below
	state
}

// state is the part of a stream from which its trust and its statistics follow. The trust says how well the holder's
// blocks in the index are believed to match the engine's cache.
type state struct {
	started   time.Time
	connected bool
	since     time.Time // when connected last changed
	connErr   error
	everUp    bool

	complete bool   // the history is whole since the cache was empty
	missing  string // if complete is false: which part of the history is missing
	broken   bool   // a replay cannot make the history whole: a message could not be read, or copies of blocks were counted wrongly
	reset    bool   // the history is whole only since a reset of the accelerator's cache
	// behind: messages are missing, or may be. Later messages are kept back, so blocks that they remove still count as
	// cached.
	behind bool

	unnumbered  bool   // messages carry no sequence numbers
	hybrid      string // kind of a cache group that makes a prefix worth less than its blocks; "": none was seen
	unnamed     bool   // groups have numbers but no kinds
	groups      uint64 // bit i: group i was seen
	tiers       uint8  // bit t: something was stored on tier t
	offloads    bool   // something was stored below the accelerator since the engine started
	namespaced  bool   // hashes depend on extra_key, see namespace
	unplaced    bool   // the engine stored prompts whose extra_key the router does not know
	rootExtra   string // if rootKnown: extra_key of the prompt that begins with the event being applied
	rootKnown   bool
	ambiguous   string // the key that requests carry and events lack, so that stored events are not applied; "": they are applied
	misplaced   string // the reason if the stream's events belong to another holder; "": the events belong to this holder
	number      int    // if hasNumber: the rank number in the stream's events; used if the worker has one rank, see misdirected
	hasNumber   bool
	leaking     string // medium of a connector's tier whose blocks have a time limit or are doubted; "": there is none
	doubted     bool   // some blocks of the tier of leaking were not stored, since they may belong to other requests
	unremoved   unremoved
	removes     string // medium of a tier in host memory that announces removals; "": none was seen
	removals    removals
	factsFrom   time.Time // from this time on, the worker's facts describe the process at the other end of the stream
	unknownThen int64     // number of removals of unknown blocks when judgeCopies last ran
	wholeThen   bool      // the history was whole when judgeCopies last ran
	ahead       int       // if hasAhead: number of tokens after a block that the block's hash covers
	hasAhead    bool      // the look-ahead is known: a block with tokens was stored
	mixed       string    // if look-aheads of events differ: the reason why only the hashes of some events are used
	resumed     bool      // the holder's blocks came with a checkpoint
	unread      string    // error of an announcement that could not be read; "": none since the last reset or loss
	indexLost   string    // why the index lost blocks of the holder; "": it lost none
	indexSeen   time.Time // when askIndex last ran; indexSaid is its result
	indexSaid   kvindex.HolderStats

	blockSize int // block size in tokens, as the engine announced it
	hash      string
	hashTried bool

	counters
	lastEvent     time.Time
	processedThen uint64 // number of requests that were dispatched to the holder before its last event, or before the stream began
	silent        string // the reason if the holder counts as silent; "": the holder is not silent

	trust  fleet.Trust
	why    string
	judged time.Time            // when trust and why last changed
	logged fleet.Trust          // the trust that was last logged
	warns  map[string]time.Time // when a kind of warning was last written
}

// counters has numbers that only grow. The messages are counted by the sequence that calls the stream.
type counters struct {
	events                        uint64
	stored, removed, cleared      uint64
	skipped, undecodable, foreign uint64
	misdirectedMessages           uint64 // messages with events or load of another rank
	unapplied                     uint64 // events that were not applied: see Stats.Unapplied
	skippedTags                   map[string]uint64
	lastError                     string
	forgotten                     uint64 // times that all blocks of the holder were forgotten
}

// warnEvery is the time between two warnings of one kind for one holder while the cause lasts.
const warnEvery = 5 * time.Minute

// warn writes a warning unless the same kind was written lately. s.mu is held.
func (s *stream) warn(kind, msg string, args ...any) {
	now := time.Now()
	if last, ok := s.warns[kind]; ok && now.Sub(last) < warnEvery {
		return
	}
	if s.warns == nil {
		s.warns = map[string]time.Time{}
	}
	s.warns[kind] = now
	s.log.Warn(msg, args...)
}

// forget drops the holder's blocks from the index, and notes which part of its history is missing. s.mu is held.
func (s *stream) forget(missing string) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.drop(missing)
}

// drop does what forget does, for a caller that holds s.turn.
func (s *stream) drop(missing string) {
	s.router.Forget(s.holder)
	s.forgotten++
	s.complete, s.missing = false, missing
	s.unread, s.indexLost, s.mixed = "", "", ""
	s.unremoved, s.unplaced, s.resumed = unremoved{}, false, false
	s.tiers, s.reset, s.hasNumber, s.hasAhead, s.wholeThen = 0, false, false, false, false
}

// forgetLearned forgets what was learned from requests to the holder. Blocks from its events stay.
func (s *stream) forgetLearned() {
	// If the lock is taken, a message is being applied. The feed must not wait for the end of the message: other streams
	// need the feed. A stream that applies messages has blocks from events, so only the learned blocks are forgotten.
	if !s.mu.TryLock() {
		s.router.ForgetLearned(s.holder)
		return
	}
	defer s.mu.Unlock()
	if s.everUp && (s.connected || s.tiers != 0) {
		s.router.ForgetLearned(s.holder)
		return
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	s.router.Forget(s.holder)
	s.hasAhead = false // the router forgot the look-ahead, too
}

// step records that the present call of the handler makes progress.
func (s *stream) step() {
	now := time.Now().UnixNano()
	s.began.Store(now)
	s.moved.Store(now)
}

// rest records that no call of the handler is running.
func (s *stream) rest() {
	s.moved.Store(time.Now().UnixNano())
	s.began.Store(0)
}

// Message applies one message. It implements Handler.
func (s *stream) Message(seq uint64, payload []byte) {
	s.step()
	defer s.rest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.everUp = true
	if foreign(payload) {
		s.foreign++
		s.load(payload)
		return
	}
	if err := s.decoder.Decode(payload, &s.batch); err != nil {
		s.undecodable++
		s.lastError = fmt.Sprintf("message %d: %v", seq, err)
		s.forget(fmt.Sprintf("message %d could not be read", seq))
		s.broken = true
		s.warn("decode", "a message of KV events could not be read: forgetting the holder, because the message may have removed blocks", "seq", seq, "error", err)
		s.assess(time.Now())
		return
	}
	b := &s.batch
	if s.misdirected(b) {
		return
	}
	changed, announced, incomplete := false, false, ""
	for more := true; more; more = s.decoder.Next(b) {
		part, ended := s.applyAll(b)
		if ended {
			return
		}
		changed = s.skip(b) || part || changed
		announced = announced || len(b.Events) > 0
		if b.Incomplete && incomplete == "" {
			incomplete = b.Problem
		}
	}
	b.Reset() // frees the memory that only a large message needs
	if cap(s.gone) > keptHashes {
		s.gone = nil
	}
	if incomplete != "" {
		s.forget(fmt.Sprintf("an event of message %d that takes blocks away could not be read", seq))
		s.broken = true
		s.warn("incomplete", "an event that takes blocks away could not be read: forgetting the holder", "seq", seq, "problem", incomplete)
		changed = true
	}
	if now := time.Now(); now.Sub(s.indexSeen) >= indexEvery {
		changed = s.askIndex(now) || changed
		changed = s.judgeCopies() || changed
	}
	if announced {
		s.lastEvent = time.Now()
		s.processedThen = s.fleet.Snapshot().Load(s.holder).Processed
		changed = changed || s.silent != ""
		s.silent = ""
	}
	if changed {
		s.assess(time.Now())
	}
}

// keptHashes bounds the buffer for joined removals that a stream keeps between messages: 512 KiB.
const keptHashes = 1 << 16

// applyAll applies the events of one batch, and reports whether trust may have changed. ended reports that the stream
// is ending: then the rest of the batch is not applied, because the holder is forgotten when the stream ends. s.mu is
// held.
func (s *stream) applyAll(b *kvevent.Batch) (changed, ended bool) {
	for i := 0; i < len(b.Events); i++ {
		s.turn.Lock()
		if s.closing.Load() {
			s.turn.Unlock()
			return changed, true
		}
		s.step() // a message may have half a million events, and each may wait for the index: such a wait is no stall
		e := &b.Events[i]
		n, hashes := b.Removals(i, s.gone[:0])
		s.gone = hashes
		if n > 1 {
			s.joined, s.joined.Hashes = *e, hashes
			e = &s.joined
			s.removed += uint64(n - 1) // apply counts the joined event once
			i += n - 1
		}
		changed = s.apply(e) || changed
		s.turn.Unlock()
	}
	s.events += uint64(len(b.Events) + b.Skipped)
	return changed, false
}

// load passes the load report of an SGLang scheduler to the fleet. s.mu is held.
func (s *stream) load(payload []byte) {
	l, err := kvevent.DecodeLoadStat(payload)
	switch {
	case errors.Is(err, kvevent.ErrNoLoadStat) || s.engine != fleet.EngineSGLang:
		return
	case err != nil:
		s.warn("load", "a report of the engine's load could not be read", "error", err)
		return
	}
	// Each scheduler has its own socket, and writes the socket's rank into the message (load_publisher.py). So a report
	// with another rank comes from a wrong endpoint. If a worker has only one rank, its report may contain any rank
	// number.
	if s.ranks > 1 && l.Rank >= 0 && l.Rank != int64(s.rank) {
		s.misdirectedMessages++
		s.warn("load rank", "a report of another rank's load is not used: check the events endpoint", "found", l.Rank)
		return
	}
	r := fleet.Reported{At: time.Now().UnixNano(), Running: l.Running, Waiting: l.Waiting, QueuedTokens: l.UncachedTokens, QueueReported: l.Long, Computed: l.PrefillTokens}
	if l.CacheTokens > 0 {
		r.KVUsed = min(float64(l.UsedTokens)/float64(l.CacheTokens), 1)
	}
	if l.PrefillMicros <= math.MaxInt64/int64(time.Microsecond) {
		r.Busy = time.Duration(l.PrefillMicros) * time.Microsecond
	}
	s.fleet.Report(s.holder, r)
}

// foreign reports whether a message is an array that begins with a name, which a batch of KV events never does. Such a
// message changes no cache. SGLang may send its load messages, which have this form, on the same socket.
func foreign(payload []byte) bool {
	const fixArray, array16, array32, fixString = 0x90, 0xdc, 0xdd, 0xa0
	if len(payload) == 0 {
		return false
	}
	head := 1
	switch {
	case payload[0] == array16:
		head = 3
	case payload[0] == array32:
		head = 5
	case payload[0]&0xf0 != fixArray:
		return false
	}
	return len(payload) > head && payload[head]&0xe0 == fixString
}

// misdirected reports whether a batch is about another data-parallel rank, and so not about this holder's cache. If a
// worker has only one rank, its batches may contain any rank number, but always the same number. s.mu is held.
func (s *stream) misdirected(b *kvevent.Batch) bool {
	if !b.HasRank {
		return false
	}
	own := s.rank
	if s.ranks < 2 {
		if !s.hasNumber {
			s.number, s.hasNumber = b.Rank, true
		}
		own = s.number
	}
	if b.Rank == own {
		return false
	}
	s.misdirectedMessages++
	if s.misplaced == "" {
		s.forget("the stream is another rank's")
		s.misplaced = fmt.Sprintf("%s carries events of data-parallel rank %d, this is rank %d", s.source.Endpoint, b.Rank, own)
		s.warn("rank", "KV events are another rank's and are not used: check the events endpoint", "found", b.Rank)
		s.assess(time.Now())
	}
	return true
}

// maxTags bounds how many names of skipped events have a counter of their own.
const maxTags = 16

// announcement is the name of the events that announce stored blocks.
const announcement = "BlockStored"

// skip counts events that could not be used, and reports whether trust may have changed. Trust changes if an
// announcement could not be read: then the engine has blocks that the index does not know. s.mu is held.
func (s *stream) skip(b *kvevent.Batch) (changed bool) {
	if b.Skipped == 0 {
		return false
	}
	s.skipped += uint64(b.Skipped)
	if s.skippedTags == nil {
		s.skippedTags = map[string]uint64{}
	}
	for _, t := range b.SkippedTags {
		tag := t.Tag
		if tag == announcement {
			s.unread, changed = b.Problem, true
		}
		if _, ok := s.skippedTags[tag]; !ok && len(s.skippedTags) >= maxTags {
			tag = "other"
		}
		s.skippedTags[tag] += uint64(t.Count)
	}
	s.warn("skipped", "KV events were skipped", "events", b.Skipped, "problem", b.Problem)
	return changed
}

// Restarted forgets the holder's blocks, since the engine's stream begins again: mostly a new process with an empty
// cache. It implements Handler.
func (s *stream) Restarted(why string) {
	s.step()
	defer s.rest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Info("the engine's event stream began again", "why", why)
	s.forget("the engine restarted, its history is being read")
	s.fleet.Returned(s.holder)
	s.broken = false
	// The engine may now be another one, with other groups, tiers and blocks.
	s.hybrid, s.unnamed, s.groups, s.misplaced, s.leaking = "", false, 0, "", ""
	s.doubted, s.removes, s.namespaced = false, "", false
	s.blockSize, s.hash, s.hashTried, s.offloads = 0, "", false, false
	s.removals, s.factsFrom = removalsOf(s.engine, s.version), time.Now().Add(factsDelay)
	s.assess(time.Now())
}

// Lost forgets the holder's blocks, since the missing messages may have removed any of them. It implements Handler.
func (s *stream) Lost(from, to uint64) {
	s.step()
	defer s.rest()
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := fmt.Sprintf("messages %d to %d are lost", from, to-1)
	failure := s.wire().ReplayError
	switch {
	case to <= from && s.connected && failure != nil:
		missing = fmt.Sprintf("the history cannot be read, the replay fails: %v", failure)
	case to <= from:
		missing = fmt.Sprintf("messages after %d are missing: the connection broke and there is no replay", from)
	case from == 0:
		missing = fmt.Sprintf("history before message %d is missing", to)
	}
	s.forget(missing)
	if from == 0 && to > 0 && s.supplied { // nothing of this stream was known, so nothing is lost
		s.log.Info("the history of KV events is not known: a checkpoint of it is looked for", "missing", missing)
		s.assess(time.Now())
		return
	}
	s.warn("lost", "KV events are lost: the holder is forgotten and learned again", "missing", missing)
	s.assess(time.Now())
}

// Complete records that the history is whole, unless it is broken. It implements Handler.
func (s *stream) Complete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.everUp, s.behind = true, false
	if !s.broken {
		s.complete, s.missing, s.reset = true, "", false
	}
	s.assess(time.Now())
}

// Behind records whether the stream waits for missing messages. It implements Handler.
func (s *stream) Behind(behind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = behind
	s.assess(time.Now())
}

// Unnumbered records that messages carry no sequence numbers. It implements Handler.
func (s *stream) Unnumbered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unnumbered = true
	s.assess(time.Now())
}

// State records that the connection was made or lost. It implements Handler.
func (s *stream) State(connected bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if connected != s.connected {
		if connected && (s.connErr != nil || !s.since.IsZero()) { // another process may answer than at the last probe
			s.factsFrom = time.Now().Add(factsDelay)
		}
		s.connected, s.since = connected, time.Now()
		s.unnumbered = false // if the next connection has no numbers either, Unnumbered is called again
	}
	s.connErr = err
	if connected && !s.everUp {
		// From now on events say what is cached, so the blocks learned from requests are not needed.
		s.router.Forget(s.holder)
		s.everUp = true
	}
	s.assess(time.Now())
}
