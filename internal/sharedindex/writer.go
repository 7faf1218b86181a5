package sharedindex

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvindex"
)

// WriterParts are what a Writer needs besides its configuration. All are required, except Network.
type WriterParts struct {
	Fleet     *fleet.Fleet    // whose workers the index is about
	Algorithm block.Algorithm // of the blocks' keys
	// TellAgain is [warmpath.Router.TellAgain].
	TellAgain func(generation uint64, h fleet.Holder, from int) (next int)
	Log       *slog.Logger
	Network   network.Network // nil means the machine's
}

// Writer mirrors the indexes of this process into a server. It takes the changes from [Writer.IndexChanged], and writes
// them while Run runs. Several writers may write about the same workers: each has slots of its own.
type Writer struct {
	config Config
	parts  WriterParts
	names  names
	id     string
	mirror *mirror
	counts counters

	// The fields below belong to Run's goroutine.
	spare   []op
	dead    []deadSlot
	floor   floor
	serial  uint64
	sent    string    // the last description at the server; "": none in this session
	beat    time.Time // when it was sent
	counted time.Time // when the series was looked at
	again   time.Time // when all entries are written again
	listed  time.Time // when the other writers were looked at
	heard   descriptions
	retried time.Time // when blocks that the server refused were told again
	scripts map[string]string
	problem problem
	full    problem // the server refuses blocks
}

// deadSlot is a slot that this writer retired. Its entries are dropped from records that change.
type deadSlot struct {
	slot  uint32
	since time.Time
}

// NewWriter returns a Writer. It connects to nothing before Run.
func NewWriter(cfg Config, parts WriterParts) *Writer {
	var id [8]byte
	rand.Read(id[:]) // never fails
	return &Writer{config: cfg, parts: parts, names: newNames(cfg), id: hex.EncodeToString(id[:]), mirror: newMirror(cfg.Queue),
		problem: newProblem(parts.Log, cfg), full: newProblem(parts.Log, cfg)}
}

// IndexChanged is for [warmpath.Options.IndexChanged].
func (w *Writer) IndexChanged(made warmpath.MadeIndex) func(*kvindex.Change) {
	return w.mirror.listen(made)
}

// Stats returns the writer's figures.
func (w *Writer) Stats() Stats {
	w.mirror.mu.Lock()
	s := Stats{Waiting: int64(len(w.mirror.pending)), Dropped: w.mirror.stats.dropped, Resyncs: w.mirror.stats.resyncs}
	w.mirror.mu.Unlock()
	s.Connected, s.Written = w.counts.connected.Load(), w.counts.written.Load()
	s.Refused, s.Sessions = w.counts.refused.Load(), w.counts.sessions.Load()
	s.Holders = w.counts.holders.Load()
	return s
}

// Run connects to the server and writes until ctx ends. Without a server it tries again. It returns nil.
func (w *Writer) Run(ctx context.Context) error {
	keepTrying(ctx, w.session, func(_ context.Context, err error) {
		w.mirror.retireAll()
		w.problem.tell("the shared index is not written, trying again", err)
	})
	return nil
}

// session connects, and writes until ctx ends or something fails. Everything is written anew in each session.
func (w *Writer) session(ctx context.Context) error {
	defer w.counts.connected.Store(false)
	client, err := w.config.orderedClient(w.parts.Network)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := w.begin(ctx, client); err != nil {
		return err
	}
	defer w.leave(ctx, client)
	tick := time.NewTicker(w.config.Lease / beatsPerLease)
	defer tick.Stop()
	for {
		busy, err := w.step(ctx, client)
		if err != nil {
			return err
		}
		if w.counts.connected.CompareAndSwap(false, true) {
			w.problem.over()
			w.parts.Log.Info("writing the shared index", "server", w.config.Address(), "writer", w.id)
		}
		if busy {
			continue
		}
		select {
		case <-w.mirror.wake:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin begins a session with a server of which nothing is known.
func (w *Writer) begin(ctx context.Context, client valkey.Client) (err error) {
	if w.scripts, err = loadScripts(ctx, client); err != nil {
		return err
	}
	w.sent, w.again, w.listed = "", time.Now().Add(w.config.TTL/2), time.Time{}
	w.mirror.retireAll()
	w.mirror.takeRetired()
	w.dead, w.floor = nil, floor{} // they are those of a series
	w.counts.sessions.Add(1)
	if w.names.series, _, err = w.slots(ctx, client, 0); err != nil {
		return err
	}
	w.counted = time.Now()
	// The server may have a description of an earlier session. It has to go before another one is written.
	if err := client.Do(ctx, client.B().Del().Key(w.names.writer(w.id)).Build()).Error(); err != nil {
		return fmt.Errorf("delete the old description: %w", err)
	}
	return nil
}

const (
	// beatsPerLease is how many signs of life a writer gives in a lease.
	beatsPerLease = 10
	// writeTimeout bounds a write. A server that takes longer counts as lost, and everything is written anew.
	writeTimeout = 5 * time.Second
)

// leave deletes the description when the writer ends: routers stop to use its entries at once.
func (w *Writer) leave(ctx context.Context, client valkey.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = client.Do(ctx, client.B().Del().Key(w.names.writer(w.id)).Build()).Error()
	_ = client.Do(ctx, client.B().Zrem().Key(w.names.writers()).Member(w.id).Build()).Error()
}

// step does a part of the work. It reports whether there is more to do at once.
func (w *Writer) step(ctx context.Context, client valkey.Client) (busy bool, err error) {
	now := time.Now()
	for _, slot := range w.mirror.takeRetired() {
		w.dead = append(w.dead, deadSlot{slot, now})
	}
	w.dead = slices.DeleteFunc(w.dead, func(d deadSlot) bool { return now.Sub(d.since) > w.config.TTL })
	w.dead = w.dead[max(0, len(w.dead)-maxDead):]
	if err := w.assign(ctx, client, now); err != nil {
		return false, err
	}
	if now.Sub(w.counted) >= w.config.Lease/beatsPerLease {
		w.counted = now
		if err := w.take(ctx, client, 0); err != nil {
			return false, err
		}
	}
	if now.Sub(w.listed) > w.config.Lease {
		if err := w.lookAround(ctx, client, now); err != nil {
			return false, err
		}
	}
	if now.After(w.again) {
		w.again = now.Add(w.config.TTL / 2)
		w.mirror.tellAgain()
	}
	if now.Sub(w.retried) > fullRetry {
		w.retried = now
		w.mirror.tellRefused()
	}
	if key, slot, next, ok := w.mirror.untold(); ok && w.mirror.waiting() <= w.config.Queue/4 {
		w.mirror.told(key, slot, w.parts.TellAgain(key.generation, key.holder, next))
		busy = true
	}
	ops, upTo := w.mirror.take(w.spare)
	w.spare = ops
	if err := w.write(ctx, client, ops); err != nil {
		return false, err
	}
	if w.mirror.wrote(upTo) || now.Sub(w.beat) >= w.config.Lease/beatsPerLease {
		err = w.describe(ctx, client, now)
	}
	if !w.mirror.lacking() && w.full.over() {
		w.parts.Log.Info("the server of the shared index is no longer full: all blocks are written", "server", w.config.Address())
	}
	return busy || len(ops) > 0, err
}

// fullRetry is how often a writer tries again what a full server refused.
const fullRetry = 30 * time.Second

// maxDead is how many dead slots a write names.
const maxDead = 256

// assign gets slots from the server for holders that need one.
func (w *Writer) assign(ctx context.Context, client valkey.Client, now time.Time) error {
	n := w.mirror.wanting()
	if n == 0 {
		return nil
	}
	if err := w.take(ctx, client, n); err != nil {
		return err
	}
	if time.Since(now) > w.config.Lease {
		return errors.New("the server took too long to give slots") // others may count the slots as dead already
	}
	// The description has to name a slot before the first entry has it.
	return w.describe(ctx, client, now)
}

// errSeries means that the slots of this session count no more.
var errSeries = errors.New("the server counts slots anew: it was restarted or emptied, it evicts keys (then raise its maxmemory), or there were none left")

// take gets n slots from the server and gives them to holders. With n = 0 it only looks whether the series goes on.
func (w *Writer) take(ctx context.Context, client valkey.Client, n int) error {
	series, last, err := w.slots(ctx, client, n)
	if err != nil {
		return err
	}
	if series != w.names.series {
		return errSeries
	}
	if n > 0 {
		w.mirror.assign(last-uint32(n)+1, n)
	}
	return nil
}

// slots gets n slots from the server: the present series, and the last one of the slots.
func (w *Writer) slots(ctx context.Context, client valkey.Client, n int) (series string, last uint32, err error) {
	var fresh [seriesBytes]byte
	rand.Read(fresh[:]) // never fails
	answer, err := w.call(ctx, client, slotsScript, []string{w.names.slots()}, strconv.Itoa(n), string(fresh[:]),
		strconv.FormatUint(uint64(w.names.lastSlot), 10), strconv.FormatInt(w.config.TTL.Milliseconds(), 10)).ToArray()
	if err != nil {
		return "", 0, fmt.Errorf("get slots: %w", err)
	}
	if len(answer) == 2 {
		name, err := answer[0].ToString()
		at, err2 := answer[1].AsInt64()
		if err == nil && err2 == nil && len(name) == seriesBytes && at >= int64(n) && at <= int64(w.names.lastSlot) {
			return name, uint32(at), nil
		}
	}
	return "", 0, fmt.Errorf("get slots: %q is not of this program: delete it", w.names.slots())
}

// describe writes the writer's description, which is also its sign of life.
func (w *Writer) describe(ctx context.Context, client valkey.Client, now time.Time) error {
	w.serial++
	d := description{Version: descriptionVersion, Serial: w.serial, Series: []byte(w.names.series), Holders: w.entries()}
	w.counts.holders.Store(int64(len(d.Holders)))
	text, err := json.Marshal(&d)
	if err != nil {
		return err
	}
	lease := strconv.FormatInt(w.config.Lease.Milliseconds(), 10)
	was, err := w.call(ctx, client, describeScript, []string{w.names.writer(w.id)}, string(text), lease).ToString()
	if err != nil && !valkey.IsValkeyNil(err) {
		return fmt.Errorf("write the description: %w", err)
	}
	if was != w.sent {
		return errors.New("the server lost the writer's description: it was restarted or emptied, it evicts keys (then raise its maxmemory), or it did not answer for too long")
	}
	w.sent, w.beat = string(text), now
	at, old := strconv.FormatInt(now.UnixMilli(), 10), strconv.FormatInt(now.Add(-2*listedFor).UnixMilli(), 10)
	ttl := strconv.FormatInt(w.config.TTL.Milliseconds(), 10)
	if err := w.call(ctx, client, greetScript, []string{w.names.writers()}, w.id, at, old, ttl).Error(); err != nil {
		return fmt.Errorf("write the list of writers: %w", err)
	}
	return nil
}

// entries returns what the description says of each holder of the fleet.
func (w *Writer) entries() (list []holderEntry) {
	snap := w.parts.Fleet.Snapshot()
	books := w.mirror.copies()
	for _, worker := range snap.Workers() {
		for _, h := range worker.Holders {
			b, known := books[h]
			if !known {
				b.empty = true
			}
			list = append(list, w.entry(snap, worker, h, b))
		}
	}
	return list
}

// entry returns what the description says of a holder. Without a book the index knows no block of it.
func (w *Writer) entry(snap *fleet.Snapshot, worker *fleet.Worker, h fleet.Holder, b book) holderEntry {
	trust, why := snap.Trust(h)
	e := holderEntry{URL: worker.URL, Rank: snap.Rank(h), Model: worker.Facts.BaseModel(), Algorithm: w.parts.Algorithm.String()}
	if !b.idle() || b.slot != 0 {
		e.Model, e.BlockSize, e.Slot = b.made.Model, b.made.BlockSize, b.slot
		e.Groups, e.AnyTierOrder, e.Unprovable = groupEntries(b.groups), b.anyTierOrder, b.unprovable
		switch {
		case b.full:
			trust, why = min(trust, fleet.TrustDegraded), "the server of the shared index is full"
		case !b.whole:
			trust, why = min(trust, fleet.TrustDegraded), "its blocks are being written to the shared index"
		}
	}
	e.Trust, e.Why = trust.String(), why
	return e
}

// floor is a bound of dead slots: all slots below it are dead. A bound counts only some leases after it was found,
// because another writer may have got a slot shortly before and not named it yet.
type floor struct {
	slot, next uint32
	since      time.Time
}

// lookAround finds the slots that all writers use, and sets the floor.
func (w *Writer) lookAround(ctx context.Context, client valkey.Client, now time.Time) error {
	w.listed = now
	texts, err := readDescriptions(ctx, client, w.names, now.Add(-10*w.config.Lease))
	if err != nil {
		return err
	}
	lowest, others := w.names.lastSlot, map[uint32]bool{}
	for _, b := range w.mirror.copies() {
		if b.slot != 0 {
			lowest = min(lowest, b.slot)
		}
	}
	for _, other := range w.heard.all(texts) {
		if other.err != nil {
			return nil // another version: its slots are not known
		}
		if string(other.d.Series) != w.names.series {
			continue
		}
		for i := range other.d.Holders {
			if slot := other.d.Holders[i].Slot; slot != 0 {
				lowest = min(lowest, slot)
				others[slot] = other.id != w.id || others[slot]
			}
		}
	}
	w.mirror.retireTaken(others)
	if f := &w.floor; now.Sub(f.since) > 3*w.config.Lease {
		f.slot, f.next, f.since = min(f.next, lowest), lowest, now
	} else {
		f.slot = min(f.slot, lowest)
	}
	return nil
}

// call calls one of the scripts that were loaded.
func (w *Writer) call(ctx context.Context, client valkey.Client, script string, keys []string, args ...string) valkey.ValkeyResult {
	return client.Do(ctx, client.B().Evalsha().Sha1(w.scripts[script]).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
}

// write writes changes in their order. Several changes are one call of a script, which the server runs as a whole.
func (w *Writer) write(ctx context.Context, client valkey.Client, ops []op) error {
	for len(ops) > 0 {
		n := min(len(ops), opsPerWrite)
		if err := w.writeSome(ctx, client, ops[:n]); err != nil {
			return err
		}
		ops = ops[n:]
		if now := time.Now(); now.Sub(w.beat) >= w.config.Lease/beatsPerLease && len(ops) > 0 {
			if err := w.describe(ctx, client, now); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	// opsPerCall bounds the changes of one call of the script: a server runs it for less than a millisecond, and answers
	// nobody else meanwhile.
	opsPerCall = 32
	// opsPerWrite bounds the changes that are under way to the server.
	opsPerWrite = 2048
)

func (w *Writer) writeSome(ctx context.Context, client valkey.Client, ops []op) error {
	calls := w.callsOf(ops)
	ttl, dead := strconv.FormatInt(w.config.TTL.Milliseconds(), 10), w.deadText()
	var cmds valkey.Commands
	for _, call := range calls {
		script, args := applyScript, []string{ttl, dead}
		if !call[0].add {
			script = leanScript
		}
		var keys []string
		for i := range call {
			keys = call[i].appendNames(keys, w.names)
			args = append(args, call[i].argument())
		}
		cmds = append(cmds, client.B().Evalsha().Sha1(w.scripts[script]).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	for i, r := range client.DoMulti(ctx, cmds...) {
		err := r.Error()
		if e, ok := valkey.IsValkeyErr(err); ok && calls[i][0].add && strings.HasPrefix(e.Error(), "OOM") {
			w.counts.refused.Add(int64(len(calls[i])))
			w.mirror.refused(calls[i])
			w.full.tell("the server of the shared index is full", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("write blocks: %w", err)
		}
		for _, o := range calls[i] {
			w.counts.written.Add(int64(o.n - o.from))
		}
	}
	return nil
}

// callsOf divides changes into calls, each with changes of one kind. In a cluster all changes of a call have the same
// hash tag. The order of the changes of a row stays.
func (w *Writer) callsOf(ops []op) (calls [][]op) {
	if w.config.Cluster {
		slices.SortStableFunc(ops, func(a, b op) int { return cmp.Compare(tag(a.keys[0]), tag(b.keys[0])) })
	}
	for i := 0; i < len(ops); {
		n := 1
		for i+n < len(ops) && n < opsPerCall && ops[i+n].add == ops[i].add && (!w.config.Cluster || tag(ops[i+n].keys[0]) == tag(ops[i].keys[0])) {
			n++
		}
		calls = append(calls, ops[i:i+n])
		i += n
	}
	return calls
}

// deadText returns the floor and the dead slots, three bytes each.
func (w *Writer) deadText() string {
	b := appendSlot(nil, w.floor.slot)
	for _, d := range w.dead {
		b = appendSlot(b, d.slot)
	}
	return string(b)
}
