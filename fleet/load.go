package fleet

import "time"

// Load is the work on a holder. This router's own work is counted when a request is dispatched. The work of other
// routers is added as far as the engine reports it ([Fleet.Report]).
type Load struct {
	Requests      int64  // dispatched and not ended
	Waiting       int64  // the part of Requests without a first token
	PrefillTokens int64  // uncached prompt tokens of the waiting requests, in full until their first token
	PendingTokens int64  // the part of PrefillTokens that is not computed yet, by the holder's Timing
	ContextBlocks int64  // engine blocks of all requests' prompts; a shared block counts once
	ContextTokens int64  // prompt tokens of all requests, shared ones counted for each: a decode step reads them
	OutputTokens  int64  // tokens of the answers under way, as reported by the caller
	Processed     uint64 // requests this router ever dispatched
	Turns         uint64 // 1,000 times the holder's pace for each dispatched request; breaks ties, so that an idle fleet is used in turn

	Backlog   time.Duration // predicted time until PendingTokens are computed, plus the delay of a late prompt
	Others    Others        // the part of these figures that comes from other routers
	Reported  Reported
	Timing    Timing  // how long the holder's passes take, as learned so far
	Room      float64 // 1 − pressure: 1 in an empty cache, 0 in a full one or where it is not known
	RoomKnown bool    // Room comes from events; otherwise it is an assumption
}

// Pressure returns the blocks that the cache evicts for each that it stores: 0 in an empty cache, 1 in a full one.
func (l *Load) Pressure() float64 { return 1 - l.Room }

// Others is the work of other routers on a holder: what its engine reported, less this router's own work at that
// time. It fades with the age of the report. It is included in the fields of [Load] with the same names.
type Others struct {
	Requests, Waiting, PrefillTokens, ContextBlocks int64
}

// Reported is an engine's last report of its own load. It includes this router's own work.
type Reported struct {
	At            int64 // when it was read, Unix nanoseconds; 0 is never
	Running       int64 // requests being computed
	Waiting       int64 // requests in the engine's queue
	QueuedTokens  int64 // uncached prompt tokens of its queue; 0 is unknown unless QueueReported is set
	QueueReported bool  // the engine reports QueuedTokens
	// Computed and Busy are counters: uncached prompt tokens that the engine computed, and how long it computed. 0 is
	// unknown. Two reports give the time of a prompt token, from which the time of other routers' work is computed.
	Computed int64
	Busy     time.Duration
	KVUsed   float64 // share of the KV cache that running requests use, 0 to 1
}

// ReportedFor is how long a report counts. Its weight falls in proportion to its age, from full weight to none. Engines
// are asked every second, so the report fades over ten missed answers. By then half of the requests, which take seconds
// to a minute, have ended.
const ReportedFor = 10 * time.Second

// Load returns this router's own work on h, as counted when requests were dispatched: without Others and Timing, and
// with every prompt in full until its first token. Decisions use [Snapshot.LoadAt].
func (s *Snapshot) Load(h Holder) Load {
	st := s.state(h)
	if st == nil {
		return Load{}
	}
	return st.work.load()
}

// LoadAt returns the work on h at now, in Unix nanoseconds: less the prompt tokens that are computed by then, and
// with the work of other routers.
func (s *Snapshot) LoadAt(h Holder, now int64) Load {
	st := s.state(h)
	if st == nil {
		return Load{}
	}
	l := st.work.load()
	l.Timing = st.work.timing()
	l.Room, l.RoomKnown = st.room()
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
