package sharedindex

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// PlacementsParts are what Placements need besides the configuration. All are required, except Network.
type PlacementsParts struct {
	Fleet     *fleet.Fleet
	Algorithm block.Algorithm // of the blocks' keys
	TTL       time.Duration   // how long a prompt counts after it was sent
	Log       *slog.Logger
	Network   network.Network // nil means the machine's
}

// Placements writes learned placements into the shared index: the prompts of requests at workers without events. It is
// an observer of the router's requests. A prompt is written when its first token has come, so that it is in the
// worker's cache. [Reader] finds it, in this router and in all others.
//
// All routers write under the same slots, which live at the server: a learned placement outlives the router that
// learned it. A slot is a holder in one period, a quarter of the TTL by the server's clock. It counts until the third
// period after it ends. So a placement counts for three quarters of the TTL at least, and for the TTL at most, although
// other placements keep its record alive.
//
// The methods of the observer may be called concurrently. They never wait for the server.
type Placements struct {
	config Config
	parts  PlacementsParts
	names  names
	counts placementCounts
	wake   chan struct{}
	// patience is how long prompts wait until the process of a new worker is known.
	patience time.Duration

	mu      sync.Mutex        // guards the fields below
	sending map[uint64]placed // requests without a first token
	keys    int               // keys of sending and of waiting
	waiting []placed

	// The fields below belong to Run's goroutine.
	problem problem
	seen    map[string]sighting // by the URL of the worker
}

// sighting is what a worker was when it was looked at last.
type sighting struct {
	incarnation uint64
	since       time.Time // when the incarnation was seen first
}

type placementCounts struct{ written, dropped atomic.Int64 }

// placed is one prompt that was sent to a holder.
type placed struct {
	worker string // its URL
	// id and incarnation are those of the worker when the prompt was sent.
	id          fleet.WorkerID
	incarnation uint64
	rank        int
	size        int // tokens of a block
	keys        []block.Key
}

const (
	// maxPlaced and maxPlacedKeys bound the placements in memory: 64 MiB of keys.
	maxPlaced     = 1 << 16
	maxPlacedKeys = 1 << 23
	// placedPerWrite and keysPerWrite bound the prompts of one write. A server takes some 0.2 s for so many keys. A
	// longer prompt has a write of its own.
	placedPerWrite = 64
	keysPerWrite   = 1 << 15
	// maxAbsent is about how many workers that left are remembered: they may come back as another process.
	maxAbsent = 1024
	// identifyTime is Placements.patience: three questions about load, by which a router learns when a process began.
	identifyTime = 3 * time.Second
	// periods is how many periods are in the TTL.
	periods = 4
)

// NewPlacements returns Placements. It connects to nothing before Run.
func NewPlacements(cfg Config, parts PlacementsParts) *Placements {
	return &Placements{config: cfg, parts: parts, names: newNames(cfg), problem: newProblem(parts.Log, cfg), wake: make(chan struct{}, 1),
		sending: map[uint64]placed{}, seen: map[string]sighting{}, patience: identifyTime}
}

// Stats returns the figures of learned placements.
func (p *Placements) Stats() Stats {
	return Stats{PlacementsWritten: p.counts.written.Load(), PlacementsDropped: p.counts.dropped.Load()}
}

// Placed is a method of warmpath.Observer.
func (p *Placements) Placed(d *warmpath.Decision) {
	if d.FromText || d.Candidates[d.Chosen].Trust != fleet.TrustApproximate {
		return
	}
	keys, size := d.SentKeys(nil)
	if len(keys) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sending)+len(p.waiting) >= maxPlaced || p.keys+len(keys) > maxPlacedKeys {
		p.counts.dropped.Add(1)
		return
	}
	p.keys += len(keys)
	p.sending[d.ID()] = placed{worker: d.Worker.URL, id: d.Worker.ID, incarnation: d.Worker.Incarnation, rank: d.Rank, size: size, keys: keys}
}

// PrefillCompleted is a method of warmpath.Observer.
func (p *Placements) PrefillCompleted(id uint64) { p.sent(id, true) }

// Freed is a method of warmpath.Observer.
func (p *Placements) Freed(id uint64, e warmpath.Ending) {
	p.sent(id, !e.Unsent && e.Outcome == fleet.OutcomeServed)
}

// sent lets a prompt be written, or forgets it if it is not in the worker's cache.
func (p *Placements) sent(id uint64, cached bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, ok := p.sending[id]
	if !ok {
		return
	}
	delete(p.sending, id)
	if !cached {
		p.keys -= len(one.keys)
		return
	}
	p.waiting = append(p.waiting, one)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// queued returns how many prompts wait.
func (p *Placements) queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// take returns prompts for one write.
func (p *Placements) take() []placed {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, keys := 0, 0
	for n < min(len(p.waiting), placedPerWrite) && (n == 0 || keys+len(p.waiting[n].keys) <= keysPerWrite) {
		keys += len(p.waiting[n].keys)
		n++
	}
	some := p.waiting[:n:n]
	p.keys -= keys
	if p.waiting = p.waiting[n:]; len(p.waiting) == 0 {
		p.waiting = nil
	}
	return some
}

// putBack lets prompts wait again, behind all others.
func (p *Placements) putBack(early []placed) {
	if len(early) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range early {
		p.keys += len(one.keys)
	}
	p.waiting = append(p.waiting, early...)
}

// Run writes until ctx ends. While the server does not answer, it drops what comes. It returns nil.
func (p *Placements) Run(ctx context.Context) error {
	keepTrying(ctx, p.session, func(waiting context.Context, err error) {
		p.problem.tell("learned placements are not shared, trying again", err)
		for waiting.Err() == nil {
			select {
			case <-p.wake:
				p.drop()
			case <-waiting.Done():
			}
		}
	})
	return nil
}

// drop forgets what waits: it is not worth much later.
func (p *Placements) drop() {
	for some := p.take(); len(some) > 0; some = p.take() {
		p.counts.dropped.Add(int64(len(some)))
	}
}

func (p *Placements) session(ctx context.Context) error {
	client, err := p.config.orderedClient(p.parts.Network)
	if err != nil {
		return err
	}
	defer client.Close()
	scripts, err := loadScripts(ctx, client)
	if err != nil {
		return err
	}
	tick := time.NewTicker(p.config.Lease / beatsPerLease)
	defer tick.Stop()
	for {
		// Prompts that come meanwhile, and those that are put back, wait for the next round.
		for left, first := p.queued(), true; left > 0 || first; first = false {
			some := p.take()
			left -= len(some)
			if err := p.share(ctx, client, scripts, some); err != nil {
				return err
			}
		}
		select {
		case <-p.wake:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// share writes some prompts. It looks for workers that began anew before each write: under load there is no other time.
func (p *Placements) share(ctx context.Context, client valkey.Client, scripts map[string]string, some []placed) error {
	if err := p.forgetRestarted(ctx, client, scripts); err != nil {
		p.counts.dropped.Add(int64(len(some)))
		return err
	}
	present, holders, early := p.holders(some)
	p.putBack(early)
	p.counts.dropped.Add(int64(len(some) - len(present) - len(early)))
	if len(present) == 0 {
		return nil
	}
	if err := p.write(ctx, client, scripts, present, holders); err != nil {
		p.counts.dropped.Add(int64(len(present)))
		return err
	}
	p.counts.written.Add(int64(len(present)))
	p.problem.over()
	return nil
}

// forgetRestarted takes the slots of workers away that began anew, with an empty cache. It is needed for engines that
// do not say which process answers: their slots would go on counting. If the present process is known, its own slots
// stay, because a router that found it earlier has written them.
func (p *Placements) forgetRestarted(ctx context.Context, client valkey.Client, scripts map[string]string) error {
	snap := p.parts.Fleet.Snapshot()
	for _, w := range snap.Workers() {
		before, known := p.seen[w.URL]
		if known && before.incarnation == w.Incarnation {
			continue
		}
		if known {
			present := ""
			if signs, _, _ := p.parts.Fleet.Signs(w.ID); signs.Started > 0 { // a seed may be one that an argument gave
				present = processName(signs)
			}
			if err := p.call(ctx, client, scripts[forgetPlacedScript], w.URL, present).Error(); err != nil {
				return fmt.Errorf("forget the placements at a worker that began anew: %w", err)
			}
		}
		p.seen[w.URL] = sighting{w.Incarnation, time.Now()}
	}
	if len(p.seen) > 2*len(snap.Workers())+maxAbsent {
		present := map[string]sighting{}
		for _, w := range snap.Workers() {
			present[w.URL] = p.seen[w.URL]
		}
		p.seen = present
	}
	return nil
}

// call calls a script about the slots of learned placements.
func (p *Placements) call(ctx context.Context, client valkey.Client, script string, args ...string) valkey.ValkeyResult {
	return client.Do(ctx, client.B().Evalsha().Sha1(script).Numkeys(1).Key(p.names.placed(p.parts.TTL)).Arg(args...).Build())
}

// write writes some prompts under the slots that their holders have in the present period.
func (p *Placements) write(ctx context.Context, client valkey.Client, scripts map[string]string, some []placed, holders []string) error {
	series, floor, slots, err := p.slots(ctx, client, scripts[placedScript], holders)
	if err != nil {
		return err
	}
	n := p.names.records(series, 'l')
	ttl := strconv.FormatInt(p.parts.TTL.Milliseconds(), 10)
	var cmds valkey.Commands
	for i, one := range some {
		for from := 0; from < len(one.keys); from += rowLength {
			o := op{slot: slots[i], add: true, n: uint8(min(len(one.keys)-from, rowLength))}
			copy(o.keys[:], one.keys[from:])
			keys := o.appendNames(nil, n)
			cmds = append(cmds, client.B().Evalsha().Sha1(scripts[applyScript]).Numkeys(int64(len(keys))).Key(keys...).Arg(ttl, floor, o.argument()).Build())
		}
	}
	for _, r := range client.DoMulti(ctx, cmds...) {
		if err := r.Error(); err != nil {
			return fmt.Errorf("write learned placements: %w", err)
		}
	}
	return nil
}

// holders returns the prompts to write, and what placedHolder says of each one's holder. It leaves out prompts at
// workers that left or began anew since: such a prompt is in no cache. early are prompts at a worker that is new, and
// whose process is not known yet: written without its process, they would not count once it is known.
func (p *Placements) holders(some []placed) (present []placed, names []string, early []placed) {
	for _, one := range some {
		signs, incarnation, ok := p.parts.Fleet.Signs(one.id)
		if !ok || incarnation != one.incarnation {
			continue
		}
		if signs.Started == 0 && signs.Seed == 0 && time.Since(p.seen[one.worker].since) < p.patience {
			early = append(early, one)
			continue
		}
		present, names = append(present, one), append(names, placedHolder(processName(signs), one.rank, one.size, p.parts.Algorithm, one.worker))
	}
	return present, names, early
}

// slots returns the slot of each holder in the present period, the series of these slots, and the lowest slot that
// counts, as scripts take it.
func (p *Placements) slots(ctx context.Context, client valkey.Client, script string, holders []string) (series, floor string, slots []uint32, err error) {
	var fresh [seriesBytes]byte
	rand.Read(fresh[:]) // never fails
	args := append([]string{string(fresh[:]), strconv.FormatUint(uint64(p.names.lastSlot), 10), strconv.FormatInt(periodOf(p.parts.TTL).Milliseconds(), 10), strconv.Itoa(periods)}, holders...)
	answer, err := p.call(ctx, client, script, args...).ToArray()
	if err != nil {
		return "", "", nil, fmt.Errorf("get slots for learned placements: %w", err)
	}
	if len(answer) != 2+len(holders) {
		return "", "", nil, fmt.Errorf("get slots for learned placements: %d values instead of %d", len(answer), 2+len(holders))
	}
	if series, err = answer[0].ToString(); err != nil || len(series) != seriesBytes {
		return "", "", nil, fmt.Errorf("get slots: %q is not of this program: delete it", p.names.placed(p.parts.TTL))
	}
	for _, a := range answer[1:] {
		slot, err := a.AsInt64()
		if err != nil || slot < 0 || slot > int64(p.names.lastSlot) {
			return "", "", nil, fmt.Errorf("get slots: %q is not of this program: delete it", p.names.placed(p.parts.TTL))
		}
		slots = append(slots, uint32(slot))
	}
	return series, string(appendSlot(nil, slots[0])), slots[1:], nil
}

// periodOf returns the length of a period.
func periodOf(ttl time.Duration) time.Duration { return max(ttl/periods, time.Millisecond) }

// placedHolder names a holder of learned placements at the server. Each field but the process is as it is in a
// description. The URL comes last, because it may have any character.
func placedHolder(process string, rank, size int, a block.Algorithm, worker string) string {
	return fmt.Sprintf("%s %d %d %s %s", process, rank, size, a, worker)
}

// processName names a worker's process as every router does that asks it: the start in Unix milliseconds, and the
// random number that the process drew when it began; 0 is not known. A worker's Incarnation is no name: each router
// counts its own.
func processName(s fleet.Signs) string {
	return fmt.Sprintf("%.0f/%d", s.Started*1000, s.Seed)
}
