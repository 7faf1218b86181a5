package replica

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// kind is a kind of lines in the log.
type kind struct {
	about  string
	most   int    // lines in a minute
	advice string // for an operator, if there were more; "": the log does not say that there were more
}

// once is a kind of which the log gets one line a minute: the next one says the same.
func once(about string) kind { return kind{about: about, most: 1} }

// lineUnknown is the kind of the lines about workers that this router does not know. A line for which there is no room
// comes later, so nothing is missing.
var lineUnknown = kind{about: "workers of other routers that are not known", most: 60}

// linePanic is the kind of the lines about messages that made the router panic.
var linePanic = kind{about: "messages that made the router panic", most: 60,
	advice: "please report the lines about panics that are in this log: they have the causes"}

// lineRouter is the kind of the lines about routers that come and go. Without a key, somebody who may publish in the
// group can make routers come and go with each message. There is room for a network that fails twice in a minute: all
// routers go, and come again.
func (c *Config) lineRouter() kind {
	k := kind{about: "routers that come and go", most: 4 * maxPeers, advice: "does a router restart, or a connection break, again and again?"}
	if c.Key == "" {
		k.advice += " If not, somebody else uses the group: set sync.key_file at all routers"
	}
	return k
}

// lines bounds how many lines of one kind the log gets in a minute. It is safe for concurrent use. The zero value has
// given none.
type lines struct {
	mu       sync.Mutex // guards the fields below
	kinds    map[kind]*line
	reported time.Time // when the log was told last what is missing
}

// line counts the lines of one kind.
type line struct {
	since  time.Time // when the minute of given began
	given  int
	hidden int // since the last report
}

// log logs a line of a kind, unless there were too many of it in this minute. It reports whether it did.
func (l *lines) log(to *slog.Logger, level slog.Level, k kind, text string, args ...any) bool {
	due := l.due(k, time.Now())
	if due {
		to.Log(context.Background(), level, text, args...)
	}
	return due
}

// due reports whether there is room for a line of a kind, and counts it.
func (l *lines) due(k kind, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.kinds[k]
	if c == nil {
		if l.kinds == nil {
			l.kinds = map[kind]*line{}
		}
		c = &line{since: now}
		l.kinds[k] = c
	}
	if now.Sub(c.since) >= warnInterval {
		c.since, c.given = now, 0
	}
	if c.given >= k.most {
		c.hidden++
		return false
	}
	c.given++
	return true
}

// report logs once a minute how many lines were left out.
func (l *lines) report(to *slog.Logger, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.reported) < warnInterval {
		return
	}
	l.reported = now
	for k, c := range l.kinds {
		if c.hidden > 0 && k.advice != "" {
			to.Warn("lines are missing in this log, because there were too many", "about", k.about, "missing", c.hidden, "advice", k.advice)
		}
		c.hidden = 0
	}
}
