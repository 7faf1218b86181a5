package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const second = int64(time.Second)

func config(order string) Config {
	c := DefaultConfig()
	c.Order = order
	return c
}

// aged returns a config with other ageing: a second of waiting is worth 2,000 tokens, and a step of priority is worth
// 10 s.
func aged(order string) Config {
	c := config(order)
	c.AgeingTokens, c.AgeingPriority = 2000, 10*time.Second
	return c
}

// push adds items, and fails the test when one is refused.
func push(t *testing.T, q *Queue, now int64, items ...*Item) {
	t.Helper()
	for _, it := range items {
		if _, refused := q.Push(it, now); refused != nil {
			t.Fatalf("%+v is refused: %v", it, refused)
		}
	}
}

// drain serves all items at the time now, and returns the name of each.
func drain(q *Queue, now int64, name func(*Item) string) []string {
	var order []string
	for it := q.Pop(); it != nil; it = q.Pop() {
		order = append(order, name(it))
		q.Served(it, now)
	}
	return order
}

func byTenant(it *Item) string { return it.Tenant }

func TestOrders(t *testing.T) {
	// There are four requests, a second apart. "first" came first, "small" has the fewest tokens, "vip" has the lowest
	// priority number, and "late" has the earliest deadline.
	items := func() []*Item {
		return []*Item{
			{Tenant: "first", Arrived: 1 * second, Tokens: 9000, Priority: 5, Deadline: 90 * second},
			{Tenant: "small", Arrived: 2 * second, Tokens: 10, Priority: 9, Deadline: 91 * second},
			{Tenant: "vip", Arrived: 3 * second, Tokens: 5000, Priority: -3, Deadline: 92 * second},
			{Tenant: "late", Arrived: 4 * second, Tokens: 7000, Priority: 4, Deadline: 10 * second},
		}
	}
	for _, c := range []struct {
		order string
		high  bool
		want  []string
	}{
		{FCFS, false, []string{"first", "small", "vip", "late"}},
		// The virtual times are 2.005, 5.5, 5.5 and 7.5 s. Of the two items at 5.5 s, "first" was pushed earlier.
		{Shortest, false, []string{"small", "first", "vip", "late"}},
		{Priority, false, []string{"vip", "late", "first", "small"}},
		{Priority, true, []string{"small", "first", "late", "vip"}},
		{Deadline, false, []string{"late", "first", "small", "vip"}},
		{Fair, false, []string{"small", "first", "vip", "late"}},
	} {
		cfg := aged(c.order)
		cfg.HighFirst = c.high
		q := New(cfg)
		push(t, q, 4*second, items()...)
		if diff := cmp.Diff(c.want, drain(q, 5*second, byTenant)); diff != "" {
			t.Errorf("%s, high first %v: %s", c.order, c.high, diff)
		}
	}
}

func TestALongPromptIsNotOvertakenForEver(t *testing.T) {
	q := New(aged(Shortest))
	push(t, q, 0, &Item{Tenant: "long", Arrived: 0, Tokens: 8000})
	for i := range int64(10) {
		now := i * second
		push(t, q, now, &Item{Tenant: "short", Arrived: now})
		it := q.Pop()
		q.Served(it, now)
		if it.Tenant == "long" {
			if i != 4 {
				t.Errorf("the long prompt was served after %d s, want 4", i)
			}
			return
		}
	}
	t.Error("the long prompt was never served")
}

func TestALowPriorityIsServedInTheEnd(t *testing.T) {
	q := New(aged(Priority))
	push(t, q, 0, &Item{Tenant: "low", Arrived: 0, Priority: 2})
	served := int64(-1)
	for i := range int64(60) {
		now := i * second
		push(t, q, now, &Item{Tenant: "high", Arrived: now, Priority: 0})
		it := q.Pop()
		q.Served(it, now)
		if it.Tenant == "low" {
			served = i
			break
		}
	}
	if served < 19 || served > 21 {
		t.Errorf("two steps lower was served after %d s, want 20", served)
	}
}

func TestAHeavyTenantDoesNotStarveALightOne(t *testing.T) {
	cfg := config(Fair)
	cfg.Quantum, cfg.MaxRequests = 1000, 2000
	q := New(cfg)
	for i := range int64(1000) {
		push(t, q, 0, &Item{Tenant: "heavy", Arrived: i, Tokens: 500})
	}
	drained := 0
	for range 100 { // heavy is the only tenant, so no other tenant limits it
		q.Served(q.Pop(), second)
		drained++
	}
	push(t, q, second, &Item{Tenant: "light", Arrived: second, Tokens: 900})
	for i := range 10 {
		it := q.Pop()
		q.Served(it, second)
		if it.Tenant == "light" {
			if i > 2 { // at most the rest of the heavy tenant's quantum is served before the light tenant
				t.Errorf("served after %d of the heavy tenant's, want 2 at the most", i)
			}
			return
		}
	}
	t.Error("the light tenant is starved")
}

func TestTenantsShareByTokensNotByRequests(t *testing.T) {
	cfg := config(Fair)
	cfg.Quantum, cfg.MaxRequests = 1000, 4000
	q := New(cfg)
	for i := range int64(1000) {
		push(t, q, 0, &Item{Tenant: "long", Arrived: i, Tokens: 4000}, &Item{Tenant: "short", Arrived: i, Tokens: 100})
	}
	got := map[string]int{}
	for got["long"]+got["short"] < 400_000 {
		it := q.Pop()
		got[it.Tenant] += it.Tokens
		q.Served(it, 0)
		if q.Len() == 0 {
			break
		}
	}
	// Tenant short asks for 100,000 tokens in total. Until short has them, both tenants get the same number of tokens,
	// up to a difference of one request and one quantum.
	if d := got["long"] - got["short"]; got["short"] == 100_000 && d < 0 {
		t.Errorf("%v", got)
	}
	q = New(cfg)
	for i := range int64(1000) {
		push(t, q, 0, &Item{Tenant: "long", Arrived: i, Tokens: 4000}, &Item{Tenant: "short", Arrived: i, Tokens: 100})
	}
	clear(got)
	for got["short"] < 90_000 {
		it := q.Pop()
		got[it.Tenant] += it.Tokens
		q.Served(it, 0)
		if d := got["long"] - got["short"]; d > 4000+1000 || d < -4000-1000 {
			t.Fatalf("the shares are %d tokens apart: %v", d, got)
		}
	}
}

// A tenant that always has exactly one waiting request must not count as a new tenant each time.
func TestATenantWithOneRequestAtATimeDoesNotStarveOthers(t *testing.T) {
	cfg := config(Fair)
	cfg.Quantum = 1000
	q := New(cfg)
	for i := range int64(50) {
		push(t, q, 0, &Item{Tenant: "many", Arrived: i, Tokens: 600})
	}
	got := map[string]int{}
	push(t, q, 0, &Item{Tenant: "one", Tokens: 200})
	for range 60 {
		it := q.Pop()
		got[it.Tenant] += it.Tokens
		q.Served(it, 0)
		if it.Tenant == "one" {
			push(t, q, 0, &Item{Tenant: "one", Tokens: 200})
		}
	}
	if d := got["many"] - got["one"]; d < -2000 || d > 2000 {
		t.Errorf("tokens served %v: want equal shares, as both always wait", got)
	}
}

func TestAnswersCountTowardsATenantsShare(t *testing.T) {
	cfg := config(Fair)
	cfg.Quantum, cfg.OutputWeight = 1000, 2
	q := New(cfg)
	for i := range int64(4) {
		push(t, q, 0, &Item{Tenant: "talker", Arrived: i, Tokens: 10}, &Item{Tenant: "quiet", Arrived: 10 + i, Tokens: 10})
	}
	q.Charge("talker", 5000)
	want := []string{"quiet", "quiet", "quiet", "quiet", "talker", "talker", "talker", "talker"}
	if diff := cmp.Diff(want, drain(q, 0, byTenant)); diff != "" {
		t.Error(diff)
	}
	q.Charge("talker", 5000)
	push(t, q, 0, &Item{Tenant: "talker", Tokens: 1}, &Item{Tenant: "quiet", Tokens: 2})
	if got := drain(q, 0, byTenant); got[0] != "talker" {
		t.Error("a charge counts while others wait, not for later")
	}
}

func TestAFullQueueRefuses(t *testing.T) {
	cfg := config(FCFS)
	cfg.MaxRequests, cfg.MaxBytes = 2, 100
	q := New(cfg)
	push(t, q, 0, &Item{Bytes: 90})
	if _, refused := q.Push(&Item{Bytes: 11}, 0); refused == nil || !refused.Full || refused.RetryAfter < time.Second {
		t.Errorf("too many bytes: %+v", refused)
	}
	push(t, q, 0, &Item{Bytes: 10})
	if _, refused := q.Push(&Item{}, 0); refused == nil || !refused.Full {
		t.Errorf("too many requests: %+v", refused)
	}
	if q.Len() != 2 || q.Bytes() != 100 {
		t.Errorf("%d requests of %d bytes wait", q.Len(), q.Bytes())
	}
	q.Served(q.Pop(), 0)
	push(t, q, 0, &Item{Bytes: 90})
}

func TestARequestThatWouldWaitTooLongIsRefusedAtOnce(t *testing.T) {
	q := New(config(FCFS))
	for i := range int64(40) {
		push(t, q, 0, &Item{Arrived: i})
	}
	if _, refused := q.Push(&Item{Deadline: 1}, 0); refused != nil {
		t.Fatalf("nothing is known of the pace, and still: %v", refused)
	}
	for i := range int64(20) { // one a second
		q.Served(q.Pop(), i*second)
	}
	now := 19 * second
	push(t, q, now, &Item{Arrived: now, Deadline: now + 25*second}) // 21 requests wait before this one
	_, refused := q.Push(&Item{Arrived: now, Deadline: now + 10*second}, now)
	if refused == nil || refused.Full {
		t.Fatalf("23 s of queue and 10 s of patience: %+v", refused)
	}
	if s := refused.RetryAfter.Seconds(); s < 12 || s > 14 {
		t.Errorf("retry after %.1f s, want 13: when the queue is 10 s long", s)
	}
	push(t, q, now, &Item{Arrived: now}) // an item without a deadline
}

func TestRetryAfterGoesByThePace(t *testing.T) {
	q := New(config(FCFS))
	for i := range int64(30) {
		push(t, q, 0, &Item{Arrived: i})
	}
	if _, known := q.RetryAfter(0); known {
		t.Error("a pace is known before anybody was served")
	}
	for i := range int64(20) {
		q.Served(q.Pop(), i*second)
	}
	if retry, known := q.RetryAfter(19 * second); !known || retry < 10*time.Second || retry > 12*time.Second {
		t.Errorf("ten wait at one a second: retry after %v, known %v", retry, known)
	}
}

func TestAReturnedRequestKeepsItsPlace(t *testing.T) {
	for _, order := range orders[1:] {
		cfg := config(order)
		cfg.Quantum = 1
		q := New(cfg)
		for i := range int64(6) {
			push(t, q, 0, &Item{Tenant: fmt.Sprint("t", i%2), Arrived: i, Tokens: int(i), Priority: int(i), Deadline: i + 1})
		}
		q.Served(q.Pop(), 0)
		before := q.Shares()
		var first, second int64
		for range 10 { // the item finds no room several times
			a, b := q.Pop(), q.Pop()
			first, second = a.Arrived, b.Arrived
			q.Return(a)
			q.Return(b)
		}
		if diff := cmp.Diff(before, q.Shares()); diff != "" {
			t.Errorf("%s: %s", order, diff)
		}
		if x, y := q.Pop(), q.Pop(); x.Arrived != first || y.Arrived != second {
			t.Errorf("%s: %d, %d came back as %d, %d", order, first, second, x.Arrived, y.Arrived)
		}
	}
}

func TestARequestMayLeaveDuringItsTurn(t *testing.T) {
	q := New(config(Fair))
	push(t, q, 0, &Item{Tenant: "a", Bytes: 5}, &Item{Tenant: "b", Bytes: 6})
	before := q.Shares()
	it := q.Pop()
	if q.Len() != 2 || q.Bytes() != 11 {
		t.Errorf("during a turn %d requests of %d bytes wait", q.Len(), q.Bytes())
	}
	if diff := cmp.Diff(before, q.Shares()); diff != "" {
		t.Error(diff)
	}
	if !q.Remove(it) || q.Remove(it) {
		t.Error("it is not removed once")
	}
	if other := q.Pop(); other == nil || other == it || q.Len() != 1 || q.Bytes() != other.Bytes {
		t.Errorf("then %+v is next, and %d requests of %d bytes wait", other, q.Len(), q.Bytes())
	}
}

// A request that has its turn still counts towards the queue's limit, because Return may put it back.
func TestATurnMakesNoRoom(t *testing.T) {
	c := config(FCFS)
	c.MaxRequests = 1
	q := New(c)
	push(t, q, 0, &Item{})
	it := q.Pop()
	if _, refused := q.Push(&Item{}, 0); refused == nil || !refused.Full {
		t.Errorf("one more is taken: %v", refused)
	}
	q.Served(it, 0)
	push(t, q, 0, &Item{})
}

// Random calls are compared with a plain set of items: no request is lost or returned twice, and the counts are right.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := config(orders[1:][seed%5])
		cfg.MaxRequests, cfg.MaxBytes, cfg.Quantum = 20, 60, 50
		q := New(cfg)
		waiting, out := map[*Item]bool{}, map[*Item]bool{}
		now := int64(0)
		for range 2000 {
			now += r.Int64N(second)
			for it := range out { // the item's turn ends
				if r.IntN(2) == 0 {
					break
				}
				delete(out, it)
				switch r.IntN(3) {
				case 0:
					q.Return(it)
				case 1:
					q.Served(it, now)
					delete(waiting, it)
				case 2:
					if !q.Remove(it) {
						t.Fatal("not removed during its turn")
					}
					delete(waiting, it)
				}
			}
			switch r.IntN(6) {
			case 0, 1:
				it := &Item{Tenant: fmt.Sprint(r.IntN(4)), Priority: r.IntN(5), Tokens: r.IntN(200), Bytes: int64(r.IntN(10)), Arrived: now, Deadline: now + r.Int64N(100*second)}
				shed, refused := q.Push(it, now)
				for _, s := range shed {
					if !waiting[s] || out[s] || refused != nil || q.Remove(s) {
						t.Fatalf("%+v is shed: it waits %v, has its turn %v, refused is %v", s, waiting[s], out[s], refused)
					}
					delete(waiting, s)
				}
				if refused == nil {
					waiting[it] = true
				}
			case 2:
				if it := q.Pop(); it != nil {
					if !waiting[it] || out[it] {
						t.Fatal("popped what does not wait")
					}
					out[it] = true
				}
			case 3:
				for it := range waiting {
					if !q.Remove(it) || q.Remove(it) {
						t.Fatal("not removed once")
					}
					delete(waiting, it)
					delete(out, it)
					break
				}
			case 4:
				q.Charge(fmt.Sprint(r.IntN(8)), r.IntN(300))
			case 5:
				if r.IntN(50) == 0 {
					cfg.Order = orders[1:][r.IntN(5)]
					q.Use(cfg)
				}
			}
			bytes := int64(0)
			for it := range waiting {
				bytes += it.Bytes
			}
			shares := 0
			for _, s := range q.Shares() {
				shares += s.Requests
				if s.Deficit > int64(cfg.Quantum) {
					t.Fatalf("%+v has saved up more than a quantum", s)
				}
			}
			if q.Len() != len(waiting) || q.Bytes() != bytes || shares != len(waiting) || len(q.lines) > 2*cfg.MaxRequests+1 {
				t.Fatalf("%d of %d bytes in %d lines, want %d of %d", q.Len(), q.Bytes(), len(q.lines), len(waiting), bytes)
			}
		}
	}
}

func TestValidateNamesEveryMistake(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{Order: "lifo", MaxKVUsed: 2}.Validate()
	for _, key := range []string{"order: ", "max_requests: ", "max_bytes: ", "max_wait: ", "ageing_tokens: ", "ageing_priority: ", "quantum: ", "max_kv_used: "} {
		found := false
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			found = found || len(e.Error()) > len(key) && e.Error()[:len(key)] == key
		}
		if !found {
			t.Errorf("%s is not named in: %v", key, err)
		}
	}
}

func BenchmarkPushPop(b *testing.B) {
	for _, order := range []string{FCFS, Fair} {
		q := New(config(order))
		for i := range int64(200) {
			q.Push(&Item{Tenant: fmt.Sprint(i % 20), Arrived: i, Tokens: 100}, 0)
		}
		b.Run(order, func(b *testing.B) {
			b.ReportAllocs()
			now := int64(200)
			for b.Loop() {
				now++
				it := q.Pop()
				q.Served(it, now)
				it.Arrived = now
				if _, refused := q.Push(it, now); refused != nil {
					b.Fatal("refused")
				}
			}
		})
	}
}

// After a change from one order to another, waiting requests are served as if they had arrived under the new order. No
// request is lost or counted twice.
func TestANewOrderAppliesToWaitingRequests(t *testing.T) {
	items := func() []*Item {
		return []*Item{
			{Tenant: "first", Arrived: 1 * second, Tokens: 9000, Priority: 5, Deadline: 90 * second, Bytes: 1},
			{Tenant: "small", Arrived: 2 * second, Tokens: 10, Priority: 9, Deadline: 91 * second, Bytes: 2},
			{Tenant: "vip", Arrived: 3 * second, Tokens: 5000, Priority: -3, Deadline: 92 * second, Bytes: 4},
			{Tenant: "late", Arrived: 4 * second, Tokens: 7000, Priority: 4, Deadline: 10 * second, Bytes: 8},
		}
	}
	orders := []string{Off, FCFS, Shortest, Priority, Deadline, Fair}
	for _, from := range orders {
		for _, to := range orders {
			fresh := New(aged(to))
			push(t, fresh, 5*second, items()...)
			want := drain(fresh, 5*second, byTenant)

			q := New(aged(from))
			all := items()
			push(t, q, 5*second, all...)
			q.Use(aged(to))
			if q.Len() != 4 || q.Bytes() != 15 {
				t.Errorf("%s to %s: %d wait with %d bytes", from, to, q.Len(), q.Bytes())
			}
			if !q.Remove(all[1]) {
				t.Errorf("%s to %s: one that waits cannot leave", from, to)
			}
			push(t, q, 5*second, all[1])
			if diff := cmp.Diff(want, drain(q, 5*second, byTenant)); diff != "" {
				t.Errorf("%s to %s: %s", from, to, diff)
			}
			if q.Len() != 0 || q.Bytes() != 0 {
				t.Errorf("%s to %s: %d are left with %d bytes", from, to, q.Len(), q.Bytes())
			}
		}
	}
}

func TestLowerLimitsApplyToNewRequests(t *testing.T) {
	q := New(config(FCFS))
	push(t, q, 0, &Item{}, &Item{}, &Item{})
	c := config(FCFS)
	c.MaxRequests = 2
	q.Use(c)
	if q.Len() != 3 {
		t.Errorf("%d of 3 wait", q.Len())
	}
	if _, refused := q.Push(&Item{}, 0); refused == nil || !refused.Full {
		t.Errorf("one more is taken: %v", refused)
	}
}
