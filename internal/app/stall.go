package app

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// lastKnown caches the result of fetch. get returns the cached result when fetch takes too long. If fetch waits for a
// lock that is never released, the router still shows the last figures. Its methods may be called from any goroutine.
type lastKnown[T any] struct {
	fetch func() T // set before the first get

	mu      sync.Mutex // guards the fields below; never held while fetching
	value   T
	known   bool          // value was fetched
	begun   time.Time     // when the fetch under way began
	running chan struct{} // closed when the fetch under way ended; nil: there is none
}

// fetchLimit is how long get waits for fetch. A fetch takes microseconds; a busy machine may need more.
const fetchLimit = 250 * time.Millisecond

// get returns current figures. If fetch takes longer than fetchLimit, it returns the last known figures. Without last
// known figures, get waits for telemetry.StallAfter, and then returns the zero value.
func (l *lastKnown[T]) get() T {
	l.mu.Lock()
	if l.running == nil {
		l.running, l.begun = make(chan struct{}), time.Now()
		go l.run(l.running) // ends when fetch returns, that is when the lock that fetch waits for is free
	}
	limit := fetchLimit
	if !l.known {
		limit = telemetry.StallAfter // without a cached result, get waits longer
	}
	running, left := l.running, limit-time.Since(l.begun)
	l.mu.Unlock()
	if left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-running:
		case <-timer.C:
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value
}

func (l *lastKnown[T]) run(done chan struct{}) {
	value := l.fetch()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value, l.known, l.running = value, true, nil
	close(done)
}

// stale returns the age of the figures. It is 0 unless a fetch takes too long.
func (l *lastKnown[T]) stale() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == nil {
		return 0
	}
	if age := time.Since(l.begun); age >= fetchLimit {
		return age
	}
	return 0
}

// stale returns the age of the shown figures of the index and of the event streams.
func (a *App) stale() time.Duration { return max(a.indexes.stale(), a.events.stale()) }

// stalls returns the age of the oldest work of each kind that can stall. It takes no lock that is held during a
// decision or while an event is applied.
func (a *App) stalls() []telemetry.Stall {
	now := time.Now()
	age, who := a.kvfeed.Oldest(now)
	return []telemetry.Stall{
		{What: "decisions", For: a.telemetry.Deciding.Oldest(now)},
		{What: "events", For: age, Who: who},
	}
}

// stalled returns a text that names the work that makes no progress, or "" if there is none.
func (a *App) stalled() string {
	var what []string
	for _, s := range a.stalls() {
		if !s.Stalled() {
			continue
		}
		who := ""
		if s.Who != "" {
			who = " (" + s.Who + ")"
		}
		what = append(what, fmt.Sprintf("%s%s have made no progress for %.0f s", s.What, who, s.For.Seconds()))
	}
	if what == nil {
		return ""
	}
	return "stalled: " + strings.Join(what, "; ")
}

// watchStalls logs the beginning and the end of each stall, and refreshes the last known figures.
func (a *App) watchStalls(ctx context.Context) error {
	ticker := time.NewTicker(telemetry.StallAfter / 4)
	defer ticker.Stop()
	for was := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		a.indexes.get()
		a.events.get()
		switch is := a.stalled(); {
		case is != "" && was == "":
			a.log.Error("no progress: readiness answers 503 until there is progress; please report this", "what", is)
			was = is
		case is == "" && was != "":
			a.log.Info("progress again", "was", was)
			was = ""
		}
	}
}
