package fleet

import "time"

// Load is the work on a holder. What this router put there is counted when a request is dispatched; what others put
// there is added as far as the engine tells ([Fleet.Report]).
type Load struct {
	Requests      int64  // dispatched and not ended
	Waiting       int64  // of those, without a first token
	PrefillTokens int64  // uncached prompt tokens of those waiting, in full until their first token
	PendingTokens int64  // of PrefillTokens, what is still to be computed as the holder's Timing says
	ContextBlocks int64  // engine blocks of the prompts of all requests, each block counted once however many share it
	ContextTokens int64  // prompt tokens of all requests, counted for each of them: what a decode step reads
	OutputTokens  int64  // tokens of the answers under way, as far as they were told
	Processed     uint64 // requests this router ever dispatched
	Turns         uint64 // Processed in thousandths, each times the holder's pace then; breaks ties so that an idle fleet is used in turn

	Backlog   time.Duration // predicted time until PendingTokens are computed, and by how much the prompt under way is late
	Others    Others        // the part of all this that other routers put there
	Reported  Reported
	Timing    Timing  // what the holder's passes take, as learned so far
	Room      float64 // share of what the cache takes that pushes nothing out: 1 in an empty one, 0 in a full one or where nothing tells
	RoomKnown bool    // Room comes from events; otherwise it is an assumption
}

// Pressure returns the share of what the cache takes that pushes something else out: 0 in an empty one, 1 in a full
// one.
func (l *Load) Pressure() float64 { return 1 - l.Room }

// Others is what other routers have on a holder: what its engine reported, less what this router had there at that
// time, weaker with age. It is included in the fields of [Load] that have its names.
type Others struct {
	Requests, Waiting, PrefillTokens, ContextBlocks int64
}

// Reported is what an engine last said of itself. It includes what this router put there.
type Reported struct {
	At            int64 // when it was read, Unix nanoseconds; 0 is never
	Running       int64 // requests being computed
	Waiting       int64 // requests in the engine's queue
	QueuedTokens  int64 // uncached prompt tokens of its queue; 0 is not told, unless QueueReported is set
	QueueReported bool  // the engine tells QueuedTokens
	// Computed and Busy are counters: uncached prompt tokens that the engine computed, and how long that took it. 0 is
	// not told. Two reports tell what a prompt token takes it, by which the work of others is timed.
	Computed int64
	Busy     time.Duration
	KVUsed   float64 // share of the KV cache that running requests hold, 0 to 1
}

// ReportedFor is how long a report counts: in full when it is new, not at all when it is this old, in between in
// proportion. Engines are asked every second; ten missed answers say that nothing is known. Requests of seconds to a
// minute are half gone by then in any case.
const ReportedFor = 10 * time.Second

// Load returns the work that this router has on h, as it was counted when requests were dispatched: without Others and
// Timing, and with nothing of the prompts computed. For decisions there is [Snapshot.LoadAt].
func (s *Snapshot) Load(h Holder) Load {
	st := s.state(h)
	if st == nil {
		return Load{}
	}
	return st.work.load()
}

// LoadAt returns the work on h at now, in Unix nanoseconds: with what is computed by then, and with what other routers
// put there.
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
