package ingest

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// Stats describes one holder's event stream at one moment, for the admin API and metrics.
type Stats struct {
	Holder   fleet.Holder `json:"-"`
	Worker   string       `json:"worker"` // URL
	Rank     int          `json:"rank"`
	Endpoint string       `json:"endpoint"`
	Replay   string       `json:"replay,omitempty"`

	Trust fleet.Trust `json:"-"`
	Why   string      `json:"why"`

	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"` // when Connected last changed; zero is never
	BlockSize int       `json:"block_size,omitempty"`
	Hash      string    `json:"hash,omitempty"` // how the engine hashes, if it could be found out

	Sequence    uint64 `json:"last_sequence"` // of the last message
	HasSequence bool   `json:"-"`
	Messages    uint64 `json:"messages"`
	Gaps        uint64 `json:"gaps"`
	Replays     uint64 `json:"replays"`
	Checks      uint64 `json:"checks"`
	Replayed    uint64 `json:"replayed"`
	Duplicates  uint64 `json:"duplicates"`
	Lost        uint64 `json:"lost"`
	Restarts    uint64 `json:"restarts"`
	Malformed   uint64 `json:"malformed"`

	Events      uint64    `json:"events"`
	Stored      uint64    `json:"stored"`
	Removed     uint64    `json:"removed"`
	Cleared     uint64    `json:"cleared"`
	Unapplied   uint64    `json:"unapplied"` // stored events that could belong to another request than it seems
	Skipped     uint64    `json:"skipped"`   // events of unknown names, or not usable
	SkippedTags []Tag     `json:"skipped_tags,omitempty"`
	Foreign     uint64    `json:"foreign"`     // messages that are no KV events
	Misdirected uint64    `json:"misdirected"` // messages of another rank, not applied
	Undecodable uint64    `json:"undecodable"`
	LastError   string    `json:"last_error,omitempty"`
	Forgotten   uint64    `json:"forgotten"` // times all that was known of the holder was dropped
	LastEvent   time.Time `json:"last_event"`
	PerSecond   float64   `json:"events_per_second"`
}

// Tag counts skipped events of one name.
type Tag struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// Stats describes all streams, by worker URL and rank. Holders without events have none.
func (m *Manager) Stats() []Stats {
	m.mu.Lock()
	streams := slices.Collect(maps.Values(m.streams))
	m.mu.Unlock()
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
	wire := s.wire() // takes the subscriber's own lock, so not under ours
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Stats{
		Holder: s.holder, Worker: s.url, Rank: s.rank, Endpoint: s.source.Endpoint, Replay: s.source.Replay,
		Trust: s.trust, Why: s.why, Connected: s.connected, Since: s.since, BlockSize: s.blockSize, Hash: s.hash,
		Sequence: s.sequence, HasSequence: s.hasSequence, Messages: s.messages,
		Gaps: wire.Gaps, Replays: wire.Replays, Checks: wire.Checks, Replayed: wire.Replayed, Duplicates: wire.Duplicates, Lost: wire.Lost,
		Restarts: s.restarts, Malformed: wire.Malformed,
		Events: s.events, Stored: s.stored, Removed: s.removed, Cleared: s.cleared, Unapplied: s.unapplied,
		Skipped: s.skipped, Foreign: s.foreign, Misdirected: s.misdirectedMessages, Undecodable: s.undecodable, LastError: s.lastError,
		Forgotten: s.forgotten, LastEvent: s.lastEvent, PerSecond: s.eventsPerSec,
	}
	for _, name := range slices.Sorted(maps.Keys(s.skippedTags)) {
		out.SkippedTags = append(out.SkippedTags, Tag{name, s.skippedTags[name]})
	}
	return out
}
