package queue

import (
	"container/heap"
	"slices"
	"strings"
	"time"
)

// Item is a request that waits. The caller sets the exported fields before Push, and changes none of them afterwards.
type Item struct {
	Tenant   string // only fair uses it
	Priority int    // priority in the body; clamped to -1000..1000
	Tokens   int    // uncached prompt tokens at the holder with the longest match: the cost of the request
	Bytes    int64  // memory that the request holds while it waits
	// Time of arrival in Unix nanoseconds; it is before the Push if the request was tried at a worker first.
	Arrived  int64
	Deadline int64 // time at which the request is refused, in Unix nanoseconds

	virtual int64  // the position in the order: see virtualTime
	seq     uint64 // number of the push; at equal virtual times the smaller seq comes first
	at      int    // index in the line's heap; -1: the item has its turn, or is not in the queue
	line    *line  // the line that the item is in; nil: not in the queue
}

// out reports whether the item has its turn: Pop returned it, and the turn has not ended.
func (it *Item) out() bool { return it.line != nil && it.at < 0 }

// line holds the waiting requests of one tenant, or all waiting requests if the order ignores tenants.
type line struct {
	tenant string
	items  []*Item // a heap, ordered by virtual, then by seq
	out    []*Item // items that have their turn
	bytes  int64   // sum of Bytes of the requests in items and out
	// Only fair: number of tokens that may be served before the other tenants' turn; a negative number is a debt.
	deficit int64
}

// requests returns the number of requests that wait in the line, including requests that have their turn.
func (l *line) requests() int { return len(l.items) + len(l.out) }

// Queue holds waiting requests in order. Use New: the zero value is not usable. A Queue is not safe for concurrent use.
type Queue struct {
	cfg   Config
	lines map[string]*line // by tenant: tenants with waiting requests, or that were served while others waited
	len   int              // number of requests that wait, including requests that have their turn
	bytes int64            // sum of Bytes of the requests that wait
	seq   uint64
	pace  pace
}

// New returns an empty queue. cfg has passed Validate. With the order off, requests are served in the order of arrival.
func New(cfg Config) *Queue { return &Queue{cfg: cfg, lines: map[string]*line{}} }

// Use applies cfg from now on; cfg has passed Validate. The waiting requests are sorted again by the new order, and the
// queue forgets what the tenants used before. If a request that has its turn is returned, it gets its place in the new
// order. If the new limit is lower, requests beyond the limit stay in the queue.
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

// Len returns the number of requests that wait.
func (q *Queue) Len() int { return q.len }

// Bytes returns the bytes of the requests that wait.
func (q *Queue) Bytes() int64 { return q.bytes }

// Refused is the reason why a request may not wait.
type Refused struct {
	Full bool // the queue is full; if false, the request would wait beyond its deadline
	// Time after which a retry makes sense, by the pace of the queue; at least a second.
	RetryAfter time.Duration
}

// Error returns the reason.
func (r *Refused) Error() string {
	if r.Full {
		return "the queue is full"
	}
	return "the queue is too long for the request's patience"
}

// Push adds an item, or returns the reason why it may not wait. If the queue is full, the order fair sheds the newest
// requests of the tenant with the largest share. The items in shed have left the queue, and the caller refuses them
// with Full.
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

// Full returns the refusal for a request that found the queue full or was shed.
func (q *Queue) Full(now int64) *Refused {
	return &Refused{Full: true, RetryAfter: atLeastSecond(q.pace.gap(now))}
}

// tooLong refuses a request that, at the present pace, would wait beyond its deadline. It returns nil if the request
// may wait.
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

// These bounds keep virtual times within 64 bits.
const (
	maxPriority = 1000
	maxTokens   = 1 << 30
)

// virtualTime returns the arrival time, plus the time that the request's cost is worth, or minus the time that its
// priority is worth. With the order deadline, it returns the deadline.
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

// ahead estimates how many requests will be served before a new item. The item has its virtual time, but is not in the
// queue yet.
func (q *Queue) ahead(item *Item) int {
	n, waiting := 0, 0
	mine := q.tenantOf(item)
	for tenant, l := range q.lines {
		if l.requests() > 0 && tenant != mine {
			waiting++
		}
		if q.cfg.Order == Fair && tenant != mine {
			continue
		}
		n += len(l.out)
		for _, other := range l.items {
			if other.virtual <= item.virtual {
				n++
			}
		}
	}
	if q.cfg.Order == Fair { // every other tenant gets a turn before each request of this tenant
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

// put adds an item to its line.
func (q *Queue) put(it *Item) {
	it.line = q.lineOf(it)
	heap.Push((*byTime)(it.line), it)
	q.count(it, 1)
}

// lineOf returns the line for an item, and makes it if it does not exist. A new tenant begins with one quantum.
func (q *Queue) lineOf(it *Item) *line {
	tenant := q.tenantOf(it)
	l := q.lines[tenant]
	if l == nil {
		l = &line{tenant: tenant, deficit: int64(q.cfg.Quantum)}
		q.lines[tenant] = l
	}
	return l
}

// count adds an item to the totals (n is 1) or subtracts it (n is -1).
func (q *Queue) count(it *Item, n int) {
	q.len += n
	q.bytes += int64(n) * it.Bytes
	it.line.bytes += int64(n) * it.Bytes
}

// RetryAfter returns the time after which the client of a refused request should retry: the time in which, at
// the present pace, all requests that wait now are served. The time is at least a second and at most MaxWait. known is
// false if too few requests were served.
func (q *Queue) RetryAfter(now int64) (retry time.Duration, known bool) {
	wait, known := q.pace.wait(q.len+1, now)
	return min(atLeastSecond(wait), max(q.cfg.MaxWait, time.Second)), known
}

// Pop gives the next request its turn, and returns it. It returns nil if no request waits for a turn. The caller ends
// the turn with Served, Remove, or Return, which undoes Pop. During its turn a request counts as
// waiting, and all methods of the queue may be called.
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

// endTurn ends an item's turn: it removes the item from l.out.
func (l *line) endTurn(it *Item) {
	at := slices.Index(l.out, it)
	if at < 0 {
		panic("bug: a turn is ended that was not given")
	}
	l.out = slices.Delete(l.out, at, at+1)
}

// cost returns the number of tokens that serving an item subtracts from its tenant's deficit. A prompt that is
// completely cached costs one token.
func cost(it *Item) int64 { return int64(max(it.Tokens, 1)) }

// rounds returns the number of quanta (of Config.Quantum tokens each) that every tenant must get before the next
// request can be served. A negative deficit is a debt. The waiting tenant with the smallest debt determines the number.
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

// need returns the number of quanta that make l's deficit positive.
func (q *Queue) need(l *line) int64 {
	if l.deficit > 0 {
		return 0
	}
	return -l.deficit/int64(q.cfg.Quantum) + 1
}

// least returns the line that is next after each tenant got the given number of quanta. Of the lines that may be served
// after these quanta, least returns the line whose first item has the earliest virtual time.
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

// refill gives every tenant the given number of quanta. A deficit never exceeds one quantum, with which a new tenant
// begins.
func (q *Queue) refill(rounds int64) {
	quantum := int64(q.cfg.Quantum)
	for tenant, l := range q.lines {
		l.deficit = min(l.deficit+rounds*quantum, quantum)
		if l.requests() == 0 && l.deficit == quantum {
			delete(q.lines, tenant)
		}
	}
}

// Return ends the turn of a request that was not served, and puts the request back to its old place.
func (q *Queue) Return(it *Item) {
	it.line.endTurn(it)
	heap.Push((*byTime)(it.line), it)
}

// Served ends the turn of a request that is served now.
func (q *Queue) Served(it *Item, now int64) {
	if rounds := q.need(it.line); rounds > 0 {
		q.refill(rounds)
	}
	it.line.deficit -= cost(it)
	q.drop(it)
	q.pace.served(now)
	q.settle()
}

// Remove removes an item that was not served, because its client left or its time is over. The item may have its turn.
// Remove reports whether the item was in the queue.
func (q *Queue) Remove(it *Item) bool {
	if it.line == nil {
		return false
	}
	q.drop(it)
	q.settle()
	return true
}

// drop removes an item from the queue.
func (q *Queue) drop(it *Item) {
	if it.out() {
		it.line.endTurn(it)
	} else {
		heap.Remove((*byTime)(it.line), it.at)
	}
	q.count(it, -1)
	it.line = nil
}

// settle forgets lines that are no longer needed. When no request waits, settle forgets all lines. While other
// tenants wait, a tenant without waiting requests keeps its line until refill has raised its deficit to a whole
// quantum. If the line were forgotten earlier, a tenant that always has exactly one waiting request would always begin
// anew with a whole quantum, and be first.
func (q *Queue) settle() {
	if q.len == 0 {
		clear(q.lines)
		q.pace.pause()
		return
	}
	if q.cfg.Order != Fair || len(q.lines) <= 2*q.cfg.MaxRequests {
		return
	}
	// The number of tenants must stay bounded, because clients may invent tenants.
	for tenant, l := range q.lines {
		if l.requests() == 0 {
			delete(q.lines, tenant)
		}
	}
}

// Charge subtracts the tokens of an answer from a tenant's deficit. It has an effect only while requests wait.
func (q *Queue) Charge(tenant string, tokens int) {
	if q.cfg.Order != Fair || q.len == 0 || tokens <= 0 {
		return
	}
	l := q.lines[tenant]
	if l == nil {
		if len(q.lines) > 2*q.cfg.MaxRequests { // the number of lines must stay bounded; see settle
			return
		}
		l = &line{tenant: tenant, deficit: int64(q.cfg.Quantum)}
		q.lines[tenant] = l
	}
	l.deficit -= int64(tokens) * int64(q.cfg.OutputWeight)
}

// Share is the part of the queue that one tenant has.
type Share struct {
	Tenant   string
	Requests int
	Deficit  int64 // number of tokens that the tenant may still use; a negative number is a debt
	Oldest   int64 // time at which the tenant's oldest request came, in Unix nanoseconds; 0: no request waits
}

// Shares returns the tenants that wait, or that were served while other tenants waited, ordered by name. Orders without
// tenants have only the tenant "".
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

// byTime makes a heap of a line.
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
