package kvfeed

import (
	"context"
	"fmt"
)

// Ready waits until the feed has caught up with every worker that the fleet has at the time of the call, and with
// workers that the feed begins to follow meanwhile. The feed has caught up with a worker when it has read the history
// of each event source. There is no history to wait for if nothing answers at the endpoint, if the engine has no replay
// endpoint, or if its replay fails. Then Ready returns nil, and the trust of each holder says how far the index knows
// its cache. If ctx ends first, the error wraps the cause of ctx and names a holder whose history is still being read.
//
// A program need not wait. Until a history is read, requests are routed by load and by where earlier requests were
// sent. Run must run in another goroutine. Ready does not wait for engines that connect to [Config.Listen].
func (feed *Feed) Ready(ctx context.Context) error {
	generation := feed.fleet.Snapshot().Generation()
	for {
		changed := feed.nextChange()
		behind := feed.behind(generation)
		if behind == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the KV event history of %s: %w", behind, context.Cause(ctx))
		}
	}
}

// behind returns the name of a holder with which the feed has not caught up, or "" if there is none. It considers the
// workers of the fleet's snapshot with this generation, and workers that were added later.
func (feed *Feed) behind(generation uint64) string {
	if feed.reconciled.Load() < generation {
		return "the fleet's workers"
	}
	if feed.warm.holding.Load() {
		return "holders of which another router may have a checkpoint"
	}
	for _, f := range feed.list() {
		if !f.caughtUp() {
			return fmt.Sprintf("%s, rank %d", f.url, f.rank)
		}
	}
	return ""
}

// nextChange returns a channel that the next call of noteChange closes.
func (feed *Feed) nextChange() <-chan struct{} {
	fresh := make(chan struct{})
	for {
		if changed := feed.changed.Load(); changed != nil {
			return *changed
		}
		if feed.changed.CompareAndSwap(nil, &fresh) {
			return fresh
		}
	}
}

// noteChange wakes the calls of Ready that wait. It takes no lock, since all streams call it often, mostly while no
// call waits.
func (feed *Feed) noteChange() {
	if feed.changed.Load() == nil {
		return
	}
	if changed := feed.changed.Swap(nil); changed != nil {
		close(*changed)
	}
}

// caughtUp reports whether the holder's history has been read, or cannot be read now.
func (s *stream) caughtUp() bool {
	if s.renew.Load() || s.generation.Load() != s.router.Generation(s.holder) {
		return false // the history is read again, for a new index
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.connected:
		return s.connErr != nil
	case s.source.Replay == "":
		return true // without a replay endpoint, the messages before the connection cannot be had
	}
	return !s.behind && (s.complete || s.missing != "")
}
