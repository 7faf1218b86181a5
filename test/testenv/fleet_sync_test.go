package testenv_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

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
	var lines []*testenv.Cable
	r := startRouters(t, 4, startEngines(t, 8), func(int) string {
		l := testenv.NewCable(t, fmt.Sprintf("127.0.0.1:%d", port))
		lines = append(lines, l)
		return fmt.Sprintf(`{nats: "nats://%s", key: "a key of the test"}`, l.Address())
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
	lines[0].Cut()
	lines[1].Cut()
	served(40)
	c.stop() // so that the view stands still
	closes := []func(){r.open(t, 0, 2), r.open(t, 3, 3)}
	if a, b := r.sum(t, 0), r.sum(t, 3); a == 5 || b == 5 {
		t.Errorf("the routers are not apart: they see %d and %d requests", a, b)
	}
	lines[0].Mend()
	lines[1].Mend()
	quick(t, "one view after a partition", r.one(t, 5, 0, 1, 2, 3), time.Second)
	for _, end := range closes {
		end()
	}
	r.one(t, 0, 0, 1, 2, 3)
	c.check(t)
	// NATS becomes slow, and then dies.
	c = r.startClients(t, 6)
	for _, l := range lines {
		l.SetDelay(200 * time.Millisecond)
	}
	served(40)
	server.Stop(syscall.SIGKILL)
	served(40)
	for _, l := range lines {
		l.SetDelay(0)
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
	lines := make([][]*testenv.Cable, 4)
	r := startRouters(t, 4, startEngines(t, 8), embeddedServers(t, lines))
	r.together(t, 3)
	c := r.startClients(t, 6)
	for _, l := range lines[0] {
		l.Cut()
	}
	from := c.sent.Load()
	testenv.Until(t, "requests are served meanwhile", func() bool { return c.sent.Load() >= from+60 })
	c.check(t)
	closes := []func(){r.open(t, 0, 2), r.open(t, 3, 3)}
	for _, l := range lines[0] {
		l.Mend()
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
