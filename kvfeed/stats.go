package kvfeed

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// Stats has the counters of one holder's event stream since the stream began, and the state of the stream now. When the
// worker's facts or the model's index change, a new stream begins with all counters at 0. The JSON form is a part of
// the holder's entry in the answer to GET /admin/workers.
type Stats struct {
	Holder fleet.Holder `json:"-"`
	Worker string       `json:"-"` // the worker's URL
	Rank   int          `json:"-"` // the worker's global data-parallel rank
	Trust  fleet.Trust  `json:"-"`
	Why    string       `json:"-"` // the reason of Trust

	Endpoint string `json:"events_endpoint"` // endpoint of the events; "bound " and the engine's address if the engine connected to Config.Listen
	Replay   string `json:"replay_endpoint,omitempty"`
	Hash     string `json:"engine_hash,omitempty"` // how the engine hashes its blocks, if the stream could find it out

	StreamStats            // counters of the stream of messages
	LastEvent   *time.Time `json:"last_event,omitempty"` // UTC; nil before the first event

	Applied     uint64 `json:"events_applied"`       // events of received messages without Unapplied; Skipped is included
	Unapplied   uint64 `json:"events_unapplied"`     // events that were not applied: of blocks whose keys are unknown, and of copies outside the engine
	Skipped     uint64 `json:"events_skipped"`       // events with an unknown name, and events that are not usable
	Undecodable uint64 `json:"messages_undecodable"` // messages that could not be decoded, plus StreamStats.Malformed
	Foreign     uint64 `json:"messages_foreign"`     // messages that contain no KV events
	Misdirected uint64 `json:"messages_misdirected"` // messages of another rank, not applied
	Forgotten   uint64 `json:"forgotten"`            // times that all blocks of the holder were forgotten
	LastError   string `json:"last_error,omitempty"`

	Stored      uint64 `json:"-"` // Stored, Removed and Cleared are numbers of events of that kind
	Removed     uint64 `json:"-"`
	Cleared     uint64 `json:"-"`
	SkippedTags []Tag  `json:"-"`
}

// Tag counts skipped events with one name.
type Tag struct {
	Name  string // name as the engine wrote it; "other" stands for all names after the first 16
	Count uint64
}

// Stats describes all streams, sorted by worker URL and rank. A holder without events has no entry. The result belongs
// to the caller. Stats takes the lock of each stream, so it may wait until a stream has applied a large message.
func (feed *Feed) Stats() []Stats {
	feed.mu.Lock()
	streams := slices.Collect(maps.Values(feed.streams))
	feed.mu.Unlock()
	all := make([]Stats, 0, len(streams))
	for _, f := range streams {
		all = append(all, f.snapshot())
	}
	slices.SortFunc(all, func(a, b Stats) int {
		if c := strings.Compare(a.Worker, b.Worker); c != 0 {
			return c
		}
		return a.Rank - b.Rank
	})
	return all
}

func (s *stream) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	wire := s.wire()
	out := Stats{
		Holder: s.holder, Worker: s.url, Rank: s.rank, Trust: s.trust, Why: s.why,
		Endpoint: s.source.Endpoint, Replay: s.source.Replay, Hash: s.hash, StreamStats: wire,
		Applied: s.events - s.unapplied, Unapplied: s.unapplied, Skipped: s.skipped,
		Undecodable: s.undecodable + wire.Malformed, Foreign: s.foreign, Misdirected: s.misdirectedMessages,
		Forgotten: s.forgotten, LastError: s.lastError,
		Stored: s.stored, Removed: s.removed, Cleared: s.cleared,
	}
	if !s.lastEvent.IsZero() {
		at := s.lastEvent.UTC()
		out.LastEvent = &at
	}
	for _, name := range slices.Sorted(maps.Keys(s.skippedTags)) {
		out.SkippedTags = append(out.SkippedTags, Tag{name, s.skippedTags[name]})
	}
	return out
}
