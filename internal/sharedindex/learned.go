package sharedindex

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// placedSlots are the slots of learned placements that count.
type placedSlots struct {
	series string
	slots  map[string]uint32 // by "PERIOD HOLDER", see placedHolder
}

// readPlaced reads the slots of learned placements; nil: there are none.
func (r *Reader) readPlaced(ctx context.Context, client valkey.Client) (*placedSlots, error) {
	if r.parts.LearnedTTL <= 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	clock, err := client.Do(ctx, client.B().Time().Build()).AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("read the server's clock: %w", err)
	}
	fields, err := client.Do(ctx, client.B().Hgetall().Key(r.names.placed(r.parts.LearnedTTL)).Build()).AsStrMap()
	if err != nil {
		return nil, fmt.Errorf("read the slots of learned placements: %w", err)
	}
	if len(fields) == 0 || len(clock) != 2 {
		return nil, nil
	}
	seconds, err := strconv.ParseInt(clock[0], 10, 64)
	micros, err2 := strconv.ParseInt(clock[1], 10, 64)
	if err != nil || err2 != nil {
		return nil, fmt.Errorf("read the server's clock: %q is none", clock)
	}
	// The answer is used until the next look. Slots that end before it do not count any more.
	until := time.Unix(seconds, micros*1000).Add(r.config.Lease / beatsPerLease)
	return slotsThatCount(fields, until.UnixMilli()/periodOf(r.parts.LearnedTTL).Milliseconds()), nil
}

// slotsThatCount returns the slots among the fields of the hash that count in a period.
func slotsThatCount(fields map[string]string, period int64) *placedSlots {
	p := &placedSlots{series: fields["series"], slots: map[string]uint32{}}
	for field, value := range fields {
		of, _, more := strings.Cut(field, " ")
		at, err := strconv.ParseInt(of, 10, 64)
		slot, err2 := strconv.ParseUint(value, 10, 32)
		if more && err == nil && err2 == nil && at > period-periods && at <= period && slot > 0 && slot <= maxSlot && len(p.slots) < maxHolders {
			p.slots[field] = uint32(slot)
		}
	}
	return p
}

// learnedTable makes the table of learned placements. Only holders whose caches nobody follows have some. It adds to
// differing what routers with other block keys learned: the blocks of these can not be found.
func (r *Reader) learnedTable(snap *fleet.Snapshot, places map[string]*fleet.Worker, p *placedSlots, k *keyings, differing map[unfound]*holderEntry) *table {
	r.counts.placementHolders.Store(0)
	if p == nil || len(p.slots) == 0 {
		return nil
	}
	t := &table{names: r.names.records(p.series, 'l'), bySlot: map[uint32]int{}}
	seats := map[string]int{} // by holder
	for field, slot := range p.slots {
		_, holder, _ := strings.Cut(field, " ")
		at, known := seats[holder]
		if !known {
			at = -1
			s, ok := r.learnedSeat(snap, places, holder)
			if e := (&holderEntry{Slot: slot, Algorithm: s.algorithm, BlockSize: s.blockSize}); ok && !k.fit(snap.Worker(s.holder), e) {
				differing[unfound{model: snap.Worker(s.holder).Facts.BaseModel(), learned: true}] = e
			} else if ok {
				at = len(t.seats)
				t.seats = append(t.seats, s)
			}
			seats[holder] = at
		}
		if _, twice := t.bySlot[slot]; twice {
			at = -1
		}
		t.bySlot[slot] = at
	}
	r.counts.placementHolders.Store(int64(len(t.seats)))
	if len(t.seats) == 0 {
		return nil
	}
	return t
}

// learnedSeat returns the seat of a holder of learned placements; ok is false if there are none to use.
func (r *Reader) learnedSeat(snap *fleet.Snapshot, places map[string]*fleet.Worker, holder string) (s seat, ok bool) {
	parts := strings.SplitN(holder, " ", 5)
	if len(parts) != 5 {
		return seat{}, false
	}
	rank, err := strconv.Atoi(parts[1])
	size, err2 := strconv.Atoi(parts[2])
	w := places[parts[4]]
	if err != nil || err2 != nil || size < 1 || size > block.MaxSize || w == nil {
		return seat{}, false
	}
	h, ok := w.Rank(rank)
	if !ok {
		return seat{}, false
	}
	if level, _ := snap.Trust(h); level != fleet.TrustApproximate {
		return seat{}, false
	}
	// An earlier process had another cache.
	if signs, _, present := r.parts.Fleet.Signs(w.ID); !present || processName(signs) != parts[0] {
		return seat{}, false
	}
	full := []kvindex.GroupStats{{Attention: block.AttentionFull}}
	return seat{holder: h, blockSize: size, algorithm: parts[3], measure: kvindex.NewMeasure(size, full, false, false)}, true
}

// look looks a prompt up in what writers wrote, and in the learned placements if there are some, at the same time.
func (r *Reader) look(ctx context.Context, l *lookup, client valkey.Client, t *table, q *warmpath.Lookup) error {
	tables := make([]*table, 0, 2)
	if len(t.seats) > 0 {
		tables = append(tables, t)
	}
	if t.learned != nil {
		tables = append(tables, t.learned)
	}
	if len(tables) == 0 {
		return nil
	}
	if err := l.run(ctx, r, client, q, tables...); err != nil || len(tables) == 1 {
		return err
	}
	// Of two matches of a holder the longer one counts.
	slices.SortStableFunc(q.Matches, func(a, b kvindex.Match) int {
		return cmp.Or(cmp.Compare(a.Holder, b.Holder), cmp.Compare(b.Blocks, a.Blocks))
	})
	q.Matches = slices.CompactFunc(q.Matches, func(a, b kvindex.Match) bool { return a.Holder == b.Holder })
	return nil
}
