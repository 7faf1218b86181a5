package testenv_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

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
