package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/queue"
)

// waiting is the requests that a router holds while all workers are saturated, in the production queue. Whoever waits does so
// until its turn: traces tell nobody's patience.
type waiting struct {
	queue   *queue.Queue
	flights map[*queue.Item]*flight
}

// queueOrders are those of the production queue that a workload tells enough for: it knows neither priorities nor deadlines nor tenants.
var queueOrders = []string{queue.FCFS, queue.Shortest}

func newWaiting(c *Config) *waiting {
	cfg := queue.DefaultConfig()
	cfg.Order, cfg.MaxRequests = c.QueueOrder, c.Queue
	return &waiting{queue: queue.New(cfg), flights: map[*queue.Item]*flight{}}
}

// hold makes a request wait that no worker has room for; it reports false when the queue is full.
func (w *world) hold(f *flight, req *warmpath.Request) bool {
	if w.cfg.Queue == 0 {
		return false
	}
	it := &queue.Item{Arrived: epoch + int64(f.arrival)}
	if w.cfg.QueueOrder == queue.Shortest {
		it.Tokens = w.uncached(f, req)
	}
	line := w.held[f.router]
	if _, refused := line.queue.Push(it, epoch+int64(w.now)); refused != nil { // only fair sheds
		return false
	}
	line.flights[it] = f
	return true
}

// uncached is how many tokens of a prompt are to be computed where most of it is cached: what the gateway orders by.
func (w *world) uncached(f *flight, req *warmpath.Request) int {
	d, _ := w.main.views[f.router].router.Explain(context.Background(), req)
	if d == nil {
		return len(req.Tokens)
	}
	defer d.Recycle()
	return d.UncachedTokens()
}

// admitHeld sends what a router holds, in order, as long as there is room.
func (w *world) admitHeld(router int) {
	line := w.held[router]
	for it := line.queue.Pop(); it != nil; it = line.queue.Pop() {
		f := line.flights[it]
		req := w.ask(f)
		if !w.place(f, &req) {
			line.queue.Return(it)
			return
		}
		delete(line.flights, it)
		line.queue.Served(it, epoch+int64(w.now))
	}
}

// admitFreed sends what is held where there may be room for another reason than the end of an answer, which tells by itself: an engine
// refused a prompt or handed it over, a worker died, came back or joined, or told that other routers have less there. Else what is
// held waits for ever when no answer is under way any more.
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
