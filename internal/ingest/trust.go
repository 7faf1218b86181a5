package ingest

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// assess says how far the holder's entries can be believed now, and tells the fleet when that changed. s.mu is held.
func (s *stream) assess(now time.Time) {
	trust, why := s.judge(now)
	if trust == s.trust && why == s.why {
		return
	}
	if trust != s.trust {
		s.log.Info("trust changed", "from", s.trust.String(), "to", trust.String(), "why", why)
	}
	s.trust, s.why = trust, why
	s.fleet.SetTrust(s.holder, trust, why)
}

// judge goes from the worst to the best. s.mu is held.
func (s *stream) judge(now time.Time) (fleet.Trust, string) {
	switch {
	case s.misplaced != "":
		return fleet.TrustApproximate, s.misplaced + ": learned from requests"
	case !s.everUp && s.connErr != nil:
		return fleet.TrustApproximate, fmt.Sprintf("no events: %s cannot be reached (%v); learned from requests", s.source.Endpoint, s.connErr)
	case !s.everUp:
		return fleet.TrustApproximate, fmt.Sprintf("connecting to %s; learned from requests", s.source.Endpoint)
	case !s.connected && s.tiers == 0:
		return fleet.TrustApproximate, fmt.Sprintf("the event stream is disconnected (%v): learned from requests", s.connErr)
	case !s.connected && now.Sub(s.since) >= s.config.Grace:
		// What the engine dropped since then is still in the index.
		return fleet.TrustNone, fmt.Sprintf("the event stream is disconnected since %s: %v", s.since.UTC().Format(time.TimeOnly), s.connErr)
	case s.ambiguous != "":
		return fleet.TrustApproximate, fmt.Sprintf("requests carry %s, which the engine's events do not tell apart: learned from requests", s.ambiguous)
	case s.silent != "" && s.stored == 0:
		return fleet.TrustApproximate, s.silent + "; learned from requests"
	case !s.connected:
		return fleet.TrustDegraded, fmt.Sprintf("the event stream is disconnected: %v", s.connErr)
	case s.silent != "" && s.source.Replay == "":
		// With a replay we know that nothing was sent: all those requests were cached.
		return fleet.TrustDegraded, s.silent
	case !s.complete && s.missing != "":
		return fleet.TrustDegraded, s.missing
	case !s.complete:
		return fleet.TrustDegraded, "history is being read"
	case s.hybrid != "":
		return fleet.TrustDegraded, fmt.Sprintf("hybrid model: groups of kind %s make a cached prefix worth less than its blocks", s.hybrid)
	case s.unnamed && bits.OnesCount64(s.groups) > 1:
		return fleet.TrustDegraded, "the engine numbers its cache groups without naming their kinds: not provable"
	case s.leaking != "":
		return fleet.TrustDegraded, fmt.Sprintf("tier %q announces no removals: not believed", s.leaking)
	}
	return fleet.TrustExact, "the event stream is complete since the cache was empty"
}

// look is the manager's regular look at the stream: what is wrong by the passing of time.
func (s *stream) look(now time.Time) {
	load := s.fleet.Snapshot().Load(s.holder)
	s.mu.Lock()
	defer s.mu.Unlock()
	if dt := now.Sub(s.eventsAt); s.eventsAt.IsZero() || dt > 0 {
		if !s.eventsAt.IsZero() {
			s.eventsPerSec = float64(s.events-s.eventsThen) / dt.Seconds()
		}
		s.eventsThen, s.eventsAt = s.events, now
	}
	s.quiet(now, int64(load.Processed-s.processedThen)-load.Requests)
	s.assess(now)
}

// quiet notes that a holder got requests and sent no events. answered is how many requests ended since its last event,
// or since it is watched. s.mu is held.
func (s *stream) quiet(now time.Time, answered int64) {
	since := s.lastEvent
	if since.IsZero() {
		since = s.started
	}
	if quiet := now.Sub(since); s.silent == "" && quiet >= s.config.Silence && answered >= int64(s.config.SilenceRequests) {
		s.silent = fmt.Sprintf("no events for %d s though it answered %d requests", int(quiet.Seconds()), answered)
		s.warn("silent", fmt.Sprintf("worker %s has sent %s: is %s its events endpoint, and is prefix caching on?", s.url, s.silent, s.source.Endpoint))
	}
}
