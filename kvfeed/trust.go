package kvfeed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"net"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// assess decides how far the holder's entries can be believed now, and reports a change to the fleet. s.mu is held.
func (s *stream) assess(now time.Time) {
	trust, why := s.judge(now)
	if trust != s.trust || why != s.why {
		s.trust, s.why, s.judged = trust, why, now
	}
	// The fleet forgets the trust of a worker that leaves, and the worker may be back before the feed notices. So the
	// new trust is compared with the fleet's value, not only with the stream's.
	if known, as := s.fleet.Snapshot().Trust(s.holder); known != trust || as != why {
		s.fleet.SetTrust(s.holder, trust, why)
	}
	s.logTrust(now)
	s.noteChange()
}

// A trust normally has one of these reasons only for milliseconds, so logTrust waits before it logs them.
const (
	readingHistory = "history is being read"
	catchingUp     = "messages are missing, or may be: they are being replayed, and later ones wait for them"
)

// logTrust logs the trust if it differs from the last logged one. If one of the two reasons above lowers the trust,
// logTrust waits for [Config.Grace]. s.mu is held.
func (s *stream) logTrust(now time.Time) {
	if s.trust == s.logged || (s.why == readingHistory || s.why == catchingUp) && now.Sub(s.judged) < s.config.Grace {
		return
	}
	level := slog.LevelInfo
	if s.trust < s.logged {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "trust changed", "from", s.logged.String(), "to", s.trust.String(), "why", s.why)
	s.logged = s.trust
}

// brief returns the text of a connection's error without the endpoint, which the message already contains.
func brief(err error) string {
	var op *net.OpError
	switch {
	case err == nil:
		return "closed"
	case errors.Is(err, io.EOF):
		return "the worker closed it"
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}

// judge returns the trust and its reason. The first condition that holds decides: trust approximate and none come
// before degraded, and degraded before exact. s.mu is held.
func (s *stream) judge(now time.Time) (fleet.Trust, string) {
	switch {
	case s.misplaced != "":
		return fleet.TrustApproximate, s.misplaced + s.config.learned(": ")
	case !s.everUp && s.connErr != nil:
		return fleet.TrustApproximate, fmt.Sprintf("no events since %s UTC: %s cannot be reached (%s)",
			s.started.UTC().Format(time.TimeOnly), s.source.Endpoint, brief(s.connErr)) + s.config.learned("; ")
	case !s.everUp:
		return fleet.TrustApproximate, "connecting to " + s.source.Endpoint + s.config.learned("; ")
	case !s.connected && s.tiers == 0:
		return fleet.TrustApproximate, fmt.Sprintf("the event stream is disconnected (%s)", brief(s.connErr)) + s.config.learned(": ")
	case !s.connected && now.Sub(s.since) >= s.config.Grace:
		// The engine may have dropped blocks since then that are still in the index.
		return fleet.TrustNone, fmt.Sprintf("the event stream is disconnected since %s UTC: %s", s.since.UTC().Format(time.TimeOnly), brief(s.connErr))
	case s.ambiguous != "":
		return fleet.TrustApproximate, fmt.Sprintf("requests carry %s, which the engine's events do not contain", s.ambiguous) + s.config.learned(": ")
	case s.silent != "" && s.stored == 0 && !s.resumed:
		return fleet.TrustApproximate, s.silent + s.config.learned("; ")
	case len(s.unremoved.queue) > 0:
		return fleet.TrustApproximate, fmt.Sprintf("tier %q announces no removals: its blocks count for %v after they were stored (events.unremoved_ttl)",
			s.leaking, s.config.UnremovedTTL)
	case !s.connected:
		return fleet.TrustDegraded, fmt.Sprintf("the event stream is disconnected: %s", brief(s.connErr))
	case s.silent != "" && s.source.Replay == "":
		// With a replay endpoint, silence is no doubt: the checks have shown that no event is missing, so all prompts were
		// cached.
		return fleet.TrustDegraded, s.silent
	case s.unnumbered:
		return fleet.TrustDegraded, "messages carry no sequence numbers: one that is lost goes unnoticed"
	case !s.complete && s.missing != "":
		return fleet.TrustDegraded, s.missing
	case !s.complete && s.source.Replay == "":
		return fleet.TrustDegraded, "what was cached before we connected is not known: the worker has no replay endpoint"
	case !s.complete:
		return fleet.TrustDegraded, readingHistory
	case s.behind:
		return fleet.TrustDegraded, catchingUp
	case s.hybrid != "":
		return fleet.TrustDegraded, fmt.Sprintf("hybrid model: groups of kind %s make a cached prefix worth less than its blocks", s.hybrid)
	case s.unnamed && bits.OnesCount64(s.groups) > 1:
		return fleet.TrustDegraded, "the engine numbers its cache groups without naming their kinds: not provable"
	case s.leaking != "":
		return fleet.TrustDegraded, fmt.Sprintf("blocks of tier %q may be of requests with other keys: not believed", s.leaking)
	case s.unplaced:
		return fleet.TrustDegraded, "blocks are stored of requests with an extra_key that this router has not sent there lately"
	case s.mixed != "":
		return fleet.TrustDegraded, s.mixed
	case s.unread != "":
		return fleet.TrustDegraded, fmt.Sprintf("an announcement of blocks could not be read: %s", s.unread)
	case s.indexLost != "":
		return fleet.TrustDegraded, s.indexLost
	}
	return fleet.TrustExact, "the event stream is complete since the cache was empty"
}

// indexEvery is the shortest time between two messages after which the stream queries the index for losses. It exists
// because each query takes the index's lock. A loss between two queries is found by the later one. A reset and the
// regular check query the index in any case.
const indexEvery = 100 * time.Millisecond

// askIndex queries the index for losses of the holder's blocks, and reports whether they differ from the last result.
// s.mu is held.
func (s *stream) askIndex(now time.Time) (changed bool) {
	s.indexSeen = now
	lost := ""
	st, known := s.router.HolderStats(s.holder)
	switch {
	case !known:
	case st.Whole && st.Waiting > 0 && s.offloads:
		// Without offloading, a chain waits in the index only if it begins with an unknown key: see claimable.
		lost = "offloaded blocks are known by hash only: the index dropped the blocks they copy"
	case !st.Whole:
		var evicted int64
		for _, n := range st.Evicted {
			evicted += n
		}
		switch {
		case st.Refused > 0:
			lost = fmt.Sprintf("the index refused %d of its announcements and blocks: impossible, or no room (index.bytes)", st.Refused)
		case evicted > 0:
			lost = fmt.Sprintf("the index had no room for all of its blocks and dropped %d: raise index.bytes", evicted)
		default:
			lost = "the index dropped blocks that waited for their parents: raise index.bytes"
		}
	}
	changed = lost != s.indexLost
	s.indexLost = lost
	s.indexSaid = st
	return changed
}

// look is the feed's regular check of the stream. It finds time limits that have passed, and losses in the index.
func (s *stream) look(now time.Time) {
	load := s.fleet.Snapshot().Load(s.holder)
	if !s.mu.TryLock() {
		return // a message is being applied: the check of other streams must not wait for it, and the next check comes soon
	}
	defer s.mu.Unlock()
	s.quiet(now, int64(load.Processed-s.processedThen)-load.Requests)
	s.unreachable(now)
	if len(s.unremoved.queue) > 0 {
		s.turn.Lock()
		s.expire(now)
		s.turn.Unlock()
	}
	s.askIndex(now)
	s.judgeCopies()
	s.assess(now)
}

// quiet records that a holder got requests and sent no events. At least answered requests have ended since the holder's
// last event, or since the stream began. s.mu is held.
func (s *stream) quiet(now time.Time, answered int64) {
	if !s.everUp {
		return // the trust already says that the endpoint was never reached
	}
	since := s.lastEvent
	if since.IsZero() {
		since = s.started
	}
	if quiet := now.Sub(since); s.silent == "" && quiet >= s.config.Silence && answered >= int64(s.config.SilenceRequests) {
		s.silent = fmt.Sprintf("no events for %d s though it answered %d requests", int(quiet.Seconds()), answered)
		s.warn("silent", fmt.Sprintf("worker %s has sent %s: is %s its events endpoint, and is prefix caching on?", s.url, s.silent, s.source.Endpoint))
	}
}

// unreachable warns if the worker is ready, but its event endpoint has never answered. s.mu is held.
func (s *stream) unreachable(now time.Time) {
	if s.everUp || s.connErr == nil || now.Sub(s.started) < s.config.Grace {
		return
	}
	if w := s.fleet.Snapshot().Worker(s.holder); w == nil || !w.Ready {
		return // the worker itself is not ready: discovery reports that
	}
	if s.config.Unrouted { // the worker may be registered: then nobody has asked it whether it answers
		s.warn("unreachable", fmt.Sprintf("the KV events of worker %s at %s cannot be reached (%s), so nothing is known of its cache: "+
			"start it with events on, or correct the endpoint", s.url, s.source.Endpoint, brief(s.connErr)))
		return
	}
	s.warn("unreachable", fmt.Sprintf("worker %s answers but its KV events at %s cannot be reached (%s): it is learned from requests; "+
		"start it with events on, or give events=ENDPOINT or events=none", s.url, s.source.Endpoint, brief(s.connErr)))
}
