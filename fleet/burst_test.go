package fleet_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// Writers may share snapshots, and each sees its own change when its call returns.
func TestWritersSeeTheirChanges(t *testing.T) {
	const workers, writers, rounds = 200, 64, 50
	f := fleet.New(fleet.Config{})
	urls := make([]string, workers)
	for i := range urls {
		urls[i] = fmt.Sprintf("http://w%d", i)
	}
	before := f.Snapshot().Generation()
	ids := f.Expect(append(urls, "http://w0/"), "not probed yet")
	if n := f.Snapshot().Generation() - before; n != 1 || ids[workers] != ids[0] || len(f.Snapshot().Workers()) != workers {
		t.Fatalf("%d snapshots, ids %v", n, ids)
	}
	if w := f.Snapshot().ByID(ids[3]); w.URL != "http://w3" || w.Healthy || w.Ready || w.Why != "not probed yet" {
		t.Fatalf("an expected worker is %+v", w)
	}
	before = f.Snapshot().Generation()
	var all sync.WaitGroup
	for _, id := range ids[:writers] {
		all.Go(func() {
			for i := range rounds {
				draining := i%2 == 0
				f.SetDraining(id, draining)
				if f.Snapshot().ByID(id).Draining != draining {
					t.Errorf("the snapshot does not show that worker %d is draining: %v", id, draining)
					return
				}
			}
		})
	}
	all.Wait()
	if made := f.Snapshot().Generation() - before; made > writers*rounds {
		t.Errorf("%d snapshots for %d changes", made, writers*rounds)
	}
}

// Workers that are present already stay as they are.
func TestAPresentWorkerIsNotExpected(t *testing.T) {
	f := fleet.New(fleet.Config{})
	id := f.Put("http://w", fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
	if ids := f.Expect([]string{"http://w"}, "not probed yet"); ids[0] != id || !f.Snapshot().ByID(id).Ready {
		t.Errorf("ids %v, want %d; worker %+v", ids, id, f.Snapshot().ByID(id))
	}
	f.Remove(id)
	if ids := f.Expect([]string{"http://w"}, "not probed yet"); ids[0] == id || f.Snapshot().ByID(ids[0]).Incarnation != 1 {
		t.Errorf("ids %v after the worker %d left", ids, id)
	}
}

// Several workers leave with one snapshot. Ids of workers that are not there change nothing.
func TestWorkersLeaveTogether(t *testing.T) {
	f := fleet.New(fleet.Config{})
	ids := f.Expect([]string{"http://w0", "http://w1", "http://w2", "http://w3"}, "not probed yet")
	f.Remove(ids[1])
	before := f.Snapshot().Generation()
	f.Remove(ids[3], ids[0], ids[1], ids[3], 99)
	if s := f.Snapshot(); s.Generation() != before+1 || len(s.Workers()) != 1 || s.Workers()[0].ID != ids[2] {
		t.Errorf("%d snapshots, workers %v", s.Generation()-before, s.Workers())
	}
	f.Remove()
	f.Remove(ids[0])
	if n := f.Snapshot().Generation() - before; n != 1 {
		t.Errorf("%d snapshots, though no more worker left", n)
	}
}

// Staged workers come with one snapshot, when they are shown or when the fleet changes otherwise.
func TestStagedWorkersAreShownTogether(t *testing.T) {
	f := fleet.New(fleet.Config{})
	facts := fleet.Facts{Models: []fleet.Model{{ID: "m"}}}
	before := f.Snapshot()
	a, b := f.Stage("http://a", facts), f.Stage("http://b", facts)
	if f.Snapshot() != before {
		t.Error("a staged worker makes a snapshot")
	}
	f.Show()
	if s := f.Snapshot(); s.Generation() != before.Generation()+1 || !s.ByID(a).Ready || !s.ByID(b).Ready {
		t.Errorf("%d snapshots, workers %v", s.Generation()-before.Generation(), s.Workers())
	}
	shown := f.Snapshot()
	if f.Show(); f.Snapshot() != shown {
		t.Error("there is nothing to show, and there is a new snapshot")
	}
	c := f.Stage("http://c", facts)
	if f.SetDraining(a, true); f.Snapshot().ByID(c) == nil {
		t.Error("a later change does not show a staged worker")
	}
}
