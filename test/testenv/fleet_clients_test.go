package testenv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// clients send conversations to routers until they are stopped.
type clients struct {
	sent, failed atomic.Int64
	mu           sync.Mutex // guards the fields below
	faults       []string
	attempts     []attempt
	stop         func()
}

// attempt is one request as its client saw it.
type attempt struct {
	id       string // X-Request-Id
	router   *testenv.Gateway
	ended    time.Time
	accepted bool // the client has the whole answer
}

// turn sends one turn of a conversation, and returns the answer's text. If the router is killed meanwhile, the client
// sends the turn to another router.
func (c *clients) turn(r *routers, random *rand.Rand, id, body string) string {
	for try := 1; ; try++ {
		g := r.pick(random)
		one := attempt{id: fmt.Sprintf("%s-try-%d", id, try), router: g}
		a := (&mockFleet{Gateway: g}).post(body, one.id)
		one.ended, one.accepted = time.Now(), a.status == http.StatusOK && !a.truncated
		again := !one.accepted && r.killed(g)
		c.mu.Lock()
		c.attempts = append(c.attempts, one)
		if !one.accepted && !again {
			c.faults = append(c.faults, fmt.Sprintf("%s: %d %.300s", one.id, a.status, a.body))
		}
		c.mu.Unlock()
		if again {
			continue
		}
		c.sent.Add(1)
		if !one.accepted {
			c.failed.Add(1)
		}
		return a.text
	}
}

// startClients starts n clients. Each turn of a conversation goes to a router of its own.
func (r *routers) startClients(t *testing.T, n int) *clients {
	t.Helper()
	c := &clients{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { // ends after stop; stop waits
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for talk := 0; ctx.Err() == nil; talk++ {
				history := []message{{"system", strings.Repeat(fmt.Sprintf("You are assistant %d. ", i%4), 20)}}
				for turn := range 3 + random.IntN(4) {
					if ctx.Err() != nil {
						return
					}
					history = append(history, message{"user", fmt.Sprintf("Talk %d of client %d: %s", talk, i, strings.Repeat("why? ", 20+random.IntN(100)))})
					messages, err := json.Marshal(history)
					if err != nil {
						panic(err)
					}
					body := fmt.Sprintf(`{"model":"mock","max_tokens":24,"messages":%s}`, messages)
					text := c.turn(r, random, fmt.Sprintf("client-%d-talk-%d-turn-%d", i, talk, turn), body)
					history = append(history, message{"assistant", text})
				}
			}
		})
	}
	c.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(c.stop)
	return c
}

// check stops the clients, and fails if a request failed.
func (c *clients) check(t *testing.T) {
	t.Helper()
	c.stop()
	if n := c.failed.Load(); n > 0 || c.sent.Load() == 0 {
		t.Errorf("%d of %d requests failed: %v", n, c.sent.Load(), c.faults[:min(len(c.faults), 3)])
	}
	t.Logf("%d requests, %d failed", c.sent.Load(), c.failed.Load())
}

// open begins n requests at router i, whose answers do not end before close is called. It returns when each has its
// first token.
func (r *routers) open(t *testing.T, i, n int) (closeAll func()) {
	t.Helper()
	return r.openWith(t, "mock", i, n)
}

// openWith is open with another model.
func (r *routers) openWith(t *testing.T, model string, i, n int) (closeAll func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var bodies []io.Closer
	for k := range n {
		body := fmt.Sprintf(`{"model":%q,"max_tokens":30000,"min_tokens":30000,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"open %d at %d"}]}`, model, k, i)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.all[i].URL+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("open a request: %v %v", err, resp)
		}
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, resp.Body)
	}
	closeAll = sync.OnceFunc(func() {
		cancel()
		for _, b := range bodies {
			_ = b.Close()
		}
	})
	t.Cleanup(closeAll)
	return closeAll
}
