package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/kvfeed"
)

// Parts are what a Keeper needs in addition to its settings. All are required except Others and Joining.
type Parts struct {
	Feed    *kvfeed.Feed
	Client  *http.Client
	Key     string // the admin key of the peers; "": none
	Name    string // names this process to its peers
	Version string // the router's version
	Room    int64  // bytes that the checkpoints of all peers and of the file may take until they are in the index
	Log     *slog.Logger
	// Others returns the admin addresses of further peers at this moment, such as those that replica sync knows; nil:
	// there are no others.
	Others func() []string
	// Joining yields the addresses of Others while a router that has just started hears of them, each once, and ends
	// soon. nil: it yields none.
	Joining func(context.Context) iter.Seq[string]
}

// Keeper gives a feed the checkpoints of peers and of a file, and saves the file. Run is called once; the other methods
// may be called at any time.
type Keeper struct {
	config Config
	Parts
	counts   keeperCounts
	lastSave time.Duration // bounds Save
	silence  time.Duration // how long a peer may send nothing
	writing  chan struct{} // capacity 1: has a value while the file is being written
	// Only the goroutine of Run uses the fields below.
	own      map[string]bool         // the addresses of peers at which this process itself answered
	strange  map[string]bool         // the peers of which the log has said that they do not follow a worker
	failures map[string]failure      // the peers whose last snapshot failed
	offered  map[kvfeed.Place]string // the holders of which the feed took a checkpoint at the start, and its source; nil later
}

type keeperCounts struct{ peers, peersFailed, files, filesFailed, saved, savesFailed atomic.Uint64 }

// Stats counts snapshots.
type Stats struct {
	Given, GivenBroken, GivenRefused uint64 // to peers: whole ones, broken ones, requests beyond the limits
	Peers, PeersFailed               uint64 // snapshots that peers gave, and requests to peers that failed
	Files, FilesFailed               uint64 // files that were read, and files that could not be used
	Saved, SavesFailed               uint64 // files that were written, and attempts that failed
	Checkpoints                      kvfeed.CheckpointStats
}

// NewKeeper returns a Keeper, and prepares the feed: call it before the feed runs. It starts nothing.
func NewKeeper(cfg Config, p Parts) *Keeper {
	k := &Keeper{config: cfg, Parts: p, lastSave: saveTimeout, silence: peerSilence, writing: make(chan struct{}, 1),
		own: map[string]bool{}, strange: map[string]bool{}, failures: map[string]failure{}, offered: map[kvfeed.Place]string{}}
	if len(cfg.Peers) > 0 || p.Others != nil {
		p.Feed.KeepMessages()
	}
	if k.warms() {
		p.Feed.Hold()
	}
	return k
}

// warms reports whether a start may find checkpoints.
func (k *Keeper) warms() bool {
	return len(k.config.Peers) > 0 || k.Others != nil || k.config.SnapshotFile != ""
}

// Stats returns the counters of the keeper and of a giver.
func (k *Keeper) Stats(g *Giver) Stats {
	c, d := &k.counts, &g.counts
	return Stats{
		Given: d.given.Load(), GivenBroken: d.broken.Load(), GivenRefused: d.refused.Load(),
		Peers: c.peers.Load(), PeersFailed: c.peersFailed.Load(), Files: c.files.Load(), FilesFailed: c.filesFailed.Load(),
		Saved: c.saved.Load(), SavesFailed: c.savesFailed.Load(), Checkpoints: k.Feed.CheckpointStats(),
	}
}

// offeredFor is how long checkpoints wait for workers that have not joined the fleet.
const offeredFor = time.Minute

// Run warms the feed, and then asks peers for checkpoints of holders whose history is not whole, and saves the file
// regularly, until ctx ends. It returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	k.tryFile()
	k.warm(ctx)
	var saving sync.WaitGroup
	saving.Go(func() { k.saveRegularly(ctx) }) // ends with ctx; peers do not delay it
	defer saving.Wait()
	claimed, drop := time.After(claimedWithin), time.After(offeredFor)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-claimed:
			k.noteUnclaimed()
		case <-drop:
			k.Feed.Drop()
		case <-k.Feed.Lacks():
		case <-look.C: // a stream with a replay endpoint does not tell that it lacks a checkpoint
		case <-again.C:
		}
		again.Reset(time.Until(k.askForLacking(ctx)))
	}
}

// claimedWithin is how long the workers of checkpoints may take to join before the log says that they have not. A
// router finds 1,000 workers in 10 s.
const claimedWithin = 20 * time.Second

// noteOffered notes that the feed took a checkpoint, until noteUnclaimed.
func (k *Keeper) noteOffered(at kvfeed.Place, from string) {
	if k.offered != nil {
		k.offered[at] = from
	}
}

// noteUnclaimed logs that the feed follows no worker under the names of some checkpoints: routers tell workers apart by
// their URLs.
func (k *Keeper) noteUnclaimed() {
	for _, p := range k.Feed.Places() {
		delete(k.offered, p)
	}
	from, workers := map[string]bool{}, map[string]bool{}
	for p, source := range k.offered {
		from[source], workers[p.Worker] = true, true
	}
	k.offered = nil
	if len(workers) == 0 {
		return
	}
	named := slices.Sorted(maps.Keys(workers))
	k.Log.Warn("checkpoints are not used, because this router follows no events of their workers: name the workers by the same URLs on all routers, "+
		"or look whether these workers answer", "workers", len(named), "such_as", named[0], "from", strings.Join(slices.Sorted(maps.Keys(from)), " "))
}

// tryFile logs at the start what would keep the file from being written.
func (k *Keeper) tryFile() {
	path := k.config.SnapshotFile
	if path == "" {
		return
	}
	switch err := tryFile(path); {
	case errors.Is(err, errForeign):
		k.Log.Warn("the file of index.snapshot_file is no snapshot of an index, so it is never replaced: name another file, or move this one", "file", path)
	case err != nil:
		k.Log.Warn("the index cannot be saved: let the user of this process write in the folder of index.snapshot_file, or name a file in another folder",
			"file", path, "error", err)
	}
}

// saveTimeout bounds the last writing of the file, while the router stops: 2 s are enough for some 10^7 blocks on a
// quiet machine. A regular writing may take half of Config.SnapshotInterval, so large indexes have a file, too.
const saveTimeout = 2 * time.Second

// saveRegularly writes the file regularly until ctx ends.
func (k *Keeper) saveRegularly(ctx context.Context) {
	if k.config.SnapshotFile == "" || k.config.SnapshotInterval <= 0 {
		return
	}
	ticker := time.NewTicker(k.config.SnapshotInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.save(ctx, max(saveTimeout, k.config.SnapshotInterval/2))
		}
	}
}

// Save writes the file, if there is one. It takes 2 s at most. If a regular writing is under way, Save waits for it, so
// that the file with the last state is the one that stays.
func (k *Keeper) Save(ctx context.Context) { k.save(ctx, k.lastSave) }

func (k *Keeper) save(ctx context.Context, limit time.Duration) {
	if k.config.SnapshotFile == "" {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it takes more than %v", limit))
	defer cancel()
	began := time.Now()
	holders, blocks, err := k.write(ctx)
	switch {
	case errors.Is(err, errNothing):
	case err != nil:
		k.counts.savesFailed.Add(1)
		k.Log.Warn("the index was not saved", "error", err)
	default:
		k.counts.saved.Add(1)
		k.Log.Info("saved the index", "file", k.config.SnapshotFile, "holders", holders, "blocks", blocks, "ms", time.Since(began).Milliseconds())
	}
}

// write writes the file after a writing that is under way has ended.
func (k *Keeper) write(ctx context.Context) (holders, blocks int, err error) {
	select {
	case k.writing <- struct{}{}:
		defer func() { <-k.writing }()
		return saveFile(ctx, k.config.SnapshotFile, k.Feed, k.Version)
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("save the index to %s: another writing is under way: %w", k.config.SnapshotFile, context.Cause(ctx))
	}
}

// warm asks the peers, then reads the file. After it, streams that have no checkpoint read their engines' histories.
func (k *Keeper) warm(ctx context.Context) {
	if !k.warms() {
		return
	}
	defer k.Feed.Release()
	limited, cancel := context.WithTimeoutCause(ctx, k.config.PeerTimeout, fmt.Errorf("index.peer_timeout, %v, is over", k.config.PeerTimeout))
	defer cancel()
	known := map[kvfeed.Place]bool{}
	room := k.Room
	k.ask(limited, k.first(limited), nil, known, &room)
	if k.config.SnapshotFile == "" {
		return
	}
	n, err := loadFile(k.config.SnapshotFile, room, known, func(c *kvfeed.Checkpoint) bool {
		if !k.offer(c, k.config.SnapshotFile) {
			return false
		}
		k.noteOffered(kvfeed.Place{Worker: c.Worker, Rank: c.Rank}, k.config.SnapshotFile)
		return true
	}, func(s *skippedHolder) { k.noteSkipped(s, k.config.SnapshotFile) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.Log.Info("there is no saved index: the router begins without it", "file", k.config.SnapshotFile)
	case err != nil && n > 0:
		k.counts.filesFailed.Add(1)
		k.Log.Warn("only a part of the saved index is used", "file", k.config.SnapshotFile, "holders", n, "why", err)
	case err != nil:
		k.counts.filesFailed.Add(1)
		k.Log.Warn("the saved index is not used: the router begins without it", "file", k.config.SnapshotFile, "why", err)
	default:
		k.counts.files.Add(1)
		k.Log.Info("read the saved index", "file", k.config.SnapshotFile, "holders", n)
	}
}

// ask asks one peer after the other for checkpoints, until no holder is missing. places are the wanted holders; nil:
// all whose engines have a replay endpoint. known gets the holders of which a checkpoint came. *room bounds the memory
// of all checkpoints together, and becomes what is left.
func (k *Keeper) ask(ctx context.Context, peers iter.Seq[string], places []kvfeed.Place, known map[kvfeed.Place]bool, room *int64) {
	level, start := slog.LevelInfo, places == nil
	if !start {
		level = slog.LevelDebug // the log says of each holder that it continues from a checkpoint
	}
	for peer := range peers {
		if ctx.Err() != nil {
			return
		}
		began, before := time.Now(), len(known)
		limited, cancel := k.limit(ctx, peer)
		skipped, err := k.fetch(limited, peer, places, known, room)
		late := limited.Err() != nil
		cancel()
		if errors.Is(err, errItself) { // all routers may have the same list
			k.own[peer] = true
			k.Log.Info("index.peers names this router itself: it is not asked", "peer", peer)
			continue
		}
		if err != nil {
			if errors.Is(ctx.Err(), context.Canceled) { // the router stops: the peer has done nothing wrong
				return
			}
			k.counts.peersFailed.Add(1)
			k.noteFailed(peer, len(known), &attempt{err: err, took: time.Since(began), late: late, useful: len(known) > before, start: start})
		} else {
			delete(k.failures, peer)
			k.counts.peers.Add(1)
			k.Log.Log(ctx, level, "a peer gave a snapshot of its index", "peer", peer, "holders", len(known), "skipped", len(skipped), "ms", time.Since(began).Milliseconds())
		}
		if places == nil {
			if err != nil || len(known) == 0 { // the next peer is asked for all, too: skipped has only some of them
				continue
			}
			places = skipped
		}
		// A holder whose checkpoint is too old is neither known nor skipped.
		places = slices.DeleteFunc(slices.Clone(places), func(p kvfeed.Place) bool { return known[p] })
		if len(places) == 0 {
			return
		}
	}
}

// limit returns a context that ends with ctx, and earlier for a peer that gave nothing in its time before.
func (k *Keeper) limit(ctx context.Context, peer string) (context.Context, context.CancelFunc) {
	limit := k.failures[peer].limit
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("its time is over: %v, because it used up its time before", limit))
}

// noteFailed logs that a peer gave no whole snapshot, once for each kind of failure until it gives one.
func (k *Keeper) noteFailed(peer string, holders int, a *attempt) {
	last, level := k.failures[peer], slog.LevelWarn
	kind, next := explain(a.err, a.late)
	if last.kind == kind {
		level = slog.LevelDebug
	}
	pause, limit := a.pace(last.limit, k.silence, k.config.PeerTimeout)
	k.failures[peer] = failure{kind, time.Now().Add(pause), errors.Is(a.err, errBusy), limit}
	why := k.blank(a.err.Error())
	why = strings.ToValidUTF8(why[:min(len(why), 500)], "") // a peer that is no router may send a long line
	if next != "" {
		why += "; " + next
	}
	k.Log.Log(context.Background(), level, "a peer gave no whole snapshot of its index", "peer", peer, "holders", holders, "error", why)
}

// fetch asks one peer. skipped are holders of which the peer has no checkpoint, mostAsked of them at most. *room bounds
// the memory of the checkpoints of this peer and of the ones after it: fetch subtracts what the feed took.
func (k *Keeper) fetch(ctx context.Context, peer string, places []kvfeed.Place, known map[kvfeed.Place]bool, room *int64) (skipped []kvfeed.Place, err error) {
	query := url.Values{}
	for _, p := range places {
		query.Add("holder", holderParameter(p))
	}
	if places == nil {
		query.Set(replayOnly, "1") // no message of the other engines has come that could confirm a checkpoint
	}
	ctx, heard, end := attend(ctx, k.silence)
	defer end()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+Path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(peerHeader, k.Name)
	if k.Key != "" {
		req.Header.Set("Authorization", "Bearer "+k.Key)
	}
	resp, err := k.Client.Do(req)
	if err != nil {
		return nil, cause(ctx, short(err))
	}
	defer resp.Body.Close()
	heard.hear(resp.Body)
	switch resp.StatusCode {
	case http.StatusOK:
	case statusItself:
		return nil, errItself
	default:
		text, _ := io.ReadAll(io.LimitReader(heard, 300))
		return nil, &refusal{resp.StatusCode, strings.Join(strings.Fields(string(text)), " "), resp.StatusCode == http.StatusBadRequest && resp.ProtoMinor == 0}
	}
	r, err := newReader(heard, *room)
	if err != nil {
		return nil, cause(ctx, short(err))
	}
	r.known, r.unused = known, k.Room
	_, err = r.each(func(c *kvfeed.Checkpoint) bool {
		if !k.offer(c, peer) {
			return false
		}
		at := kvfeed.Place{Worker: c.Worker, Rank: c.Rank}
		known[at] = true
		k.noteOffered(at, peer)
		return true
	}, func(s *skippedHolder) {
		k.noteSkipped(s, peer)
		if len(skipped) < mostAsked && s.Worker != "" { // an invalid description may name no worker
			skipped = append(skipped, kvfeed.Place{Worker: s.Worker, Rank: s.Rank})
		}
	})
	*room -= r.kept
	if err != nil {
		return skipped, cause(ctx, short(err))
	}
	// The answer ends when the peer has finished its work. It would refuse a request that comes before.
	_, _ = io.CopyN(io.Discard, heard, 1)
	return skipped, nil
}

// noteSkipped logs that a peer or a file has no good checkpoint of a holder.
func (k *Keeper) noteSkipped(s *skippedHolder, from string) {
	if s.Invalid {
		k.Log.Warn("a checkpoint is not used", "worker", k.blank(s.Worker), "rank", s.Rank, "from", from, "why", k.blank(s.Why))
		return
	}
	level, text := slog.LevelDebug, "there is no checkpoint of a holder"
	if s.Why == kvfeed.ErrNotFollowed.Error() && !k.strange[from] {
		k.strange[from] = true
		level, text = slog.LevelInfo, "a peer follows no such worker, so it has no checkpoint of it: name the workers by the same URLs on all routers"
	}
	k.Log.Log(context.Background(), level, text, "worker", k.blank(s.Worker), "rank", s.Rank, "from", from, "why", k.blank(s.Why))
}

// blank returns a text of a peer without the admin key, which the peer may repeat.
func (k *Keeper) blank(text string) string { return api.WithoutSecrets(text, k.Key) }

// cause returns why ctx ended, if it did, and else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return err
}

// offer gives a checkpoint to the feed. It reports whether the feed took it: another peer, or the file, may have one
// that fits.
func (k *Keeper) offer(c *kvfeed.Checkpoint, from string) bool {
	err := k.Feed.Offer(c)
	if err != nil && !errors.Is(err, kvfeed.ErrTooOld) {
		k.Log.Warn("a checkpoint is not used", "worker", c.Worker, "rank", c.Rank, "from", from, "why", err)
	}
	return err == nil
}

// askForLacking asks peers for holders whose history is not whole. It returns when to ask again.
func (k *Keeper) askForLacking(ctx context.Context) time.Time {
	now := time.Now()
	soonest := now.Add(time.Hour) // when some peer may be asked
	if len(k.config.Peers) == 0 && k.Others == nil {
		return soonest
	}
	peers := k.peers()
	peers = slices.DeleteFunc(peers, func(peer string) bool {
		until := k.failures[peer].until
		if !until.After(now) {
			return false
		}
		if until.Before(soonest) {
			soonest = until
		}
		return true
	})
	if len(peers) == 0 {
		k.Feed.Lacking(now, 0) // forgets the questions for holders whose history is whole
		return soonest
	}
	places, next := k.Feed.Lacking(now, mostAsked)
	if len(places) > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, k.config.PeerTimeout, fmt.Errorf("index.peer_timeout, %v, is over", k.config.PeerTimeout))
		defer cancel()
		room := k.Room
		k.ask(limited, slices.Values(peers), places, map[kvfeed.Place]bool{}, &room)
	}
	if next.IsZero() {
		return soonest
	}
	return next
}
