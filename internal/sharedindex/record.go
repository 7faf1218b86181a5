package sharedindex

import (
	"cmp"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// A row is 16 consecutive blocks of a chain, from a depth on that is a multiple of 16. A record is the value of one key
// at the server: some consecutive blocks of one row, and which slots have them. A slot is a holder as one writer knows
// it, see book. The key's name has the key of the record's first block. The record's other blocks are a continuation of
// this block; only four bytes of each of their keys are in the record. Other continuations have records of their own.
//
//	byte   blocks: 1 to 16
//	bytes  for each block but the first: the last 4 bytes of its key
//	bytes  entries: slot (3 bytes), plane (1 byte), mask (2 bytes)
//
// The plane is 4 · (place of the cache group) + tier. The mask has bit i for the record's block i. Numbers are
// big-endian. A block is in at most one record of its row, and the same walk from the row's first block finds it in
// the script (see script.go) and in [side.walk].
const (
	rowLength  = kvindex.RowLength
	entryBytes = 6
	markBytes  = 4
	maxPlane   = 4*kvindex.MaxGroups - 1
	// maxRecord is the longest record that is read, in bytes: some ten thousand entries.
	maxRecord = 1 << 16
)

// record is a decoded record.
type record struct {
	blocks  int
	marks   string // four bytes for each block but the first
	entries string
}

// decodeRecord decodes the value of a key. It returns false if the value is none that a writer has written.
func decodeRecord(v string) (r record, ok bool) {
	if len(v) == 0 || len(v) > maxRecord || v[0] == 0 || v[0] > rowLength {
		return record{}, false
	}
	r.blocks = int(v[0])
	head := 1 + markBytes*(r.blocks-1)
	if len(v) < head || (len(v)-head)%entryBytes != 0 {
		return record{}, false
	}
	r.marks, r.entries = v[1:head], v[head:]
	return r, true
}

// follows returns how many of the keys belong to the record's blocks. keys[0] is the record's own key.
func (r *record) follows(keys []block.Key) int {
	n := 1
	for n < r.blocks && n < len(keys) && r.marks[markBytes*(n-1):markBytes*n] == mark(keys[n]) {
		n++
	}
	return n
}

// entry returns the i-th entry.
func (r *record) entry(i int) (slot uint32, plane uint8, mask uint16) {
	e := r.entries[i*entryBytes : (i+1)*entryBytes]
	return uint32(e[0])<<16 | uint32(e[1])<<8 | uint32(e[2]), e[3], uint16(e[4])<<8 | uint16(e[5])
}

// mark returns the bytes of a key that a record has.
func mark(k block.Key) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(k)))
}

// maxSlot is the greatest slot that a record can have.
const maxSlot = 1<<24 - 1

// appendSlot appends the three bytes of a slot.
func appendSlot(to []byte, slot uint32) []byte {
	return append(to, byte(slot>>16), byte(slot>>8), byte(slot))
}

// names makes the names of the server's keys. Names of records have the series in which their entries' slots were given
// out. A series is some random bytes, which the server keeps beside the counter of slots. A server that lost the
// counter, or has no slot left, begins a new series. So a slot never means two holders, however often it is given out,
// and however late a reader or a writer hears of the new series: it reads and writes other records.
type names struct {
	prefix, series string
	kind           byte   // of the records: 'l' for learned placements, and otherwise 'b'; 0 is 'b'
	lastSlot       uint32 // of each series: maxSlot, or less in tests
}

func newNames(cfg Config) names { return names{prefix: cfg.Prefix, lastSlot: maxSlot} }

// records returns the names of the records of a series.
func (n names) records(series string, kind byte) names {
	n.series, n.kind = series, kind
	return n
}

// seriesBytes is the length of the name of a series. A new series begins when the server was emptied or 2^24 slots are
// used up. That is so rare that four random bytes do not name two series that have records at the same time.
const seriesBytes = 4

// record returns the name of a record. first is the key of the first block of the record's row. All records of a row
// have the same hash tag, so that they are at the same server of a cluster: 12 bits of first.
func (n names) record(first, key block.Key) string {
	name := make([]byte, 0, len(n.prefix)+len("b{xx}")+seriesBytes+8)
	name = append(name, n.prefix...)
	name = append(name, cmp.Or(n.kind, 'b'), '{')
	name = append(name, tag(first)...)
	name = append(name, '}')
	name = append(name, n.series...)
	return string(binary.BigEndian.AppendUint64(name, uint64(key)))
}

// tag returns the hash tag of a row.
func tag(first block.Key) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string([]byte{letters[first>>58], letters[first>>52&63]})
}

// slots is the name of a hash with the present series and the last slot that was given out in it.
func (n names) slots() string { return n.prefix + "slots" }

// placed is the name of a hash with the slots of learned placements that count for a TTL. It has the length of a
// period: routers with different TTLs count periods differently, so each TTL has slots of its own.
func (n names) placed(ttl time.Duration) string {
	return n.prefix + "placed:" + strconv.FormatInt(periodOf(ttl).Milliseconds(), 10)
}

// writers is the name of the sorted set of writers, each with the time of its last sign of life.
func (n names) writers() string { return n.prefix + "writers" }

// writer is the name of what a writer says of its holders.
func (n names) writer(id string) string { return n.prefix + "writer:" + id }
