package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
)

// Run plays one configuration to its end. When ctx ends, Run returns the result so far, marked as stopped. Run calls
// progress, if not nil, with the number of ended requests: after every checkEvery moments or arrivals, and at the end.
func Run(ctx context.Context, c Config, progress func(ended int)) (*report.Run, error) {
	began := time.Now()
	w, err := newWorld(c)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	stopped := w.play(ctx, progress)
	run := w.rec.Run(w.setup())
	run.Stopped = stopped
	run.Wall = time.Since(began)
	return run, nil
}

// world is the state of a run.
type world struct {
	cfg      Config
	requests []workload.Request
	runs     bool // no request has recorded token ids, so engines hash runs instead of tokens; see sequence
	agenda   agenda
	now      time.Duration
	random   *rand.Rand
	rec      *report.Recorder
	ranks    []*rank
	main     pool

	arrivals clocked
	follow   followers
	live     int        // number of requests that were sent and have not ended
	ended    int        // number of requests that have ended
	planned  int        // number of arrivals on the agenda
	unsent   []int      // ids of requests that wait at the client because of Config.InFlight
	held     []*waiting // by router: the queue of requests that wait for room at a worker
	freed    bool       // a worker may have room again; see admitFreed

	tokens        []block.Token // tokens of the prompt that is being routed, or of a pass's events
	text          []byte        // text of the prompt that is being routed, for policies that use it
	blank         []block.Token // zero tokens; length: tokens of the longest request; see sequence
	spareFlights  []*flight
	spareBatches  []*batch
	spareTellings []*telling
	joining       int // number of workers that the autoscaler has started and that do not serve yet
	asking        int // number of ranks with a planned load report
}

func newWorld(c Config) (*world, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	w := &world{
		cfg:      c,
		requests: c.Workload.Requests,
		random:   rand.New(rand.NewPCG(c.Seed, 0x5eed)),
		arrivals: clocked{workload: c.Workload, rate: c.Rate},
		follow:   newFollowers(c.Workload.Requests),
	}
	for range c.Routers {
		w.held = append(w.held, newWaiting(&c))
	}
	if w.runs = hasRunsOnly(w.requests); w.runs {
		longest := 0
		for i := range w.requests {
			longest = max(longest, w.requests[i].Input+w.requests[i].Output)
		}
		w.blank = make([]block.Token, longest)
	}
	var stages []report.StageInfo
	for _, s := range c.Workload.Stages {
		stages = append(stages, report.StageInfo{Name: s.Name, Rate: s.Rate * c.Rate, First: s.First})
	}
	w.rec = report.NewRecorder(report.Options{SLOs: c.SLOs, Samples: c.Samples, Stages: stages})
	if err := w.fill(&w.main, c.Groups); err != nil {
		return nil, err
	}
	w.rec.Ready(0, len(w.main.workers))
	for i, f := range c.Faults {
		w.agenda.plan(moment{at: f.At, kind: atFault, a: int32(i)})
	}
	for _, d := range c.Disturbances {
		r := w.ranks[d.Worker]
		r.disturbed = append(r.disturbed, d)
	}
	if c.Autoscale != nil {
		w.agenda.plan(moment{at: c.Autoscale.Interval, kind: atScale})
	}
	return w, nil
}

// checkEvery is the number of moments and arrivals between two checks of the context. 4096 moments take a few
// milliseconds.
const checkEvery = 4096

// play handles the moments (planned events) and arrivals of the run in order. It returns true if ctx ends before the
// run does.
func (w *world) play(ctx context.Context, progress func(int)) (stopped bool) {
	for n := 1; ; n++ {
		if n%checkEvery == 0 {
			if ctx.Err() != nil {
				return true
			}
			if progress != nil {
				progress(w.ended)
			}
		}
		at, coming := w.arrivals.peek(w)
		if len(w.agenda.heap) > 0 {
			if top := &w.agenda.heap[0]; !coming || top.at < at || top.at == at && top.kind < atArrival {
				m := w.agenda.next()
				w.now = m.at
				w.happen(&m)
				w.admitFreed()
				continue
			}
		}
		if !coming {
			break
		}
		w.now = max(w.now, at)
		w.arrive(w.arrivals.take())
		w.admitFreed()
	}
	if progress != nil {
		progress(w.ended)
	}
	return false
}

func (w *world) happen(m *moment) {
	switch m.kind {
	case atWake:
		r := w.ranks[m.a]
		if r.gen == m.gen {
			w.wake(r)
		}
	case atArrival:
		w.planned--
		w.arrive(int(m.a))
	case atDispatch:
		w.receive(m.with.(*flight))
	case atSubmit:
		w.submit(m.with.(*flight))
	case atEnd:
		w.over(int(m.a))
	case atPrefilled:
		w.handOver(m.with.(*flight))
	case atLease:
		if f := m.with.(*flight); f.leases == m.gen {
			w.expire(f)
		}
	case atTransferred:
		if t := m.with.(*transfer); t.gen == m.gen {
			w.transferred(t)
		}
	case atTold:
		w.hear(m.with.(*telling))
	case atDelivery:
		w.deliver(m.with.(*batch), int(m.a))
	case atMetrics:
		w.askEngine(w.ranks[m.a])
	case atReport:
		w.report(m.with.(*answer))
	case atFault:
		w.die(&w.cfg.Faults[m.a])
	case atRestart:
		w.restart(w.ranks[m.a])
	case atHealth:
		w.check(w.ranks[m.a])
	case atScale:
		w.scale()
	case atJoin:
		w.join()
	}
}

// busy reports whether requests are left. The run would never end if periodic moments were planned without requests.
func (w *world) busy() bool {
	_, coming := w.arrivals.peek(w)
	return w.live > 0 || w.planned > 0 || len(w.unsent) > 0 || coming
}

func (w *world) setup() report.Setup {
	c := &w.cfg
	g := &c.Groups[0]
	s := report.Setup{
		Policy: c.Policy.Name, Routers: c.Routers, Rate: c.Rate, KVTokens: g.KVTokens, BlockSize: g.BlockSize,
		Profile: g.Profile.Name, Seed: c.Seed, Note: c.Label,
	}
	if c.Sync {
		s.Sync = c.SyncDelay.String()
	}
	for i := range c.Groups {
		s.Workers += c.Groups[i].Count
		if c.Groups[i].Profile.Name != g.Profile.Name {
			s.Profile = "mixed"
		}
	}
	if span := w.arrivals.span(); span > 0 {
		s.PerSecond = float64(len(w.requests)) / span.Seconds() * c.Rate
	}
	return s
}

// clocked goes through the requests that arrive at recorded times, in order.
type clocked struct {
	workload *workload.Workload
	rate     float64
	next     int
	stage    int           // index of the first stage that has not begun
	shift    time.Duration // delay of all later arrivals, because stages waited for the end of earlier requests
}

// peek returns the arrival time of the next request. ok is false if no request is left, or if the next request's stage
// still waits for the end of earlier requests.
func (c *clocked) peek(w *world) (at time.Duration, ok bool) {
	requests := c.workload.Requests
	for c.next < len(requests) && requests[c.next].After >= 0 {
		c.next++
	}
	if c.next == len(requests) {
		return 0, false
	}
	for c.stage < len(c.workload.Stages) && c.next >= c.workload.Stages[c.stage].First {
		s := &c.workload.Stages[c.stage]
		if s.Drain {
			if w.ended < s.First && (w.live > 0 || w.planned > 0 || len(w.unsent) > 0) {
				return 0, false
			}
			c.shift = max(c.shift, w.now-c.scale(s.Start))
		}
		c.stage++
	}
	return c.scale(requests[c.next].Arrival) + c.shift, true
}

func (c *clocked) take() int {
	c.next++
	return c.next - 1
}

func (c *clocked) scale(d time.Duration) time.Duration {
	if c.rate == 1 {
		return d
	}
	return time.Duration(float64(d) / c.rate)
}

// span returns the recorded time from the first to the last arrival.
func (c *clocked) span() time.Duration {
	r := c.workload.Requests
	return r[len(r)-1].Arrival - r[0].Arrival
}

// followers lists for each request the requests that wait for its end, such as the next turn of a conversation.
type followers struct {
	begin   []int32 // index in list at which the followers of request i begin
	list    []int32
	missing []int32 // by request: number of requests for which it still waits
}

func newFollowers(requests []workload.Request) followers {
	f := followers{}
	each := func(visit func(of, follower int)) {
		for i := range requests {
			if requests[i].After < 0 {
				continue
			}
			visit(requests[i].After, i)
			for _, j := range requests[i].Join {
				visit(j, i)
			}
		}
	}
	total := 0
	each(func(int, int) { total++ })
	if total == 0 {
		return f
	}
	f.begin = make([]int32, len(requests)+1)
	f.list = make([]int32, total)
	f.missing = make([]int32, len(requests))
	each(func(of, follower int) { f.begin[of+1]++; f.missing[follower]++ })
	for i := range requests {
		f.begin[i+1] += f.begin[i]
	}
	at := append([]int32(nil), f.begin...)
	each(func(of, follower int) { f.list[at[of]] = int32(follower); at[of]++ })
	return f
}

// over records the end of request i, and plans the arrivals of requests that follow it and of one request that waits at
// the client.
func (w *world) over(i int) {
	w.live--
	w.ended++
	if len(w.unsent) > 0 {
		w.planned++
		w.agenda.plan(moment{at: w.now, kind: atArrival, a: int32(w.unsent[0])})
		w.unsent = w.unsent[1:]
	}
	f := &w.follow
	if f.begin == nil {
		return
	}
	for _, next := range f.list[f.begin[i]:f.begin[i+1]] {
		if f.missing[next]--; f.missing[next] == 0 {
			w.planned++
			w.agenda.plan(moment{at: w.now + w.requests[next].Think, kind: atArrival, a: next})
		}
	}
}
