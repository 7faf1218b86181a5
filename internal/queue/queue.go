package queue

import (
	"container/heap"
	"slices"
	"strings"
	"time"
)

// Item is a request that waits. The caller fills the exported fields before Push and changes none of them afterwards.
type Item struct {
	Tenant   string // whose it is; only fair looks at it
	Priority int    // of the body; clamped to -1000..1000
	Tokens   int    // uncached prompt tokens where most of it is cached: what serving it costs
	Bytes    int64  // memory it holds while it waits
	Arrived  int64  // when it came, Unix nanoseconds; may be before it is pushed, when it was tried somewhere first
	Deadline int64  // when it is refused, Unix nanoseconds

	virtual int64  // the order: see virtualTime
	seq     uint64 // breaks ties: earlier pushes first
	at      int    // where it lies in its line's heap; -1: it is out, or not in the queue
	line    *line  // nil: not in the queue
}

// out reports whether Pop took it, and nothing has ended that yet.
func (it *Item) out() bool { return it.line != nil && it.at < 0 }

// line is the requests of one tenant, or all of them where the order knows no tenants.
type line struct {
	tenant  string
	items   []*Item // a heap by virtual, then seq
	out     []*Item // popped, and neither served nor returned yet
	bytes   int64   // of items and out
	deficit int64   // fair: tokens it may have served before others' turn; negative is a debt
}

// requests returns how many requests the line has, those that are out among them.
func (l *line) requests() int { return len(l.items) + len(l.out) }

// Queue is requests in order. The zero value is not usable: see New. It is not safe for concurrent use.
type Queue struct {
	cfg   Config
	lines map[string]*line // by tenant: those that wait, or have had something since others wait
	len   int              // requests that wait, those that are out among them
	bytes int64            // of them
	seq   uint64
	pace  pace
}

// New returns an empty queue; cfg has passed Validate. One that is off serves what waits as it came.
func New(cfg Config) *Queue { return &Queue{cfg: cfg, lines: map[string]*line{}} }

// Use makes cfg count from now on, also for the requests that wait: they are put into its order, and what tenants have
// had is forgotten. A request that is out comes back into the new order. cfg has passed Validate. The requests beyond a
// lower limit stay.
func (q *Queue) Use(cfg Config) {
	old := q.lines
	q.cfg, q.len, q.bytes, q.lines = cfg, 0, 0, map[string]*line{}
	for _, l := range old {
		for _, it := range l.items {
			it.virtual = q.virtualTime(it)
			q.put(it)
		}
		for _, it := range l.out {
			it.virtual = q.virtualTime(it)
			it.line = q.lineOf(it)
			it.line.out = append(it.line.out, it)
			q.count(it, 1)
		}
	}
}

// Len returns how many requests wait.
func (q *Queue) Len() int { return q.len }

// Bytes returns the memory that waits.
func (q *Queue) Bytes() int64 { return q.bytes }

// Refused is why a request may not wait.
type Refused struct {
	Full       bool          // no room; else it would wait beyond its deadline
	RetryAfter time.Duration // when it is worth while to ask again, going by the pace of the queue; at least a second
}

// Error says it in words.
func (r *Refused) Error() string {
	if r.Full {
		return "the queue is full"
	}
	return "the queue is too long for the request's patience"
}

// Push adds it, or returns why it may not wait. In a full queue fair sheds the newest requests of the tenant with the
// largest share: the requests in shed wait no more, and the caller refuses them with Full.
func (q *Queue) Push(it *Item, now int64) (shed []*Item, refused *Refused) {
	it.virtual = q.virtualTime(it)
	shed, ok := q.makeRoom(it)
	if !ok {
		return nil, q.Full(now)
	}
	if refused := q.tooLong(it, now); refused != nil {
		q.putBack(shed)
		return nil, refused
	}
	for _, s := range shed {
		s.line = nil
	}
	q.seq++
	it.seq = q.seq
	q.put(it)
	return shed, nil
}

// Full returns the refusal of a request that finds no room, or that was shed.
func (q *Queue) Full(now int64) *Refused {
	return &Refused{Full: true, RetryAfter: atLeastSecond(q.pace.gap(now))}
}

// tooLong refuses a request that would, at the current pace, wait beyond its deadline. It returns nil when the
// request may wait.
func (q *Queue) tooLong(it *Item, now int64) *Refused {
	if it.Deadline == 0 {
		return nil
	}
	if wait, known := q.pace.wait(q.ahead(it)+1, now); known && now+wait > it.Deadline {
		return &Refused{RetryAfter: atLeastSecond(now + wait - it.Deadline)}
	}
	return nil
}

func atLeastSecond(ns int64) time.Duration { return max(time.Duration(ns), time.Second) }

// Bounds that keep virtual times within 64 bits.
const (
	maxPriority = 1000
	maxTokens   = 1 << 30
)

// virtualTime is when it would have come, had it come later by what it costs and earlier by what speaks for it.
func (q *Queue) virtualTime(it *Item) int64 {
	switch q.cfg.Order {
	case Shortest, Fair:
		return it.Arrived + int64(min(max(it.Tokens, 0), maxTokens))*int64(time.Second)/int64(q.cfg.AgeingTokens)
	case Priority:
		steps := int64(min(max(it.Priority, -maxPriority), maxPriority))
		if q.cfg.HighFirst {
			steps = -steps
		}
		return it.Arrived + steps*int64(q.cfg.AgeingPriority)
	case Deadline:
		if it.Deadline != 0 {
			return it.Deadline
		}
		return it.Arrived + int64(q.cfg.MaxWait)
	}
	return it.Arrived
}

// ahead estimates how many go before it, which has its virtual time and is not in the queue.
func (q *Queue) ahead(it *Item) int {
	n, waiting := 0, 0
	mine := q.tenantOf(it)
	for tenant, l := range q.lines {
		if l.requests() > 0 && tenant != mine {
			waiting++
		}
		if q.cfg.Order == Fair && tenant != mine {
			continue
		}
		n += len(l.out)
		for _, other := range l.items {
			if other.virtual <= it.virtual {
				n++
			}
		}
	}
	if q.cfg.Order == Fair { // the others take turns with each of its own
		n = (n + 1) * (waiting + 1)
	}
	return min(n, q.len)
}

func (q *Queue) tenantOf(it *Item) string {
	if q.cfg.Order == Fair {
		return it.Tenant
	}
	return ""
}

// put adds it to its line.
func (q *Queue) put(it *Item) {
	it.line = q.lineOf(it)
	heap.Push((*byTime)(it.line), it)
	q.count(it, 1)
}

// lineOf returns the line that it belongs to, made if need be. A new tenant begins with one quantum.
func (q *Queue) lineOf(it *Item) *line {
	tenant := q.tenantOf(it)
	l := q.lines[tenant]
	if l == nil {
		l = &line{tenant: tenant, deficit: int64(q.cfg.Quantum)}
		q.lines[tenant] = l
	}
	return l
}

// count adds it to what waits, n being 1, or takes it off, n being -1.
func (q *Queue) count(it *Item, n int) {
	q.len += n
	q.bytes += int64(n) * it.Bytes
	it.line.bytes += int64(n) * it.Bytes
}

// RetryAfter is when a request that cannot be served is best asked again: when all that waits now is served, going by
// the pace; at least a second and at most MaxWait. It is not known while few were served.
func (q *Queue) RetryAfter(now int64) (retry time.Duration, known bool) {
	wait, known := q.pace.wait(q.len+1, now)
	return min(atLeastSecond(wait), max(q.cfg.MaxWait, time.Second)), known
}

// Pop gives the next request its turn, nil when none waits for one. The request is out until the caller ends the turn:
// with Served, with Return, which changes nothing, or with Remove. Until then it counts as waiting, and the queue may be
// used in any way.
func (q *Queue) Pop() *Item {
	rounds := q.rounds()
	l := q.least(rounds)
	if l == nil {
		return nil
	}
	it := heap.Pop((*byTime)(l)).(*Item)
	l.out = append(l.out, it)
	return it
}

// in ends that it is out.
func (l *line) in(it *Item) {
	at := slices.Index(l.out, it)
	if at < 0 {
		panic("bug: a turn is ended that was not given")
	}
	l.out = slices.Delete(l.out, at, at+1)
}

// cost is what serving the prompt takes off its tenant's deficit; one that is cached whole costs its turn.
func cost(it *Item) int64 { return int64(max(it.Tokens, 1)) }

// rounds is how many quanta every tenant gets before the next request is served: as many as the least indebted tenant
// that waits needs.
func (q *Queue) rounds() int64 {
	least := int64(-1)
	for _, l := range q.lines {
		if len(l.items) == 0 {
			continue
		}
		if need := q.need(l); least < 0 || need < least {
			least = need
		}
	}
	return max(least, 0)
}

// need is how many quanta lift l's deficit above 0.
func (q *Queue) need(l *line) int64 {
	if l.deficit > 0 {
		return 0
	}
	return -l.deficit/int64(q.cfg.Quantum) + 1
}

// least returns the line whose head is next after so many rounds: among those that may be served, the one whose head
// came first in virtual time.
func (q *Queue) least(rounds int64) *line {
	var next *line
	for _, l := range q.lines {
		if len(l.items) == 0 || q.cfg.Order == Fair && l.deficit+rounds*int64(q.cfg.Quantum) <= 0 {
			continue
		}
		if next == nil || before(l.items[0], next.items[0]) {
			next = l
		}
	}
	return next
}

// refill gives every tenant so many quanta. No tenant can save up more than it would begin with.
func (q *Queue) refill(rounds int64) {
	quantum := int64(q.cfg.Quantum)
	for tenant, l := range q.lines {
		l.deficit = min(l.deficit+rounds*quantum, quantum)
		if l.requests() == 0 && l.deficit == quantum {
			delete(q.lines, tenant)
		}
	}
}

// Return ends the turn of a request that was not served. The request is at its old place again.
func (q *Queue) Return(it *Item) {
	it.line.in(it)
	heap.Push((*byTime)(it.line), it)
}

// Served ends the turn of a request that is being served.
func (q *Queue) Served(it *Item, now int64) {
	if rounds := q.need(it.line); rounds > 0 {
		q.refill(rounds)
	}
	it.line.deficit -= cost(it)
	q.drop(it)
	q.pace.served(now)
	q.settle()
}

// Remove takes it out of the queue unserved, whether or not it has its turn: the client left, or its time is over. It
// reports whether it was in the queue.
func (q *Queue) Remove(it *Item) bool {
	if it.line == nil {
		return false
	}
	q.drop(it)
	q.settle()
	return true
}

// drop takes it out of the queue.
func (q *Queue) drop(it *Item) {
	if it.out() {
		it.line.in(it)
	} else {
		heap.Remove((*byTime)(it.line), it.at)
	}
	q.count(it, -1)
	it.line = nil
}

// settle forgets what matters only while requests wait: with nobody waiting there is nothing to share out. A tenant
// that has nothing waiting is remembered with what it has had until the others had as much: else one that always has
// just one request there would go first for ever.
func (q *Queue) settle() {
	if q.len == 0 {
		clear(q.lines)
		q.pace.pause()
		return
	}
	if q.cfg.Order != Fair || len(q.lines) <= 2*q.cfg.MaxRequests {
		return
	}
	for tenant, l := range q.lines { // clients may invent tenants
		if l.requests() == 0 {
			delete(q.lines, tenant)
		}
	}
}

// Charge takes tokens of an answer off a tenant's deficit, while requests wait.
func (q *Queue) Charge(tenant string, tokens int) {
	if q.cfg.Order != Fair || q.len == 0 || tokens <= 0 {
		return
	}
	l := q.lines[tenant]
	if l == nil {
		if len(q.lines) > 2*q.cfg.MaxRequests { // see settle
			return
		}
		l = &line{tenant: tenant, deficit: int64(q.cfg.Quantum)}
		q.lines[tenant] = l
	}
	l.deficit -= int64(tokens) * int64(q.cfg.OutputWeight)
}

// Share is what one tenant has in the queue.
type Share struct {
	Tenant   string
	Requests int
	Deficit  int64 // tokens; negative is a debt
	Oldest   int64 // when its oldest request came, Unix nanoseconds; 0 has none
}

// Shares returns the tenants that wait, or have had something since others wait, by name. Orders without tenants have
// one, "".
func (q *Queue) Shares() []Share {
	shares := make([]Share, 0, len(q.lines))
	for _, l := range q.lines {
		s := Share{Tenant: l.tenant, Requests: l.requests(), Deficit: l.deficit}
		for _, items := range [][]*Item{l.items, l.out} {
			for _, it := range items {
				if s.Oldest == 0 || it.Arrived < s.Oldest {
					s.Oldest = it.Arrived
				}
			}
		}
		shares = append(shares, s)
	}
	slices.SortFunc(shares, func(a, b Share) int { return strings.Compare(a.Tenant, b.Tenant) })
	return shares
}

func before(a, b *Item) bool {
	if a.virtual != b.virtual {
		return a.virtual < b.virtual
	}
	return a.seq < b.seq
}

// byTime is a line as a heap.
type byTime line

func (h *byTime) Len() int           { return len(h.items) }
func (h *byTime) Less(i, j int) bool { return before(h.items[i], h.items[j]) }

func (h *byTime) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].at, h.items[j].at = i, j
}

func (h *byTime) Push(x any) {
	it := x.(*Item)
	it.at = len(h.items)
	h.items = append(h.items, it)
}

func (h *byTime) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	it.at = -1
	return it
}
