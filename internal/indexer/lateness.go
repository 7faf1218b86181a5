package indexer

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// errLeftAlone means that the index service is left alone, because most of its answers were late. Requests then do not
// wait for it.
var errLeftAlone = errors.New("the index service answers too late, so it is left alone for a while")

// lateness decides when the index service is left alone, because most of its answers are late, and logs it: at most two
// lines a minute, and none while it goes on. It is safe for concurrent use.
type lateness struct {
	network.Lateness

	told atomic.Bool // the log has said that answers are late, and not yet that they come in time again
}

// answered records an answer in time.
func (l *lateness) answered(now time.Time, log *slog.Logger, c *ClientConfig) {
	l.InTime()
	if l.told.Load() && l.Steady(now) && l.told.CompareAndSwap(true, false) {
		log.Info("the index service answers in time again", "service", c.URL)
	}
}

// missed records an answer that did not come in time. rests says that the service is left alone from now on.
func (l *lateness) missed(now time.Time, log *slog.Logger, c *ClientConfig) (rests bool) {
	rest := l.Late(now)
	if rest == 0 {
		return false
	}
	if l.told.CompareAndSwap(false, true) {
		log.Warn(tooLate+": requests are decided by load, and the router asks again after a rest, which is longer each time and at most a minute",
			"service", c.URL, "max_wait", c.MaxWait, "rest", rest,
			"next", "place the service nearer to the router, or give it more cores; or raise index.max_wait, for which each request may then wait")
	}
	return true
}

// minute lets the log say something at most once a minute. The zero value is ready. It is safe for concurrent use.
type minute struct{ last atomic.Int64 }

// begins reports whether now is the first time for a minute.
func (m *minute) begins(now time.Time) bool {
	last := m.last.Load()
	return now.UnixNano()-last >= int64(time.Minute) && m.last.CompareAndSwap(last, now.UnixNano())
}
