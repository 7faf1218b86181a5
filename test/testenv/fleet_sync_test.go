package testenv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// cable is a TCP proxy of a test: a network connection that the test can cut and delay.
type cable struct {
	listener net.Listener
	target   string
	shuffles bool         // it carries messages of NATS, and swaps neighbours
	swapped  atomic.Int64 // pairs of messages that changed their order

	mu    sync.Mutex // guards the fields below
	cut   bool
	delay time.Duration
	conns map[net.Conn]bool
}

// newCable returns a cable to an address.
func newCable(t *testing.T, target string) *cable { return startCable(t, &cable{target: target}) }

func startCable(t *testing.T, l *cable) *cable {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.listener, l.conns = listener, map[net.Conn]bool{}
	var wg sync.WaitGroup
	wg.Go(func() { // ends when the listener is closed; the cleanup waits
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.carry(in) }) // ends when the line is cut; the cleanup waits
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.set(true, 0)
		wg.Wait()
	})
	return l
}

func (l *cable) addr() string { return l.listener.Addr().String() }

// set cuts the line or makes it whole, and sets the time that bytes take in each direction.
func (l *cable) set(cut bool, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.delay = cut, delay
	if cut {
		for c := range l.conns {
			_ = c.Close()
		}
	}
}

// hold notes a connection. It returns false if the line is cut.
func (l *cable) hold(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		l.conns[c] = true
	}
	return !l.cut
}

func (l *cable) carry(in net.Conn) {
	defer in.Close()
	if !l.hold(in) {
		return
	}
	out, err := net.DialTimeout("tcp", l.target, 5*time.Second)
	if err != nil {
		return
	}
	defer out.Close()
	if !l.hold(out) {
		return
	}
	var wg sync.WaitGroup
	if l.shuffles {
		wg.Go(func() { l.shuffle(out, in) })
		wg.Go(func() { l.shuffle(in, out) })
	} else {
		wg.Go(func() { l.copy(out, in) })
		wg.Go(func() { l.copy(in, out) })
	}
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, in)
	delete(l.conns, out)
}

// copy carries bytes until one end closes. Bytes wait in a queue for the delay, so that a delay does not bound the
// throughput.
func (l *cable) copy(to, from net.Conn) {
	type piece struct {
		data []byte
		due  time.Time
	}
	queue := make(chan piece, 4096)
	var wg sync.WaitGroup
	wg.Go(func() {
		for p := range queue {
			if wait := time.Until(p.due); wait > 0 {
				timer := time.NewTimer(wait)
				<-timer.C
			}
			_, _ = to.Write(p.data) // after an error the rest is lost
		}
		_ = to.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			l.mu.Lock()
			delay := l.delay
			l.mu.Unlock()
			queue <- piece{append([]byte(nil), buf[:n]...), time.Now().Add(delay)}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	wg.Wait()
}

// routers are several routers in front of the same engines.
type routers struct {
	engines []*mockengine.Server
	args    []string // of all routers
	files   []string // configurations
	logs    []string // files of decisions, also those of routers that were killed

	mu    sync.Mutex // guards the fields below while clients run
	all   []*testenv.Gateway
	kills map[*testenv.Gateway]time.Time // when routers were killed
}

// startEngines starts n mock engines, as fast as real ones.
func startEngines(t *testing.T, n int, changes ...func(i int, c *mockengine.Config)) (engines []*mockengine.Server) {
	t.Helper()
	for i := range n {
		engines = append(engines, mock(t, func(c *mockengine.Config) {
			c.Speed, c.Seed = 1, uint64(i)
			// An engine that is killed takes its ports again later. Those that the system chooses may go to others meanwhile.
			events := testenv.FreePort(t)
			c.Listen, c.Events = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("tcp://127.0.0.1:%d", events)
			c.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", events+1)
			for _, change := range changes {
				change(i, c)
			}
		}))
	}
	return engines
}

// startRouters starts n routers in front of engines. sync returns the settings of sync of a router.
func startRouters(t *testing.T, n int, engines []*mockengine.Server, sync func(i int) string, args ...string) *routers {
	t.Helper()
	r := &routers{engines: engines, args: args, kills: map[*testenv.Gateway]time.Time{}}
	for i := range n {
		// Engines' reports of their load would show the requests of other routers, too.
		text := patient + "reports: {interval: 0s}\nsync: " + sync(i) + "\n"
		file := filepath.Join(t.TempDir(), "warmpath.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.files = append(r.files, file)
		r.all = append(r.all, r.start(t, i))
	}
	for _, g := range r.all {
		g.Ready(t)
	}
	return r
}

// start starts router i, with a log of its own.
func (r *routers) start(t *testing.T, i int) *testenv.Gateway {
	t.Helper()
	log := filepath.Join(t.TempDir(), "decisions.jsonl")
	r.logs = append(r.logs, log)
	args := append([]string{"--config", r.files[i], "--decision-log", log}, r.args...)
	for _, e := range r.engines {
		args = append(args, "--worker", e.URL())
	}
	return testenv.Serve(t, args...)
}

// kill kills router i without warning.
func (r *routers) kill(i int) {
	r.mu.Lock()
	g := r.all[i]
	r.kills[g] = time.Now()
	r.mu.Unlock()
	g.Stop(syscall.SIGKILL)
}

// restart starts router i again, with the same settings. Clients use it once it is ready.
func (r *routers) restart(t *testing.T, i int) {
	t.Helper()
	g := r.start(t, i)
	g.Ready(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[i] = g
}

// killed reports whether a router was killed, or has stopped.
func (r *routers) killed(g *testenv.Gateway) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.kills[g].IsZero() || g.Exited()
}

// pick returns a router that was not killed, as a balancer does.
func (r *routers) pick(random *rand.Rand) *testenv.Gateway {
	for {
		r.mu.Lock()
		g := r.all[random.IntN(len(r.all))]
		r.mu.Unlock()
		if !r.killed(g) {
			return g
		}
	}
}

// replicas is the answer of GET /admin/replicas, as far as tests read it.
type replicas struct {
	Connected bool `json:"connected"`
	Peers     []struct {
		Name     string `json:"name"`
		Requests int    `json:"requests"`
		Whole    bool   `json:"whole"`
	} `json:"peers"`
	Counts struct {
		Repairs uint64            `json:"repairs"`
		Dropped map[string]uint64 `json:"dropped"`
	} `json:"counts"`
}

// together waits until each of the routers knows n others.
func (r *routers) together(t *testing.T, n int) {
	t.Helper()
	for i, g := range r.all {
		testenv.Until(t, fmt.Sprintf("router %d knows %d others", i, n), func() bool {
			var s replicas
			testenv.JSON(t, g.Admin+"/admin/replicas", &s)
			return len(s.Peers) == n
		})
	}
}

// loads returns the requests under way at each engine, as router i sees them.
func (r *routers) loads(t *testing.T, i int) string {
	t.Helper()
	var s state
	testenv.JSON(t, r.all[i].Admin+"/admin/workers", &s)
	var out []string
	for _, w := range s.Workers {
		n := int64(0)
		for _, h := range w.Holders {
			n += h.Load.Requests
		}
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, " ")
}

// sum returns the requests under way at all engines, as router i sees them.
func (r *routers) sum(t *testing.T, i int) (n int) {
	t.Helper()
	for _, one := range strings.Fields(r.loads(t, i)) {
		var k int
		_, _ = fmt.Sscan(one, &k)
		n += k
	}
	return n
}

// one waits until the given routers have one view, with n requests under way, and returns how long that took.
func (r *routers) one(t *testing.T, n int, which ...int) time.Duration {
	t.Helper()
	began := time.Now()
	testenv.Until(t, fmt.Sprintf("the routers %v have one view with %d requests", which, n), func() bool {
		first := r.loads(t, which[0])
		for _, i := range which[1:] {
			if r.loads(t, i) != first {
				return false
			}
		}
		return r.sum(t, which[0]) == n
	})
	return time.Since(began)
}

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
				history := []message{{"system", strings.Repeat(fmt.Sprintf("You are assistant %d. ", i%4), 60)}}
				for turn := range 3 + random.IntN(4) {
					if ctx.Err() != nil {
						return
					}
					history = append(history, message{"user", fmt.Sprintf("Talk %d of client %d: %s", talk, i, strings.Repeat("why? ", 10+random.IntN(60)))})
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
	ctx, cancel := context.WithCancel(context.Background())
	var bodies []io.Closer
	for k := range n {
		body := fmt.Sprintf(`{"model":"mock","max_tokens":30000,"min_tokens":30000,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"open %d at %d"}]}`, k, i)
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

// natsServer is the real nats-server as a process.
func natsServer(t *testing.T, port int) *testenv.Process {
	t.Helper()
	return testenv.Start(t, "nats-server", testenv.Installed(t, "nats/nats-server", "make interop"), "-a", "127.0.0.1", "-p", fmt.Sprint(port))
}

// busy is how much longer than its goal a repair may take here, since the machine that runs the tests may be busy. The
// log has the times; the goals are 1 s for one view, and 2 s for the load of a dead router.
const busy = 5

// quick fails if a repair took longer than its goal allows on a busy machine.
func quick(t *testing.T, what string, took, goal time.Duration) {
	t.Helper()
	t.Logf("%s: %v (the goal is %v)", what, took.Round(time.Millisecond), goal)
	if took > busy*goal {
		t.Errorf("%s: %v", what, took)
	}
}

// Four routers in front of eight engines share over a NATS server behind a line that is slowed and cut, and the server
// is killed and started again. All this is under load, and no request fails.
func TestRoutersShareOverNATSThroughFaults(t *testing.T) {
	testenv.Binary(t)
	port := testenv.FreePort(t)
	server := natsServer(t, port)
	var lines []*cable
	r := startRouters(t, 4, startEngines(t, 8), func(int) string {
		l := newCable(t, fmt.Sprintf("127.0.0.1:%d", port))
		lines = append(lines, l)
		return fmt.Sprintf(`{nats: "nats://%s", key: "a key of the test"}`, l.addr())
	})
	r.together(t, 3)
	c := r.startClients(t, 6)
	served := func(n int64) {
		t.Helper()
		from := c.sent.Load()
		testenv.Until(t, "requests are served meanwhile", func() bool { return c.sent.Load() >= from+n })
	}
	served(40)
	// Two routers are cut off. Their clients are served all the same.
	lines[0].set(true, 0)
	lines[1].set(true, 0)
	served(40)
	c.stop() // so that the view stands still
	closes := []func(){r.open(t, 0, 2), r.open(t, 3, 3)}
	if a, b := r.sum(t, 0), r.sum(t, 3); a == 5 || b == 5 {
		t.Errorf("the routers are not apart: they see %d and %d requests", a, b)
	}
	lines[0].set(false, 0)
	lines[1].set(false, 0)
	quick(t, "one view after a partition", r.one(t, 5, 0, 1, 2, 3), time.Second)
	for _, end := range closes {
		end()
	}
	r.one(t, 0, 0, 1, 2, 3)
	c.check(t)
	// NATS becomes slow, and then dies.
	c = r.startClients(t, 6)
	for _, l := range lines {
		l.set(false, 200*time.Millisecond)
	}
	served(40)
	server.Stop(syscall.SIGKILL)
	served(40)
	for _, l := range lines {
		l.set(false, 0)
	}
	c.stop() // so that the view stands still
	closes = []func(){r.open(t, 0, 2), r.open(t, 3, 3)}
	if a, b := r.sum(t, 0), r.sum(t, 3); a == 5 || b == 5 {
		t.Errorf("the routers are not apart without NATS: they see %d and %d requests", a, b)
	}
	natsServer(t, port)
	quick(t, "one view after NATS came back", r.one(t, 5, 0, 1, 2, 3), time.Second)
	for _, end := range closes {
		end()
	}
	r.one(t, 0, 0, 1, 2, 3)
	c.check(t)
	r.together(t, 3)
}

// Four routers with embedded servers: one is cut off, one is killed.
func TestRoutersShareOverEmbeddedServersThroughFaults(t *testing.T) {
	testenv.Binary(t)
	lines := make([][]*cable, 4)
	r := startRouters(t, 4, startEngines(t, 8), embeddedServers(t, lines))
	r.together(t, 3)
	c := r.startClients(t, 6)
	for _, l := range lines[0] {
		l.set(true, 0)
	}
	from := c.sent.Load()
	testenv.Until(t, "requests are served meanwhile", func() bool { return c.sent.Load() >= from+60 })
	c.check(t)
	closes := []func(){r.open(t, 0, 2), r.open(t, 3, 3)}
	for _, l := range lines[0] {
		l.set(false, 0)
	}
	quick(t, "one view after a partition", r.one(t, 5, 0, 1, 2, 3), time.Second)
	began := time.Now()
	_ = syscall.Kill(r.all[3].PID(), syscall.SIGKILL)
	testenv.Until(t, "the killed router's load is gone", func() bool { return r.sum(t, 0) == 2 && r.sum(t, 1) == 2 && r.sum(t, 2) == 2 })
	quick(t, "the load of a killed router is gone", time.Since(began), 2*time.Second)
	for _, end := range closes {
		end()
	}
	r.one(t, 0, 0, 1, 2)
	r.all[2].Stop(syscall.SIGTERM)
	r.one(t, 0, 0, 1)
	var s replicas
	testenv.JSON(t, r.all[0].Admin+"/admin/replicas", &s)
	if len(s.Peers) != 1 {
		t.Errorf("after a router stopped and one was killed, the first has %d peers", len(s.Peers))
	}
}

// A router that joins a group gets the index of another router, although no setting says where that one is.
func TestARouterThatJoinsStartsWarm(t *testing.T) {
	testenv.Binary(t)
	engines := []*mockengine.Server{mock(t, forgetful), mock(t, forgetful)}
	ports := []int{testenv.FreePort(t), testenv.FreePort(t)}
	join := func(i int, args ...string) *mockFleet {
		file := filepath.Join(t.TempDir(), "warmpath.yaml")
		text := fmt.Sprintf("%ssync: {key: \"a key of the test\", embedded: true, listen: 127.0.0.1:%d, routes: [nats-route://127.0.0.1:%d]}\n", patient, ports[i], ports[0])
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return serveFile(t, file, engines, args...)
	}
	a := join(0, "--policy", "round_robin") // so that both engines have something
	a.exact(t, engines...)                  // so that it misses nothing
	asked, workers := converse(t, a, 60)
	a.exact(t, engines...)
	b := join(1)
	b.exact(t, engines...)
	b.hits(t, asked[0], workers[0])
	if got := b.metric(t, `warmpath_checkpoints_total{outcome="confirmed"}`); got != 2 {
		t.Errorf("%v checkpoints are confirmed, want 2", got)
	}
}

// decisionsIn reads the decisions of a log.
func decisionsIn(t *testing.T, file string) (all []decision) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.Lines(string(text)) {
		if !strings.HasSuffix(one, "\n") {
			break // the router was killed while it wrote
		}
		var d decision
		if err := json.Unmarshal([]byte(one), &d); err != nil {
			t.Fatalf("%s: %v: %s", file, err, one)
		}
		all = append(all, d)
	}
	return all
}

// decision is a line of a log of decisions.
type decision struct {
	RequestID string    `json:"request_id"`
	Time      time.Time `json:"time"`
	Worker    string    `json:"worker"`
	Session   string    `json:"session_source"`
	Status    int       `json:"status"`
	Prompt    int       `json:"prompt_tokens"`
	Predicted int       `json:"predicted_tokens"`
	Reported  *int      `json:"reported_tokens"`
	FirstMS   float64   `json:"first_token_ms"`
}
