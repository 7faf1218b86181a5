package gateway

import (
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/queue"
)

// Line describes the requests that wait for the workers of one base model.
type Line struct {
	Model    string
	Requests int
	Bytes    int64
	Oldest   time.Time // time at which the oldest waiting request came; zero when no request waits
	Tenants  []queue.Share
}

// UseQueue applies cfg from now on; cfg has passed Validate. Requests that already wait are put into the new order. If
// cfg turns the queue off, no further request waits, and the requests that already wait are still served.
func (g *Gateway) UseQueue(cfg queue.Config) { g.waiting.use(cfg) }

// Queue returns the order of the queue, or queue.Off when it is off. It also returns a Line for each base model for
// which a request waits, and for each base model of the fleet for which a request waited before, ordered by model.
func (g *Gateway) Queue() (order string, lines []Line) {
	all := g.waiting.snapshot()
	for base, l := range all {
		l.mu.Lock()
		line := Line{Model: base, Requests: l.queue.Len(), Bytes: l.queue.Bytes(), Tenants: l.queue.Shares()}
		l.mu.Unlock()
		for _, s := range line.Tenants {
			if at := time.Unix(0, s.Oldest); s.Oldest != 0 && (line.Oldest.IsZero() || at.Before(line.Oldest)) {
				line.Oldest = at
			}
		}
		lines = append(lines, line)
	}
	slices.SortFunc(lines, func(a, b Line) int { return strings.Compare(a.Model, b.Model) })
	order = g.waiting.cfg.Load().Order
	if !g.waiting.on() {
		order = queue.Off
	}
	return order, lines
}
