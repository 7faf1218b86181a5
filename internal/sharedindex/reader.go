package sharedindex

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvindex"
)

// ReaderParts are what a Reader needs besides its configuration. All are required, except Network.
type ReaderParts struct {
	Fleet   *fleet.Fleet // whose holders are answered about, and whose trust the reader sets
	Log     *slog.Logger
	Network network.Network // nil means the machine's
	// Keying and SetBlockSize are the methods of the router in this process: see [warmpath.Router.Keying].
	Keying       func(model string) (algorithm block.Algorithm, blockSize int, ok bool)
	SetBlockSize func(model string, tokens int)
	// LearnedTTL is PlacementsParts.TTL; 0: no learned placements are read.
	LearnedTTL time.Duration
}

// Reader looks prompts up in a shared index, and sets the trust of the fleet's holders from what the writers say. While
// the server does not answer, or answers too late, no holder is trusted. All methods are safe for concurrent use.
type Reader struct {
	config  Config
	parts   ReaderParts
	names   names
	counts  counters
	cache   *cache
	table   atomic.Pointer[table]
	client  atomic.Pointer[valkey.Client]
	poke    chan struct{} // has an element if the server should be asked at once
	pool    sync.Pool     // of *lookup
	rests   rests
	problem problem

	// The fields below belong to Run's goroutine.
	heard descriptions
	alone bool // the log says that nobody writes
	// written is when the index was found to have a writer, or to need none. A server that was restarted has no writer
	// until they have noticed, so the log says that nobody writes only a lease later.
	written time.Time
	// differing are the blocks that can not be found, with an entry of a holder of some.
	differing map[unfound]*holderEntry

	mu      sync.Mutex               // guards the field below and those of rests; it is not held while the log is written
	trusted map[fleet.Holder]opinion // what the reader told the fleet last; during a rest, what it will tell after it
}

// opinion is a level of trust with its reason.
type opinion struct {
	level fleet.Trust
	why   string
	// learned says that the writer knows nothing of the holder's cache either: each router learns it from requests, also
	// without a server and without a writer.
	learned bool
}

// NewReader returns a Reader. It connects to nothing before Run, and until then it does not answer.
func NewReader(cfg Config, parts ReaderParts) *Reader {
	r := &Reader{config: cfg, parts: parts, names: newNames(cfg), cache: newCache(cfg.ClientCache), poke: make(chan struct{}, 1), trusted: map[fleet.Holder]opinion{},
		problem: newProblem(parts.Log, cfg)}
	r.pool.New = func() any { return new(lookup) }
	return r
}

// Stats returns the reader's figures.
func (r *Reader) Stats() Stats {
	c := &r.counts
	return Stats{
		Connected: c.connected.Load(), Lookups: c.lookups.Load(), Failed: c.failed.Load(), RoundTrips: c.roundTrips.Load(),
		CacheHits: c.hits.Load(), CacheMiss: c.misses.Load(), Invalid: c.invalid.Load(), Writers: c.writers.Load(), Holders: c.holders.Load(), PlacementHolders: c.placementHolders.Load(),
	}
}

// Run connects to the server, and follows what writers say of holders, until ctx ends. Without a server it tries again.
// It returns nil.
func (r *Reader) Run(ctx context.Context) error {
	defer r.lost(nil)
	keepTrying(ctx, r.session, func(_ context.Context, err error) { r.lost(err) })
	return nil
}

// session connects and follows until ctx ends or the connection is lost for long.
func (r *Reader) session(ctx context.Context) error {
	client, err := r.connect()
	if err != nil {
		return err
	}
	r.client.Store(&client)
	defer func() {
		r.client.Store(nil)
		client.Close()
	}()
	r.open(ctx, client)
	tick := time.NewTicker(max(r.config.Lease/beatsPerLease, 50*time.Millisecond))
	defer tick.Stop()
	for {
		if err := r.follow(ctx, client); err != nil {
			r.lost(err) // before the client is closed, which may wait for the server
			return err
		}
		select {
		case <-tick.C:
		case <-r.poke:
		case <-r.restEnds():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// connect connects to the server. With a cache, the server tells of changes of the records that the client has read.
func (r *Reader) connect() (valkey.Client, error) {
	o, err := r.config.options(r.parts.Network)
	if err != nil {
		return nil, err
	}
	if r.config.ClientCache > 0 {
		o.DisableCache = false
		o.CacheSizeEachConn = 1 << 10 // the client's own cache is not used
		o.ClientTrackingOptions = []string{"NOLOOP"}
		o.OnInvalidations = r.invalidate
	}
	return valkey.NewClient(o)
}

// open opens the connections to each server. The client opens a connection when it chooses it for the first time, and
// it chooses by chance: without open, a request would wait for that. Errors are found by follow.
func (r *Reader) open(ctx context.Context, client valkey.Client) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	const tries = 16 // for each connection: one of ten million stays closed
	var opening sync.WaitGroup
	for _, node := range client.Nodes() {
		for range r.config.Connections {
			opening.Go(func() {
				for i := 0; i < tries && ctx.Err() == nil; i++ {
					_ = node.Do(ctx, node.B().Exists().Key(r.names.slots()).Build())
				}
			})
		}
	}
	opening.Wait()
}

// invalidate drops records that changed from the cache.
func (r *Reader) invalidate(messages []valkey.ValkeyMessage) {
	if messages == nil {
		r.cache.clear()
		return
	}
	list := make([]string, 0, len(messages))
	for i := range messages {
		if name, err := messages[i].ToString(); err == nil {
			list = append(list, name)
		}
	}
	r.cache.drop(list)
}

// lost makes the reader answer nothing, and takes the trust of all holders away. err is nil if the reader ends.
func (r *Reader) lost(err error) {
	if r.table.Swap(nil) != nil || r.counts.connected.Load() {
		r.counts.connected.Store(false)
		r.cache.clear()
	}
	r.counts.writers.Store(0)
	r.counts.holders.Store(0)
	r.distrust(err)
	r.problem.tell("the shared index is not read, so load alone decides; trying again", err)
}

// distrust takes the trust of all holders away. err is why, or nil if the reader ends.
func (r *Reader) distrust(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why := r.problem.reasonOf(err)
	for h, o := range r.trusted {
		if o.level != fleet.TrustNone && !o.learned {
			r.trust(h, opinion{level: fleet.TrustNone, why: why})
		}
	}
	if err != nil {
		snap := r.parts.Fleet.Snapshot()
		for _, w := range snap.Workers() {
			for _, h := range w.Holders {
				r.unknown(w, h, why)
			}
		}
	}
}

// trust tells the fleet how far a holder's entries can be believed. Callers hold r.mu.
func (r *Reader) trust(h fleet.Holder, o opinion) {
	r.trusted[h] = o
	o = r.rests.masked(o)
	if level, why := r.parts.Fleet.Snapshot().Trust(h); level != o.level || why != o.why {
		r.parts.Fleet.SetTrust(h, o.level, o.why)
	}
}

// unknown says why the router knows nothing of a holder whose engine publishes events. It learns from its own requests.
// Of other holders the fleet says the reason itself. Callers hold r.mu.
func (r *Reader) unknown(w *fleet.Worker, h fleet.Holder, why string) {
	if o, was := r.trusted[h]; was && !o.learned || len(w.Facts.Events) == 0 {
		return
	}
	r.trust(h, opinion{fleet.TrustApproximate, fleet.LearnedFromRequests + ", because " + why, true})
}

// nobodyWrites is what to do if a shared index has no writer.
const nobodyWrites = "nobody writes the shared index: start warmpath index, or a router with index.valkey.write, with the same url, prefix and database"

// greet logs that the index is read, and whether somebody writes it. writers are the writers with a sign of life, and
// all those that count.
func (r *Reader) greet(writers, all int, snap *fleet.Snapshot) {
	if r.counts.connected.CompareAndSwap(false, true) {
		r.problem.over()
		r.alone, r.written = false, time.Now()
		r.parts.Log.Info("reading the shared index", "server", r.config.Address(), "writers", all, "holders", r.counts.holders.Load())
	}
	needed := slices.ContainsFunc(snap.Workers(), func(w *fleet.Worker) bool { return len(w.Facts.Events) > 0 })
	if writers > 0 || !needed {
		r.written = time.Now()
	}
	alone := time.Since(r.written) > r.config.Lease
	switch {
	case alone && !r.alone:
		r.parts.Log.Warn(nobodyWrites, "server", r.config.Address(), "prefix", r.config.Prefix, "database", r.config.Database)
	case !alone && r.alone:
		r.parts.Log.Info("somebody writes the shared index now", "server", r.config.Address(), "writers", writers)
	}
	r.alone = alone
}

// seat is a holder of the fleet that a writer describes.
type seat struct {
	holder    fleet.Holder
	blockSize int
	algorithm string
	measure   *kvindex.Measure
}

// table is what the writers said last.
type table struct {
	names  names // of the records
	seats  []seat
	bySlot map[uint32]int // the place in seats; -1: the slot has two holders, and nothing counts
	sparse bool           // some holder's blocks may count without the first block of a prompt

	learned *table // of learned placements; nil: there are none
}

// maxWriters bounds the writers of one index.
const maxWriters = 1024

// listedFor is how long a writer without a sign of life is in the list of writers. Clocks of machines may differ by
// minutes. The leases decide which writers count; the times only bound the list.
const listedFor = time.Hour

// readDescriptions returns the descriptions of the writers that gave a sign of life since a time, by the writers' ids.
func readDescriptions(ctx context.Context, client valkey.Client, n names, since time.Time) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	ids, err := client.Do(ctx, client.B().Zrevrangebyscore().Key(n.writers()).Max("+inf").Min(strconv.FormatInt(since.UnixMilli(), 10)).Limit(0, maxWriters).Build()).AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("read the list of writers: %w", err)
	}
	var cmds valkey.Commands
	for _, id := range ids {
		cmds = append(cmds, client.B().Get().Key(n.writer(id)).Build())
	}
	texts := map[string]string{}
	for i, res := range client.DoMulti(ctx, cmds...) {
		text, err := res.ToString()
		switch {
		case valkey.IsValkeyNil(err): // its lease ended
		case err != nil:
			return nil, fmt.Errorf("read what a writer says: %w", err)
		default:
			texts[ids[i]] = text
		}
	}
	return texts, nil
}

// followTimeout bounds a look at what writers say. A server that takes longer does not answer.
const followTimeout = time.Second

// follow reads what the writers say, and sets the table and the trust of holders.
func (r *Reader) follow(ctx context.Context, client valkey.Client) error {
	texts, err := readDescriptions(ctx, client, r.names, time.Now().Add(-listedFor))
	if err != nil {
		return err
	}
	// The series is read after the descriptions: those of an older series, which will be replaced soon, do not count.
	series, err := client.Do(ctx, client.B().Hget().Key(r.names.slots()).Field("series").Build()).ToString()
	if err != nil && !valkey.IsValkeyNil(err) {
		return fmt.Errorf("read the series: %w", err)
	}
	var all []*description
	var invalid error // only the first is logged: two that take turns would be logged at each look
	for _, writer := range r.heard.all(texts) {
		if writer.err != nil {
			r.counts.invalid.Add(1)
			invalid = cmp.Or(invalid, writer.err)
			continue
		}
		if string(writer.d.Series) == series {
			all = append(all, writer.d)
		}
	}
	r.problem.tell("a writer of the shared index is left out", invalid)
	learned, err := r.readPlaced(ctx, client)
	if err != nil {
		return err
	}
	r.use(series, all, len(texts), learned)
	return nil
}

// use makes a new table. If several writers describe a holder, it uses one with the router's keys, of these the one
// that knows it best, and of equal ones the one with the lower slot, so that the choice does not change without need.
// writers is how many writers gave a sign of life; those of an older series or of another version are not in all.
func (r *Reader) use(series string, all []*description, writers int, learned *placedSlots) {
	best, entries := map[fleet.Holder]*holderEntry{}, 0
	keys := r.keyings()
	snap := r.parts.Fleet.Snapshot()
	places := map[string]*fleet.Worker{}
	for _, w := range snap.Workers() {
		places[w.URL] = w
	}
	for _, d := range all {
		for i := range d.Holders {
			e := &d.Holders[i]
			if entries++; entries > maxHolders {
				break
			}
			w := places[e.URL]
			if w == nil {
				continue
			}
			h, ok := w.Rank(e.Rank)
			if !ok {
				continue
			}
			if old := best[h]; old == nil || keys.fit(w, e) && !keys.fit(w, old) || keys.fit(w, e) == keys.fit(w, old) && betterThan(e, old) {
				best[h] = e
			}
		}
	}
	r.takeSizes(snap, best, keys)
	r.endRest()
	missing := "no writer of the shared index knows this worker"
	if writers == 0 {
		missing = nobodyWrites
	}
	t, differing := r.believe(snap, best, keys, missing)
	t.names = r.names.records(series, 'b')
	t.learned = r.learnedTable(snap, places, learned, keys, differing)
	r.table.Store(t)
	r.counts.writers.Store(int64(len(all)))
	r.counts.holders.Store(int64(len(t.seats)))
	r.greet(writers, len(all), snap)
	r.tellDiffering(differing, keys)
}

// believe sets the trust of all holders. It returns a table of those whose blocks can be found, and what can not be
// found. missing is why a holder without an entry is not trusted.
func (r *Reader) believe(snap *fleet.Snapshot, best map[fleet.Holder]*holderEntry, keys *keyings, missing string) (*table, map[unfound]*holderEntry) {
	t, differing := &table{bySlot: map[uint32]int{}}, map[unfound]*holderEntry{}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.trusted, func(h fleet.Holder, _ opinion) bool { return snap.Worker(h) == nil })
	for _, w := range snap.Workers() {
		for _, h := range w.Holders {
			e := best[h]
			if e == nil {
				if o, was := r.trusted[h]; was && !o.learned {
					r.trust(h, opinion{level: fleet.TrustNone, why: missing})
				}
				r.unknown(w, h, missing)
				continue
			}
			if !keys.fit(w, e) {
				differing[unfound{model: w.Facts.BaseModel()}] = e
				r.trust(h, opinion{level: fleet.TrustNone, why: otherKeys(e)})
				continue
			}
			level := fleet.ParseTrust(e.Trust)
			r.trust(h, opinion{level, e.Why, level == fleet.TrustApproximate && e.Slot == 0})
			if e.Slot == 0 {
				continue // nothing is known of its cache
			}
			if _, twice := t.bySlot[e.Slot]; twice { // one of the two will get a new slot
				t.bySlot[e.Slot] = -1
				continue
			}
			t.bySlot[e.Slot] = len(t.seats)
			s := seat{holder: h, blockSize: e.BlockSize, algorithm: e.Algorithm, measure: e.measure()}
			t.sparse = t.sparse || s.measure.Sparse()
			t.seats = append(t.seats, s)
		}
	}
	return t, differing
}

func betterThan(a, b *holderEntry) bool {
	if a.Slot == 0 || b.Slot == 0 {
		return cmp.Or(cmp.Compare(fleet.ParseTrust(a.Trust), fleet.ParseTrust(b.Trust)), cmp.Compare(a.Slot, b.Slot)) > 0
	}
	return cmp.Or(cmp.Compare(fleet.ParseTrust(a.Trust), fleet.ParseTrust(b.Trust)), -cmp.Compare(a.Slot, b.Slot)) > 0
}

// Match appends to q.Matches what each holder of the fleet has of a prompt. It asks the server at most twice, and waits
// at most for Config.Timeout. After an error of the connection nobody is trusted until the server answers again. If
// most lookups are late, the server is left alone for a while, and Match returns at once.
func (r *Reader) Match(ctx context.Context, q *warmpath.Lookup) error {
	t, client := r.table.Load(), r.client.Load()
	err := ctx.Err() // the lookups before this one may have taken all the time
	switch {
	case err != nil:
	case t == nil || client == nil:
		err = errNoServer
	case r.rests.now.Load():
		err = errLate
	}
	if err != nil {
		r.counts.failed.Add(1)
		return err
	}
	if q.Matches = q.Matches[:0]; len(q.Keys) == 0 {
		return nil
	}
	asker := ctx
	ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	l := r.pool.Get().(*lookup)
	defer r.pool.Put(l)
	l.asked = false
	if err := r.look(ctx, l, *client, t, q); err != nil {
		r.counts.failed.Add(1)
		r.missed(asker, err)
		return fmt.Errorf("look up %d blocks: %w", len(q.Keys), err)
	}
	if l.asked { // an answer of the cache says nothing about the server
		r.rests.lateness.InTime()
	}
	r.counts.lookups.Add(1)
	return nil
}

// slotFor returns the place of a slot's holder in seats, or -1 if the holder's keys are not those of the question.
func (t *table) slotFor(slot uint32, q *warmpath.Lookup) int {
	i, ok := t.bySlot[slot]
	if !ok || i < 0 || t.seats[i].blockSize != q.BlockSize || t.seats[i].algorithm != q.Algorithm.String() {
		return -1
	}
	return i
}

// rowsOf returns how many rows some blocks have.
func rowsOf(keys []block.Key) int { return (len(keys) + rowLength - 1) / rowLength }

// sortMatches orders matches by holder.
func sortMatches(list []kvindex.Match) {
	slices.SortFunc(list, func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) })
}
