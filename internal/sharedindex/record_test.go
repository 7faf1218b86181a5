package sharedindex

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// FuzzRecord lets a lookup read any value of a record. It must neither panic nor claim more blocks than it was asked.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x01\x00\x00\x01"), uint8(1))
	f.Add([]byte("\x02abcd\x00\x00\x01\x3b\xff\xff"), uint8(20))
	f.Add([]byte("\x10"), uint8(40))
	reader := NewReader(DefaultConfig(), ReaderParts{})
	measure := kvindex.NewMeasure(16, []kvindex.GroupStats{{}}, false, false)
	table := &table{seats: []seat{{blockSize: 16, algorithm: block.XXH3.String(), measure: measure}}, bySlot: map[uint32]int{1: 0}}
	f.Fuzz(func(t *testing.T, value []byte, n uint8) {
		q := warmpath.Lookup{BlockSize: 16, Algorithm: block.XXH3, Keys: make([]block.Key, max(n, 1))}
		l := new(side)
		l.reset(table, rowsOf(q.Keys))
		hi := min(len(q.Keys), rowLength)
		if got := l.fill(reader, &q, string(value), 0, hi); got < 0 || got > hi {
			t.Fatalf("%d of %d blocks", got, hi)
		}
		l.reached()
		for _, s := range l.seen {
			if m := measure.Match(l.held[s]); int(m.Blocks) > hi {
				t.Fatalf("%d of %d blocks", m.Blocks, hi)
			}
		}
		l.forget()
	})
}

// FuzzDescription decodes anything as a writer's description.
func FuzzDescription(f *testing.F) {
	f.Add(`{"version":1,"writer":"a","serial":1,"holders":[{"url":"http://a","rank":0,"slot":3,"block_size":16,"trust":"exact","groups":[{"group":0,"attention":"full"}]}]}`)
	f.Add(`{"version":1,"holders":[{"groups":[{"attention":"sliding_window","window":-9223372036854775808,"block_size":9223372036854775807}]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := decodeDescription(text)
		if err != nil {
			return
		}
		for i := range d.Holders {
			d.Holders[i].measure().Match(make([]uint64, 40))
		}
	})
}

func TestRecordsOfARowAreAtOneShard(t *testing.T) {
	n := names{prefix: "p:", series: "\x00\n}{"}
	for range 1000 {
		first, key := block.Key(rand.Uint64()), block.Key(rand.Uint64())
		name := n.record(first, key)
		head, rest, _ := strings.Cut(name, "{")
		hash, _, ok := strings.Cut(rest, "}")
		if head != "p:b" || !ok || len(hash) != 2 || hash != tag(first) || len(name) != len("p:b{xx}")+seriesBytes+8 {
			t.Fatalf("%q", name)
		}
	}
}

func TestTheCacheKeepsNothingThatChangedMeanwhile(t *testing.T) {
	c := newCache(1 << 20)
	_, ok, before := c.get("a")
	c.put("a", "1", before)
	if v, ok2, _ := c.get("a"); ok || !ok2 || v != "1" {
		t.Errorf("%q %v", v, ok2)
	}
	c.drop([]string{"a"})
	c.put("a", "1", before)
	if _, ok, _ := c.get("a"); ok {
		t.Error("kept a value that was read before it changed")
	}
	_, _, now := c.get("a")
	c.clear()
	c.put("a", "1", now)
	if _, ok, _ := c.get("a"); ok {
		t.Error("kept a value that was read before everything was dropped")
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	c := newCache(1 << 16)
	for i := range 100_000 {
		name := string(binaryName(i))
		_, _, at := c.get(name)
		c.put(name, strings.Repeat("x", 100), at)
	}
	if n := len(c.young) + len(c.old); n*(100+8+entryCost) > 1<<16+1000 || n < 100 {
		t.Errorf("%d entries", n)
	}
}

func binaryName(i int) []byte {
	return []byte{byte(i), byte(i >> 8), byte(i >> 16), 0, 0, 0, 0, byte(i)}
}
