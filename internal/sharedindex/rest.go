package sharedindex

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// errLate means that the server is left alone, because most of its answers were late.
var errLate = errors.New("the server of the shared index takes longer than index.valkey.lookup_timeout")

// rests are the times for which the server is left alone, because most lookups were late. During a rest no lookup is
// asked, and nobody is trusted. The reader goes on to read what writers say: it has more patience than a request.
type rests struct {
	lateness network.Lateness
	// now is true during a rest, and after it until the server has answered. It changes under Reader.mu.
	now atomic.Bool

	// Reader.mu guards the fields below.
	told     bool  // the log has said that lookups are late, and not yet that they are in time
	answered int64 // lookups that had been answered when the last rest began
}

// missed records a lookup without an answer. It says nothing about the server if the asker left first. The time of an
// asker may be over before that of the lookup: a request bounds all its lookups.
func (r *Reader) missed(asker context.Context, err error) {
	switch {
	case errors.Is(asker.Err(), context.Canceled):
		return
	case errors.Is(err, context.DeadlineExceeded):
		if r.rests.lateness.Late(time.Now()) > 0 {
			r.rest()
		}
	default:
		r.lost(err)
	}
	select {
	case r.poke <- struct{}{}: // the server is asked at once, with more patience
	default:
	}
}

// rest begins a rest.
func (r *Reader) rest() {
	r.mu.Lock()
	r.rests.now.Store(true)
	r.rests.answered = r.counts.lookups.Load()
	for h, o := range r.trusted {
		r.trust(h, o)
	}
	first := !r.rests.told
	r.rests.told = true
	r.mu.Unlock()
	if first {
		r.parts.Log.Warn("most lookups in the shared index take too long, so the router asks nothing for a while, and load alone decides: place the server nearer, or raise index.valkey.lookup_timeout",
			"server", r.config.Address(), "lookup_timeout", r.config.Timeout)
	}
}

// endRest ends a rest whose time is over, now that the server has answered. [Reader.believe] then restores the trust.
func (r *Reader) endRest() {
	now := time.Now()
	r.mu.Lock()
	if !r.rests.lateness.Resting(now) {
		r.rests.now.Store(false)
	}
	steady := r.rests.told && r.rests.lateness.Steady(now) && r.counts.lookups.Load() > r.rests.answered
	if steady {
		r.rests.told = false
	}
	r.mu.Unlock()
	if steady {
		r.parts.Log.Info("most lookups in the shared index are in time again", "server", r.config.Address())
	}
}

// restEnds returns a channel that gets an element when the present rest ends; nil: there is none.
func (r *Reader) restEnds() <-chan time.Time {
	if !r.rests.now.Load() {
		return nil
	}
	return time.After(time.Until(r.rests.lateness.Until()))
}

// masked returns what the fleet is told of a holder: nobody is trusted during a rest. Callers hold Reader.mu.
func (s *rests) masked(o opinion) opinion {
	if s.now.Load() && o.level != fleet.TrustNone && !o.learned {
		return opinion{level: fleet.TrustNone, why: errLate.Error()}
	}
	return o
}
