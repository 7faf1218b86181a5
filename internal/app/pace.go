package app

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// paceEvery is the time between two comparisons of the paces, for the log. A pace is a factor: how much slower a rank
// is than the other ranks of its kind. For operators a log line may be 10 s late, and a pace that is used for less than
// 10 s is not important.
const paceEvery = 10 * time.Second

// believed says for each rank whether predictions use the rank's own pace.
type believed map[ranked]bool

// ranked is a rank of the worker at a URL.
type ranked struct {
	url  string
	rank int
}

// watchPaces logs when a worker's own pace begins to be used in predictions, and when it is no longer used.
func (a *App) watchPaces(ctx context.Context) error {
	ticker := time.NewTicker(paceEvery)
	defer ticker.Stop()
	for known := (believed{}); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			known.look(a.fleet.Snapshot(), a.log)
		}
	}
}

// look compares b with the present paces, logs the differences, and updates b. A worker that left is forgotten.
func (b believed) look(s *fleet.Snapshot, log *slog.Logger) {
	present := map[ranked]bool{}
	for _, w := range s.Workers() {
		for _, h := range w.Holders {
			at, p := ranked{w.URL, s.Rank(h)}, s.Pace(h)
			present[at] = true
			if p.Believed != b[at] {
				b[at] = p.Believed
				tellPace(log, at, &p)
			}
		}
	}
	maps.DeleteFunc(b, func(at ranked, _ bool) bool { return !present[at] })
}

// tellPace logs that a rank's own pace begins to be used, or is no longer used.
func tellPace(log *slog.Logger, at ranked, p *fleet.Pace) {
	message := "the worker's own pace is no longer used: predictions use the times of the worker's kind"
	switch {
	case p.Believed && p.Factor > 1:
		message = "the worker is slower than others of its kind: predictions use the worker's own pace"
	case p.Believed:
		message = "the worker is faster than others of its kind: predictions use the worker's own pace"
	}
	about := []any{"worker", at.url, "rank", at.rank, "pace", hundredths(p.Factor)}
	if p.Measured > 0 {
		about = append(about, "measured", hundredths(p.Measured), "low", hundredths(p.Low), "high", hundredths(p.High))
	}
	log.Info(message, about...)
}

// hundredths rounds a factor for the log.
func hundredths(factor float64) float64 { return math.Round(factor*100) / 100 }
