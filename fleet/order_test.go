package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOrdersChangeTheModelsOfOneWorkerAndNoOlderSnapshot(t *testing.T) {
	f := New(Config{})
	base, sql := Model{ID: "m"}, Model{ID: "sql", Root: "/adapters/sql", Parent: "m"}
	a := f.Put("http://a", Facts{Models: []Model{base}})
	b := f.Put("http://b", Facts{Models: []Model{base}})
	before := f.Snapshot()

	f.BeginModelOrder(a, "")
	if w := f.Snapshot().ByID(a); w.ModelOrders != 1 {
		t.Errorf("while the order is under way: %d", w.ModelOrders)
	}
	f.EndModelOrder(a, sql)
	if pool, ok := f.Snapshot().Pool("sql"); !ok || len(pool.Workers) != 1 || pool.Workers[0].ID != a || pool.LoRA != "sql" || pool.Model != "m" {
		t.Errorf("after the load: %+v", pool)
	}
	f.BeginModelOrder(b, "")
	f.EndModelOrder(b, Model{}) // a load that failed
	if diff := cmp.Diff([]Model{base}, f.Snapshot().ByID(b).Facts.Models); diff != "" {
		t.Error(diff)
	}
	loaded := f.Snapshot()
	f.BeginModelOrder(a, "sql")
	if _, ok := f.Snapshot().Pool("sql"); ok {
		t.Error("a worker gets requests for an adapter that is unloaded")
	}
	f.EndModelOrder(a, Model{})
	if _, ok := before.Pool("sql"); ok {
		t.Error("an older snapshot has the adapter")
	}
	if _, ok := loaded.Pool("sql"); !ok {
		t.Error("the snapshot of the time with the adapter lost it")
	}
	f.Put("http://a", Facts{Models: []Model{base}})
	if w := f.Snapshot().ByID(a); w.ModelOrders != 4 {
		t.Errorf("a probe changed the count of orders to %d", w.ModelOrders)
	}
	f.BeginModelOrder(99, "m") // a worker that left
	f.EndModelOrder(99, sql)
}
