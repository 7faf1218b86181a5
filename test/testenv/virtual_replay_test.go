package testenv_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
)

// diary applies all events of a rank. When a test fails, the message uses a diary to say whether the events agree with
// the engine's cache.
type diary struct {
	mu       sync.Mutex
	decoder  kvevent.Decoder
	copies   map[string]int // by tier and hash: number of copies
	history  map[string][]string
	doubled  map[string]bool // by tier and hash: there were two copies at some time
	messages int
	complete bool // true: no message is missing
}

func (l *diary) Message(seq uint64, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b kvevent.Batch
	l.messages++
	if err := l.decoder.Decode(payload, &b); err != nil {
		return
	}
	for i := range b.Events {
		e := &b.Events[i]
		for _, h := range e.Hashes {
			at := fmt.Sprint(e.Tier, " ", h)
			switch e.Kind {
			case kvevent.Stored:
				l.copies[at]++
				l.doubled[at] = l.doubled[at] || l.copies[at] > 1
			case kvevent.Removed:
				l.copies[at]--
			}
			l.history[at] = append(l.history[at], fmt.Sprint(seq, " ", e.Kind, " parent ", e.HasParent, " ", e.Parent, " at ", b.Time))
		}
		if e.Kind == kvevent.Cleared {
			clear(l.copies)
		}
	}
}
func (l *diary) Restarted(string)        {}
func (l *diary) Lost(_, _ uint64)        { l.mu.Lock(); l.complete = false; l.mu.Unlock() }
func (l *diary) Behind(bool)             {}
func (l *diary) Unnumbered()             {}
func (l *diary) Complete()               { l.mu.Lock(); l.complete = true; l.mu.Unlock() }
func (l *diary) State(_ bool, err error) {}

// follow reads a rank's events, beginning with the first event that the engine has kept for replay.
func (e *engine) follow(rank int) *diary {
	l := &diary{copies: map[string]int{}, history: map[string][]string{}, doubled: map[string]bool{}}
	sub := kvfeed.NewSubscriber(fleet.EventSource{
		Endpoint: fmt.Sprintf("tcp://%s:%d", e.ip, pubPort+rank), Replay: fmt.Sprintf("tcp://%s:%d", e.ip, replay+rank),
	}, kvfeed.StreamConfig{Dial: e.world.client.Dial}, l)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = sub.Run(ctx)
	return l
}

// doubles returns how many of the hashes may have had a second copy in a rank. If the engine no longer has all its
// messages, doubles returns the number of all hashes. An event of a second copy looks like a second event of the first
// copy. The index takes it for a second event of the first copy, so the removal of one copy ends the index's claim
// (kvindex, Stored.Origin).
func (e *engine) doubles(rank int, tier fmt.Stringer, hashes []uint64) (n int) {
	l := e.follow(rank)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.complete {
		return len(hashes)
	}
	for _, h := range hashes {
		if l.doubled[fmt.Sprint(tier, " ", h)] {
			n++
		}
	}
	return n
}

// reported describes the differences between a rank's cache, whose hashes it gets, and the cache that the rank's events
// describe.
func (e *engine) reported(rank int, tier fmt.Stringer, hashes []uint64) string {
	l := e.follow(rank)
	l.mu.Lock()
	defer l.mu.Unlock()
	said := fmt.Sprintf("%d messages, complete %v", l.messages, l.complete)
	has := map[string]bool{}
	for _, h := range hashes {
		at := fmt.Sprint(tier, " ", h)
		has[at] = true
		if l.copies[at] != 1 {
			said += fmt.Sprintf("; %s is cached, and %d times by its events: %v", at, l.copies[at], l.history[at])
		}
	}
	var gone []string
	for at, n := range l.copies {
		if n > 0 && !has[at] {
			gone = append(gone, fmt.Sprintf("; %s is not cached, and %d times by its events: %v", at, n, l.history[at]))
		}
	}
	slices.Sort(gone)
	return said + fmt.Sprint(gone)
}
