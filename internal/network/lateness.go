package network

import (
	"sync"
	"time"
)

// MostLate is how many more answers may be late than in time. One late answer says little: this machine may be busy.
const MostLate = 8

// recovered is after how many answers in time since a rest the next rest is the shortest again. A server with a short
// pause now and then, such as one that writes a file, gives as many between two pauses, and one that is slow does not.
const recovered = 8 * MostLate

const (
	firstRest = time.Second
	lastRest  = time.Minute
)

// Lateness counts the late answers of one server, and says when the server is left alone. A router waits for an index
// service or a shared index for some milliseconds in each request. If most answers take longer, it must not wait. The
// zero value is ready. All methods are safe for concurrent use. It reads no clock.
type Lateness struct {
	mu     sync.Mutex
	late   int           // late answers less those in time since the last rest; at least 0
	inTime int           // answers in time since the last rest
	rest   time.Duration // the last rest; 0: there was none, or the server has recovered
	until  time.Time     // when the last rest ends
}

// InTime records an answer in time.
func (l *Lateness) InTime() {
	l.mu.Lock()
	l.late, l.inTime = max(0, l.late-1), l.inTime+1
	l.mu.Unlock()
}

// Late records an answer that was late. If now most of the last answers are late, it returns how long to leave the
// server alone: a second the first time, then twice as long each time, but at most a minute. After a minute without a
// rest, or many answers in time, it is a second again. Otherwise, and during a rest, it returns 0.
func (l *Lateness) Late(now time.Time) (rest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.until) {
		return 0
	}
	if l.late++; l.late < MostLate {
		return 0
	}
	if now.Sub(l.until) > lastRest || l.inTime >= recovered { // also if there was no rest
		l.rest = 0
	}
	l.late, l.inTime, l.rest = 0, 0, min(max(firstRest, 2*l.rest), lastRest)
	l.until = now.Add(l.rest)
	return l.rest
}

// Until returns when the last rest ends or has ended; the zero time if there was none.
func (l *Lateness) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// Steady reports whether the last rest ended more than a minute ago. If a log says only then that answers are in time
// again, it has two lines a minute at most.
func (l *Lateness) Steady(now time.Time) bool { return now.Sub(l.Until()) > lastRest }

// Resting reports whether the server is left alone.
func (l *Lateness) Resting(now time.Time) bool { return now.Before(l.Until()) }
