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
