package replica

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxLines bounds the lines of one kind that the log gets in a minute. Routers that restart one after another need far
// fewer. Somebody who may publish in the group can make routers come and go with each message.
const maxLines = 60

// The kinds of lines that are bounded.
const (
	lineRouter     = "routers that come and go"
	lineConnection = "a connection that comes and goes"
	lineUnknown    = "workers of other routers that are not known"
	linePanic      = "messages that made the router panic"
)

// lines bounds how many lines of one kind the log gets. It is safe for concurrent use. The zero value has given none.
type lines struct {
	mu    sync.Mutex // guards kinds
	kinds map[string]*line
}

// line counts the lines of one kind.
type line struct {
	since         time.Time // of the counts
	given, hidden int
}

// log logs a line of a kind, unless there were too many of it in this minute.
func (l *lines) log(to *slog.Logger, level slog.Level, kind, text string, args ...any) {
	if l.due(kind, time.Now()) {
		to.Log(context.Background(), level, text, args...)
	}
}

// due reports whether there is room for a line of a kind, and counts it.
func (l *lines) due(kind string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[string]*line{}
	}
	c := l.kinds[kind]
	if c == nil {
		c = &line{since: now}
		l.kinds[kind] = c
	}
	if c.given >= maxLines {
		c.hidden++
		return false
	}
	c.given++
	return true
}

// report begins a new minute of the kinds whose minute is over, and logs how many lines were left out.
func (l *lines) report(to *slog.Logger, now time.Time) {
	for kind, hidden := range l.over(now) {
		to.Warn("lines are missing in this log, because there were too many", "about", kind, "missing", hidden,
			"advice", "does a router restart all the time, or does somebody else use the group? Set sync.key_file, and sync.user with sync.password_file")
	}
}

// over begins a new minute of the kinds whose minute is over. It returns how many of their lines were left out.
func (l *lines) over(now time.Time) (hidden map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, c := range l.kinds {
		if now.Sub(c.since) < warnInterval {
			continue
		}
		if c.hidden > 0 {
			if hidden == nil {
				hidden = map[string]int{}
			}
			hidden[kind] = c.hidden
		}
		*c = line{since: now}
	}
	return hidden
}
