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
	sides   [2]side  // of the tables that are looked up
	first   []string // for each side and row, the name of the record of its first block
	names   []string
	values  []string // for each name, its value; "" is none
	moments []moment
	asked   bool // the server was asked
}

// side is what a lookup finds in one table.
type side struct {
	t       *table
	held    [][]uint64 // for each seat, what its holder has of each block; empty: nothing
	seen    []int      // the seats that are not empty
	alive   []int      // the seats that have all blocks so far
	covered []int      // for each row, how many blocks the first record has
	last    int        // how many rows the second question is about
}

// run looks up the records of the first blocks of all rows. The second time it looks up, one by one, the blocks that
// these records do not have. It leaves out rows that no holder reaches. Each of the two questions is about all tables.
func (l *lookup) run(ctx context.Context, r *Reader, client valkey.Client, q *warmpath.Lookup, tables ...*table) error {
	sides := l.sides[:len(tables)]
	rows := rowsOf(q.Keys)
	l.first = l.first[:0]
	for i, t := range tables {
		sides[i].reset(t, rows)
		for row := range rows {
			l.first = append(l.first, t.names.record(q.Keys[row*rowLength], q.Keys[row*rowLength]))
		}
	}
	defer l.forget(sides)
	if err := l.fetchFirst(ctx, r, client); err != nil {
		return err
	}
	for i := range sides {
		sides[i].begin(r, q, l.values[i*rows:(i+1)*rows])
	}
	l.names = l.names[:0]
	for i := range sides {
		l.names = sides[i].appendRest(l.names, q)
	}
	if len(l.names) > 0 {
		if err := l.fetch(ctx, r, client); err != nil {
			return err
		}
		values := l.values
		for i := range sides {
			for row := range sides[i].last {
				values = sides[i].walk(r, q, row, values)
			}
		}
	}
	for i := range sides {
		sides[i].match(q)
	}
	return nil
}

// row returns the keys of the i-th row.
func row(keys []block.Key, i int) []block.Key {
	return keys[i*rowLength : min((i+1)*rowLength, len(keys))]
}

func (s *side) reset(t *table, rows int) {
	for len(s.held) < len(t.seats) {
		s.held = append(s.held, nil)
	}
	for len(s.covered) < rows {
		s.covered = append(s.covered, 0)
	}
	s.t, s.seen, s.covered = t, s.seen[:0], s.covered[:rows]
}

// forget drops what the lookup holds of the server's answers and of the reader's tables.
func (l *lookup) forget(sides []side) {
	for i := range sides {
		sides[i].forget()
	}
	clear(l.values)
	clear(l.first)
	clear(l.names)
}

func (s *side) forget() {
	for _, at := range s.seen {
		clear(s.held[at])
		s.held[at] = s.held[at][:0]
	}
	s.t = nil
}

// begin takes the values of the records of the rows' first blocks.
func (s *side) begin(r *Reader, q *warmpath.Lookup, values []string) {
	for i, value := range values {
		s.covered[i] = s.fill(r, q, value, i*rowLength, min((i+1)*rowLength, len(q.Keys)))
	}
	if s.last = len(s.covered); !s.t.sparse {
		s.last = s.reached()
	}
}

// appendRest appends the names of the records that could have the blocks that the first records do not have.
func (s *side) appendRest(names []string, q *warmpath.Lookup) []string {
	for i := range s.last {
		keys := row(q.Keys, i)
		for o := max(s.covered[i], 1); o < len(keys); o++ {
			names = append(names, s.t.names.record(keys[0], keys[o]))
		}
	}
	return names
}

// match appends to q.Matches what the holders have, in their order.
func (s *side) match(q *warmpath.Lookup) {
	before := len(q.Matches)
	for _, at := range s.seen {
		if m := s.t.seats[at].measure.Match(s.held[at]); m.Blocks > 0 || m.Full > 0 {
			m.Holder = s.t.seats[at].holder
			q.Matches = append(q.Matches, m)
		}
	}
	sortMatches(q.Matches[before:])
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
	l.asked = true
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
func (s *side) fill(r *Reader, q *warmpath.Lookup, value string, lo, hi int) int {
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
		at := s.t.slotFor(slot, q)
		if at < 0 {
			continue
		}
		held := s.held[at]
		if len(held) == 0 {
			if cap(held) < len(q.Keys) {
				held = make([]uint64, len(q.Keys))
			}
			held = held[:len(q.Keys)]
			s.held[at] = held
			s.seen = append(s.seen, at)
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
// script. It takes their values from the front of values, and returns the rest.
func (s *side) walk(r *Reader, q *warmpath.Lookup, i int, values []string) (rest []string) {
	keys := row(q.Keys, i)
	lo := i * rowLength
	from := max(s.covered[i], 1)
	for o := from; o < len(keys); {
		o += max(s.fill(r, q, values[o-from], lo+o, lo+len(keys)), 1)
	}
	return values[max(len(keys)-from, 0):]
}

// reached returns how many rows may have blocks that count, after the first records are known, if a holder's blocks
// count only without a gap from the first block on.
func (s *side) reached() int {
	s.alive = append(s.alive[:0], s.seen...)
	for i, n := range s.covered {
		lo := i * rowLength
		s.alive = slices.DeleteFunc(s.alive, func(at int) bool { return slices.Contains(s.held[at][lo:lo+n], 0) })
		if n == 0 || len(s.alive) == 0 {
			return i
		}
	}
	return len(s.covered)
}
