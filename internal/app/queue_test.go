package app_test

import (
	"log/slog"
	"regexp"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/queue"
)

func TestTheQueueIsShownWhileRequestsWaitAndEmptiesItself(t *testing.T) {
	e := engine(t, func(c *mockengine.Config) { c.Speed = 0.3 })
	cfg := settings(e)
	cfg.Routing.MaxRequests, cfg.Queue.Order = 1, queue.Fair
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.exact(1)
	if order := r.queue().Order; order != "fair" {
		t.Errorf("order %s", order)
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() { r.chat("some words") })
	}
	r.wait("requests are seen to wait", func() bool {
		q := r.queue()
		return len(q.Lines) == 1 && q.Lines[0].Requests > 0 && q.Lines[0].Model == "mock" && q.Lines[0].OldestMS > 0 && len(q.Lines[0].Tenants) > 0
	})
	clients.Wait()
	r.wait("nobody waits", func() bool { return r.queue().Lines[0].Requests == 0 })
	r.wait("all are booked", func() bool { return len(r.Telemetry().Last(0)) == 4 })
	text := r.scrape()
	// Three requests wait. On a busy machine, a request may be sent so late that it need not wait: at least one waits.
	for _, want := range []string{`warmpath_queue_requests\{model="mock"\} 0`, `warmpath_queue_bytes\{model="mock"\} 0`, `warmpath_queue_wait_seconds_count\{outcome="routed"\} [123]`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in the scrape", want)
		}
	}
}

func (r *router) queue() admin.Queue {
	var q admin.Queue
	r.adminJSON("/admin/queue", &q)
	return q
}
