package main

import (
	"slices"
	"testing"
	"time"
)

// rowsForTest returns a small trace: 60 requests of growing conversations. They do not all fit in the pools of the
// test, so the engines must evict.
func rowsForTest() []row {
	var rows []row
	for i := range 60 {
		ids := []int{0}
		for j := range i%7 + 1 {
			ids = append(ids, 1+i%5*10+j)
		}
		rows = append(rows, row{Timestamp: float64(i * 100), OutputLength: 20 + i%3*20, IDs: ids})
	}
	return rows
}

var smallShape = shape{Holders: 3, BlockSize: 16, Blocks: 40, Length: 2, Duplication: 2, Speedup: 10, Seed: 42}

func TestCorpusIsOrderedAndRepeatable(t *testing.T) {
	c, err := build(rowsForTest(), smallShape)
	if err != nil {
		t.Fatal(err)
	}
	again, err := build(rowsForTest(), smallShape)
	if err != nil {
		t.Fatal(err)
	}
	if c.sum != again.sum {
		t.Error("made twice, two corpora")
	}
	if c.requests != 120 || c.events[stored] == 0 || c.events[removed] == 0 {
		t.Errorf("%d requests, %d stored, %d removed events", c.requests, c.events[stored], c.events[removed])
	}
	if !slices.IsSortedFunc(c.operations, before) {
		t.Error("operations are out of order")
	}
	ends := make([]float64, smallShape.Holders)
	for _, o := range c.operations {
		if o.at < 0 || o.at > 1 {
			t.Fatalf("an operation at %v", o.at)
		}
		ends[o.holder] = o.at
	}
	for h, end := range ends {
		if end != 1 {
			t.Errorf("holder %d ends at %v of the window", h, end)
		}
	}
}

func TestReplayDoesEverythingOnceAndEndsRight(t *testing.T) {
	c, err := build(rowsForTest(), smallShape)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	set := settings{Lanes: 4, EventWorkers: 2, Spin: 50 * time.Microsecond}
	tr := trial{corpus: c, settings: set, window: 300 * time.Millisecond, asked: asked}
	if err := tr.run(); err != nil {
		t.Fatal(err)
	}
	r := tr.harvest()
	// A busy machine may issue operations late, which is a failure that begins with "issued". No other failure is allowed.
	for _, reason := range r.FailureReasons {
		if len(reason) < 6 || reason[:6] != "issued" {
			t.Error(reason)
		}
	}
	if r.LogicalOps != c.requests+r.Events || r.BlockOps != c.blocks() || r.Memberships == 0 {
		t.Errorf("counts %+v", r)
	}
	if n, wrong := tr.check(); n != c.requests || wrong != 0 {
		t.Errorf("end state: %d questions, %d wrong", n, wrong)
	}
}
