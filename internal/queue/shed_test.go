package queue

import (
	"fmt"
	"testing"
)

// full returns a queue of the given order with room for ten requests and 100 bytes.
func full(order string) *Queue {
	cfg := config(order)
	cfg.MaxRequests, cfg.MaxBytes = 10, 100
	return New(cfg)
}

func names(items []*Item) (out []string) {
	for _, it := range items {
		out = append(out, fmt.Sprint(it.Tenant, it.Arrived))
	}
	return out
}

func TestAFullFairQueueShedsTheHeavyTenantsNewestRequest(t *testing.T) {
	q := full(Fair)
	for i := range int64(10) {
		push(t, q, i, &Item{Tenant: "heavy", Arrived: i})
	}
	for i := range int64(5) {
		shed, refused := q.Push(&Item{Tenant: "light", Arrived: 100 + i}, 100+i)
		if refused != nil || len(shed) != 1 || shed[0].Tenant != "heavy" || shed[0].Arrived != 9-i {
			t.Fatalf("request %d: shed %v, refused %v", i, names(shed), refused)
		}
		if q.Remove(shed[0]) {
			t.Error("what was shed still waits")
		}
	}
	if shed, refused := q.Push(&Item{Tenant: "light", Arrived: 200}, 200); refused == nil || !refused.Full || shed != nil {
		t.Errorf("five wait of each, and one more sheds %v", names(shed))
	}
	if shed, refused := q.Push(&Item{Tenant: "heavy", Arrived: 200}, 200); refused == nil || !refused.Full || shed != nil {
		t.Errorf("five wait of each, and one more of the heavy tenant sheds %v", names(shed))
	}
	if q.Len() != 10 {
		t.Errorf("%d wait", q.Len())
	}
}

func TestAQueueFullOfBytesShedsTheTenantWithTheMostBytes(t *testing.T) {
	q := full(Fair)
	for i := range int64(6) { // most requests, few bytes
		push(t, q, i, &Item{Tenant: "many", Arrived: i, Bytes: 1})
	}
	push(t, q, 6, &Item{Tenant: "big", Arrived: 6, Bytes: 30}, &Item{Tenant: "big", Arrived: 7, Bytes: 30}, &Item{Tenant: "big", Arrived: 8, Bytes: 30})
	shed, refused := q.Push(&Item{Tenant: "light", Arrived: 9, Bytes: 20}, 9)
	if refused != nil || len(shed) != 1 || names(shed)[0] != "big8" || q.Bytes() != 86 {
		t.Errorf("shed %v, refused %v, %d bytes wait", names(shed), refused, q.Bytes())
	}
	// The new item's tenant would have more than the heavy tenant keeps, so the item is refused. Nothing may have
	// changed, although Push removes some requests before it knows this.
	before := q.Bytes()
	if shed, refused := q.Push(&Item{Tenant: "other", Arrived: 10, Bytes: 50}, 10); refused == nil || shed != nil || q.Bytes() != before || q.Len() != 9 {
		t.Errorf("shed %v, refused %v, %d bytes of %d requests wait", names(shed), refused, q.Bytes(), q.Len())
	}
	if _, refused := q.Push(&Item{Tenant: "giant", Bytes: 101}, 10); refused == nil || q.Len() != 9 {
		t.Errorf("a request that never fits: %v", refused)
	}
}

func TestOrdersWithoutTenantsShedNothing(t *testing.T) {
	for _, order := range []string{FCFS, Shortest, Priority, Deadline} {
		q := full(order)
		for i := range int64(10) {
			push(t, q, i, &Item{Tenant: "heavy", Arrived: i, Priority: 9, Tokens: 9999, Deadline: 1000 * second})
		}
		if shed, refused := q.Push(&Item{Tenant: "light", Arrived: 20, Deadline: 999 * second}, 20); refused == nil || shed != nil {
			t.Errorf("%s sheds %v", order, names(shed))
		}
	}
}

func TestAnEmptiedLimitIsNotFilledBySheddingMore(t *testing.T) {
	q := full(Fair)
	for i := range int64(10) {
		push(t, q, i, &Item{Tenant: "heavy", Arrived: i})
	}
	cfg := q.cfg
	cfg.MaxRequests = 3
	q.Use(cfg)
	if shed, refused := q.Push(&Item{Tenant: "light", Arrived: 20}, 20); refused != nil || len(shed) != 1 || q.Len() != 10 {
		t.Errorf("after the limit was lowered: shed %v, refused %v, %d wait", names(shed), refused, q.Len())
	}
}

// Five clients compete with 2,000 clients of another tenant. Each of the five clients sends its next request when it
// has the answer. None of their requests may be refused.
func TestNoRequestOfALightTenantIsRefusedForAHeavyOne(t *testing.T) {
	q := New(config(Fair))
	type client struct {
		tenant string
		asks   int64 // when the client sends its next request
	}
	var clients []*client
	for i := range 2005 {
		tenant := "heavy"
		if i%401 == 0 {
			tenant = "light"
		}
		clients = append(clients, &client{tenant: tenant, asks: int64(i)})
	}
	owner := map[*Item]*client{}
	asked, refused := map[string]int{}, map[string]int{}
	refuse := func(c *client, now int64) {
		refused[c.tenant]++
		c.asks = now + second // Retry-After
	}
	for now := int64(0); now < 30*second; now += second / 40 { // forty requests are served each second
		for _, c := range clients {
			if c.asks > now {
				continue
			}
			asked[c.tenant]++
			c.asks = 1 << 62
			it := &Item{Tenant: c.tenant, Arrived: now, Tokens: 500, Deadline: now + 30*second, Bytes: 2000}
			shed, no := q.Push(it, now)
			for _, s := range shed {
				refuse(owner[s], now)
				delete(owner, s)
			}
			if no != nil {
				refuse(c, now)
				continue
			}
			owner[it] = c
		}
		it := q.Pop()
		q.Served(it, now)
		owner[it].asks = now + second
		delete(owner, it)
	}
	t.Logf("refused: %d of %d of the light tenant, %d of %d of the heavy one", refused["light"], asked["light"], refused["heavy"], asked["heavy"])
	if refused["light"] != 0 || asked["light"] < 71 || refused["heavy"] == 0 {
		t.Errorf("refused: %v of %v", refused, asked)
	}
}
