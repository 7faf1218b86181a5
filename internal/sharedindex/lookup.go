package sharedindex

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
)

// lookup is the memory of one lookup.
type lookup struct {
	held    [][]uint64 // for each seat, what its holder has of each block; empty: nothing
	seen    []int      // the seats that are not empty
	alive   []int      // the seats that have all blocks so far
	first   []string   // for each row, the name of the record of its first block
	covered []int      // for each row, how many blocks the first record has
	names   []string
	values  []string // for each name, its value; "" is none
	moments []moment
}

// run looks up the records of the first blocks of all rows. The second time it looks up, one by one, the blocks that
// these records do not have. It leaves out rows that no holder reaches.
func (l *lookup) run(ctx context.Context, r *Reader, client valkey.Client, t *table, q *warmpath.Lookup) error {
	l.reset(len(t.seats), rowsOf(q.Keys))
	defer l.forget()
	for i := range l.covered {
		l.first = append(l.first, t.names.record(q.Keys[i*rowLength], q.Keys[i*rowLength]))
	}
	if err := l.fetchFirst(ctx, r, client); err != nil {
		return err
	}
	for i, value := range l.values {
		l.covered[i] = l.fill(r, t, q, value, i*rowLength, min((i+1)*rowLength, len(q.Keys)))
	}
	last := len(l.covered)
	if !t.sparse {
		last = l.reached()
	}
	l.names = l.names[:0]
	for i := range last {
		keys := row(q.Keys, i)
		for o := max(l.covered[i], 1); o < len(keys); o++ {
			l.names = append(l.names, t.names.record(keys[0], keys[o]))
		}
	}
	if len(l.names) > 0 {
		if err := l.fetch(ctx, r, client); err != nil {
			return err
		}
		next := 0
		for i := range last {
			l.walk(r, t, q, i, &next)
		}
	}
	for _, s := range l.seen {
		if m := t.seats[s].measure.Match(l.held[s]); m.Blocks > 0 || m.Full > 0 {
			m.Holder = t.seats[s].holder
			q.Matches = append(q.Matches, m)
		}
	}
	sortMatches(q.Matches)
	return nil
}

// row returns the keys of the i-th row.
func row(keys []block.Key, i int) []block.Key {
	return keys[i*rowLength : min((i+1)*rowLength, len(keys))]
}

func (l *lookup) reset(seats, rows int) {
	for len(l.held) < seats {
		l.held = append(l.held, nil)
	}
	for len(l.covered) < rows {
		l.covered = append(l.covered, 0)
	}
	l.seen, l.first, l.covered = l.seen[:0], l.first[:0], l.covered[:rows]
}

// forget drops what the lookup holds of the server's answers.
func (l *lookup) forget() {
	for _, s := range l.seen {
		clear(l.held[s])
		l.held[s] = l.held[s][:0]
	}
	clear(l.values)
	clear(l.first)
	clear(l.names)
}

// fetchFirst gets the values of l.first, from the cache or from the server.
func (l *lookup) fetchFirst(ctx context.Context, r *Reader, client valkey.Client) error {
	if r.cache.half == 0 {
		l.names = append(l.names[:0], l.first...)
		return l.fetch(ctx, r, client)
	}
	values := make([]string, len(l.first))
	l.names, l.moments = l.names[:0], l.moments[:0]
	for i, name := range l.first {
		value, ok, at := r.cache.get(name)
		if ok {
			values[i] = value
			continue
		}
		l.names, l.moments = append(l.names, name), append(l.moments, at)
	}
	r.counts.hits.Add(int64(len(l.first) - len(l.names)))
	r.counts.misses.Add(int64(len(l.names)))
	if len(l.names) > 0 {
		if err := l.fetch(ctx, r, client); err != nil {
			return err
		}
		next := 0
		for i, name := range l.first {
			if next < len(l.names) && l.names[next] == name {
				if values[i] = l.values[next]; values[i] != "" {
					r.cache.put(name, values[i], l.moments[next])
				}
				next++
			}
		}
	}
	l.values = values
	return nil
}

// fetch gets the values of l.names from the server, by one question. In a cluster it is one for each hash tag, all at
// the same time.
func (l *lookup) fetch(ctx context.Context, r *Reader, client valkey.Client) error {
	r.counts.roundTrips.Add(1)
	l.values = l.values[:0]
	if !r.config.Cluster {
		return l.add(client.Do(ctx, client.B().Mget().Key(l.names...).Build()), len(l.names))
	}
	var cmds valkey.Commands
	var sizes []int
	end := len(r.names.prefix) + len("b{xx}")
	for from := 0; from < len(l.names); {
		to := from + 1
		for to < len(l.names) && strings.HasPrefix(l.names[to], l.names[from][:end]) {
			to++
		}
		cmds, sizes = append(cmds, client.B().Mget().Key(l.names[from:to]...).Build()), append(sizes, to-from)
		from = to
	}
	for i, res := range client.DoMulti(ctx, cmds...) {
		if err := l.add(res, sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// add appends the n values of an answer to l.values.
func (l *lookup) add(res valkey.ValkeyResult, n int) error {
	list, err := res.ToArray()
	if err != nil {
		return err
	}
	if len(list) != n {
		return fmt.Errorf("the server answered %d values instead of %d", len(list), n)
	}
	for i := range list {
		value, err := list[i].ToString()
		if err != nil && !valkey.IsValkeyNil(err) {
			value = "?" // no value of ours
		}
		l.values = append(l.values, value)
	}
	return nil
}

// fill adds what a record says about the blocks from lo to hi (exclusive), given the record's value. lo is the record's
// first block. It returns how many of the blocks the record has; 0 if there is no record.
func (l *lookup) fill(r *Reader, t *table, q *warmpath.Lookup, value string, lo, hi int) int {
	if value == "" {
		return 0
	}
	rec, ok := decodeRecord(value)
	if !ok {
		r.counts.invalid.Add(1)
		return 0
	}
	n := rec.follows(q.Keys[lo:hi])
	for i := range len(rec.entries) / entryBytes {
		slot, plane, mask := rec.entry(i)
		if plane > maxPlane {
			continue
		}
		s := t.slotFor(slot, q)
		if s < 0 {
			continue
		}
		held := l.held[s]
		if len(held) == 0 {
			if cap(held) < len(q.Keys) {
				held = make([]uint64, len(q.Keys))
			}
			held = held[:len(q.Keys)]
			l.held[s] = held
			l.seen = append(l.seen, s)
		}
		for o := range n {
			if mask>>o&1 != 0 {
				held[lo+o] |= 1 << plane
			}
		}
	}
	return n
}

// walk goes through the blocks of the i-th row that its first record does not have, in the same way as the writers'
// script. next is the place of the next value of l.values.
func (l *lookup) walk(r *Reader, t *table, q *warmpath.Lookup, i int, next *int) {
	keys := row(q.Keys, i)
	lo := i * rowLength
	from := max(l.covered[i], 1)
	values := l.values[*next : *next+max(len(keys)-from, 0)]
	*next += len(values)
	for o := from; o < len(keys); {
		o += max(l.fill(r, t, q, values[o-from], lo+o, lo+len(keys)), 1)
	}
}

// reached returns how many rows may have blocks that count, after the first records are known, if a holder's blocks
// count only without a gap from the first block on.
func (l *lookup) reached() int {
	l.alive = append(l.alive[:0], l.seen...)
	for i, n := range l.covered {
		lo := i * rowLength
		l.alive = slices.DeleteFunc(l.alive, func(s int) bool { return slices.Contains(l.held[s][lo:lo+n], 0) })
		if n == 0 || len(l.alive) == 0 {
			return i
		}
	}
	return len(l.covered)
}
