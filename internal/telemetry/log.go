package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLogBytes bounds the lines of the router's own log that wait for the writer: some thousand lines. As many may
	// be in the writer's hands.
	maxLogBytes = 1 << 20
	// logFlush is how long Close waits for the lines that were not yet written.
	logFlush = time.Second
)

// Log is the router's own log. A line never waits for the program that reads it: one goroutine, Run, writes the lines,
// in their order. If that program is too slow, lines are dropped and counted, and a line in their place says how many.
// The methods are safe for concurrent use.
//
// It is no Journal: a Journal encodes values as JSON, rotates its file, and reports its own problems in this log.
type Log struct {
	out    io.Writer
	logger *slog.Logger
	lostAs func(lost int) []byte // makes the line in the place of lost lines
	wake   chan struct{}         // has an element if the writer has something to do
	ended  chan struct{}         // closed when the writer has ended

	mu      sync.Mutex // guards the fields below
	waiting []byte     // whole lines
	lines   int        // the lines in waiting
	lost    int        // lines dropped since, all of them later than those in waiting
	closed  bool

	written, dropped, failed atomic.Uint64
}

// LogLines counts the lines of the router's own log by what became of them.
type LogLines struct{ Written, Dropped, Failed uint64 }

// NewLog returns the router's own log, which writes to out with the level and the format of c. Its caller runs Run in a
// goroutine, and calls Close at the end. NewLog returns an error if Validate refuses the level or the format.
func NewLog(c Config, out io.Writer) (*Log, error) {
	l := &Log{out: out, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	var err error
	if l.logger, err = newLogger(c, l); err != nil {
		return nil, err
	}
	l.lostAs = func(lost int) []byte {
		var line bytes.Buffer
		always := c
		always.LogLevel = "warn" // also where the level is error
		if log, err := newLogger(always, &line); err == nil {
			log.Warn("lines of this log are lost: what reads the standard error of the router is too slow", "lines", lost)
		}
		return line.Bytes()
	}
	return l, nil
}

// Logger returns the logger whose lines are the log.
func (l *Log) Logger() *slog.Logger { return l.logger }

// Lines returns the counts of the lines so far.
func (l *Log) Lines() LogLines {
	return LogLines{Written: l.written.Load(), Dropped: l.dropped.Load(), Failed: l.failed.Load()}
}

// Write takes one line for the log. It never waits, and its error is always nil. After Close it drops the line.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Once a line is lost, all later ones are, until the writer takes what waits: so the lost lines have one place.
	if l.closed || l.lost > 0 || len(l.waiting)+len(line) > maxLogBytes {
		l.lost++
		l.dropped.Add(1)
	} else {
		l.waiting = append(l.waiting, line...)
		l.lines++
	}
	l.wakeWriter()
	return len(line), nil
}

func (l *Log) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close writes the lines that wait, and ends the log. It waits for that a second at most: if nobody reads the log, the
// process must end all the same.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wakeWriter()
	select {
	case <-l.ended:
	case <-time.After(logFlush):
	}
}

// Run writes the lines, until the log is closed and all lines are written.
func (l *Log) Run() {
	defer close(l.ended)
	var batch []byte
	for range l.wake {
		l.mu.Lock()
		lines, lost, closed := l.lines, l.lost, l.closed
		batch, l.waiting = l.waiting, batch[:0]
		l.lines, l.lost = 0, 0
		l.mu.Unlock()
		if lost > 0 {
			batch = append(batch, l.lostAs(lost)...)
		}
		if len(batch) > 0 {
			if _, err := l.out.Write(batch); err != nil {
				l.failed.Add(uint64(lines))
			} else {
				l.written.Add(uint64(lines))
			}
		}
		if closed {
			return
		}
	}
}
