package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/queue"
)

// waiting holds the requests of one router in the production queue while all workers are saturated. Requests wait
// without a time limit, because traces do not record when clients give up.
type waiting struct {
	queue   *queue.Queue
	flights map[*queue.Item]*flight
}

// queueOrders are the orders of the production queue that a simulation can use. The other orders need priorities,
// deadlines or tenants, which a workload does not have.
var queueOrders = []string{queue.FCFS, queue.Shortest}

func newWaiting(c *Config) *waiting {
	cfg := queue.DefaultConfig()
	cfg.Order, cfg.MaxRequests = c.QueueOrder, c.Queue
	return &waiting{queue: queue.New(cfg), flights: map[*queue.Item]*flight{}}
}

// hold puts a request into the queue. It returns false if there is no queue or the queue is full.
func (w *world) hold(f *flight, asked *warmpath.Prepared) bool {
	if w.cfg.Queue == 0 {
		return false
	}
	it := &queue.Item{Arrived: epoch + int64(f.arrival)}
	if w.cfg.QueueOrder == queue.Shortest {
		it.Tokens = w.uncached(f, asked)
	}
	line := w.held[f.router]
	// Push cannot shed another waiting request: only the order "fair" sheds requests, and simulations do not use this
	// order.
	if _, refused := line.queue.Push(it, epoch+int64(w.now)); refused != nil {
		return false
	}
	line.flights[it] = f
	return true
}

// uncached returns the number of uncached prompt tokens at the worker with the longest match. The gateway's queue uses
// the same number as a request's cost.
func (w *world) uncached(f *flight, asked *warmpath.Prepared) int {
	d, _ := asked.Explain(context.Background())
	if d == nil {
		return f.req.Input
	}
	defer d.Recycle()
	return d.UncachedTokens()
}

// admitHeld sends a router's waiting requests in the order of the queue, until no worker has room.
func (w *world) admitHeld(router int) {
	line := w.held[router]
	for it := line.queue.Pop(); it != nil; it = line.queue.Pop() {
		f := line.flights[it]
		asked := w.prepare(f)
		placed := w.place(f, asked)
		asked.Recycle()
		if !placed {
			line.queue.Return(it)
			return
		}
		delete(line.flights, it)
		line.queue.Served(it, epoch+int64(w.now))
	}
}

// admitFreed sends waiting requests after a change that may have freed room, other than the end of an answer. Such
// changes are: an engine refused a prompt or handed it over; a worker died, came back or joined; a load report shows
// less load from other routers. Without admitFreed, requests would wait forever if no answer is under way.
func (w *world) admitFreed() {
	for w.freed {
		w.freed = false
		for router := range w.held {
			w.admitHeld(router)
		}
	}
}

func checkOrder(order string) error {
	if slices.Contains(queueOrders, order) {
		return nil
	}
	return fmt.Errorf("queue order %q is neither fcfs nor shortest: workloads tell no priorities, deadlines or tenants", order)
}
