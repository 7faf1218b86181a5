package gateway

import (
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/queue"
)

// Line is what waits for the workers of one base model.
type Line struct {
	Model    string
	Requests int
	Bytes    int64
	Oldest   time.Time // when the one that waits longest came; zero when none waits
	Tenants  []queue.Share
}

// UseQueue makes cfg, which has passed Validate, count from now on: for those that wait too, which are put in its order. Where it is
// off nobody comes to wait any more, and those that wait are served.
func (g *Gateway) UseQueue(cfg queue.Config) { g.waiting.use(cfg) }

// Queue returns the lines that requests wait in or have waited in, by model, and the order they are served in: queue.Off
// where none wait.
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
