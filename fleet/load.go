package fleet

import (
	"math"
	"time"
)

// Load is the work on a holder. This router's own work is counted when a request is dispatched, and the work of peers
// when they tell of it (Work.Peer). The work of further routers is added as far as the engine reports it
// ([Fleet.Report]).
type Load struct {
	Requests      int64  // number of requests that were dispatched and have not ended
	Waiting       int64  // the number of Requests without a first token
	PrefillTokens int64  // uncached prompt tokens of the waiting requests, in full until their first token
	PendingTokens int64  // the part of PrefillTokens that is not computed yet, as the holder's Timing predicts
	ContextBlocks int64  // engine blocks of all requests' prompts; a shared block counts once
	ContextTokens int64  // prompt tokens of all requests; a shared token counts for each request, which reads it in each step
	OutputTokens  int64  // tokens of the answers under way, as reported by the caller; those of peers are estimated
	Processed     uint64 // the number of requests that this router and its peers have ever dispatched to the holder
	Turns         uint64 // each dispatched request adds 1,000 times the holder's pace; it breaks ties on an idle fleet

	Backlog   time.Duration // predicted time until PendingTokens are computed, plus the delay of a late prompt
	Peers     PeerLoad      // the part of these figures that comes from routers that tell of their requests
	Others    Others        // the part of these figures that comes from routers that are seen only in engines' reports
	Reported  Reported      // the engine's last report; Reported.At is 0 if there is none
	Timing    Timing        // how long the holder's passes take, as learned so far
	Room      float64       // 1 − pressure: 1 for an empty cache, 0 for a full cache and for an unknown one
	Filled    float64       // the share of the cache that has blocks, by its events, 0 to 1; 0 if it is not known
	RoomKnown bool          // Room comes from events; if false, Room is an assumption
}

// Pressure returns how many blocks the cache evicts for each block that it stores: 0 if the cache is empty, 1 if it is
// full.
func (l *Load) Pressure() float64 { return 1 - l.Room }

// Times returns how long the holder's passes take: Timing, or DefaultTiming if none was learned.
func (l *Load) Times() *Timing {
	if l.Timing.Token > 0 {
		return &l.Timing
	}
	return &DefaultTiming
}

// Others is the work of routers on a holder that tell nothing of it: the work that the engine reported, less the work
// of this router and of its peers at the time of the report. The figures fade with the age of the report. The fields of
// [Load] with the same names include these figures.
type Others struct {
	Requests, Waiting, PrefillTokens, ContextBlocks int64
}

// Reported is an engine's last report of its own load. It includes this router's own work.
type Reported struct {
	At            int64 // when the report was read, Unix nanoseconds; 0 is never
	Running       int64 // requests being computed
	Waiting       int64 // requests in the engine's queue
	QueuedTokens  int64 // uncached prompt tokens of the requests in the queue; 0 is unknown unless QueueReported is set
	QueueReported bool  // the engine reports QueuedTokens
	// Computed and Busy are counters of the engine: the uncached prompt tokens that it computed, and how long it
	// computed them. 0 is unknown. The difference of two reports gives the time of a prompt token, and from it the time
	// that other routers' prompts take.
	Computed int64
	Busy     time.Duration
	KVUsed   float64 // share of the KV cache that running requests use, 0 to 1
}

// ReportedFor is how long a report counts. Its weight falls linearly with its age, from 1 to 0. Engines are asked every
// second, so a report loses all weight after ten missed answers. By then about half of the reported requests have
// ended, because a request takes seconds to a minute.
const ReportedFor = 10 * time.Second

// Load returns the work on h that this router and its peers count. It has no Others, no Timing and no tokens of peers'
// answers. [Load.Own] leaves the requests of peers out.
// In PrefillTokens, each prompt of a streamed answer counts in full until its first token, and other prompts do not
// count. Decisions use [Snapshot.LoadAt].
func (s *Snapshot) Load(h Holder) Load {
	st := s.state(h)
	if st == nil {
		return Load{}
	}
	return st.work.load()
}

// LoadAt returns the work on h at now, in Unix nanoseconds. It includes the work of other routers. PendingTokens and
// Backlog leave out the prompt tokens that are computed by now, as predicted.
func (s *Snapshot) LoadAt(h Holder, now int64) Load {
	st := s.state(h)
	if st == nil {
		return Load{}
	}
	l := st.work.load()
	l.Timing = st.work.timing()
	l.Room, l.RoomKnown = st.room()
	l.Filled = math.Float64frombits(st.work.filled.Load())
	st.work.project(&l, now)
	st.others.add(&l, now)
	return l
}

// Leaked returns how many requests to h expired: see [Fleet.Expire].
func (s *Snapshot) Leaked(h Holder) uint64 {
	st := s.state(h)
	if st == nil {
		return 0
	}
	return st.work.leaked.Load()
}
