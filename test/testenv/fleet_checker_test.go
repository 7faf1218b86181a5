package testenv_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// A checker of histories: routers serve while a nemesis cuts, delays and kills at random. Afterwards the logs of
// decisions, the loads and the engines' reports must agree: every request that a client sent is in exactly one log, no
// load is left at any router, all routers have one view, and at most 1 % of the predictions are above what the engines
// report.
func TestHistoriesOfRoutersWithFaultsAreSound(t *testing.T) {
	testenv.Binary(t)
	port := testenv.FreePort(t)
	server := natsServer(t, port)
	var lines []*cable
	r := startRouters(t, 4, startEngines(t, 8), func(int) string {
		l := newCable(t, fmt.Sprintf("127.0.0.1:%d", port))
		lines = append(lines, l)
		return fmt.Sprintf(`{nats: "nats://%s"}`, l.addr())
	})
	r.together(t, 3)
	c := r.startClients(t, 6)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 8 {
		l := lines[random.IntN(len(lines))]
		switch random.IntN(4) {
		case 0:
			l.set(true, 0)
		case 1:
			l.set(false, time.Duration(random.IntN(300))*time.Millisecond)
		case 2:
			server.Stop(syscall.SIGKILL)
			server = natsServer(t, port)
		default:
			l.set(false, 0)
		}
		from := c.sent.Load()
		testenv.Until(t, "requests are served meanwhile", func() bool { return c.sent.Load() >= from+20 })
	}
	for _, l := range lines {
		l.set(false, 0)
	}
	c.check(t)
	r.together(t, 3)
	r.one(t, 0, 0, 1, 2, 3)
	for _, g := range r.all {
		g.Stop(syscall.SIGTERM) // the logs are whole
	}
	logged, above, known := int64(0), 0, 0
	for i, file := range r.logs {
		for _, d := range decisionsIn(t, file) {
			logged++
			if d.Status != 200 {
				t.Errorf("router %d answered %d", i, d.Status)
			}
			if d.Reported == nil {
				continue
			}
			known++
			if d.Predicted > *d.Reported {
				above++
			}
		}
	}
	if logged != c.sent.Load() {
		t.Errorf("clients sent %d requests, and the logs have %d", c.sent.Load(), logged)
	}
	t.Logf("%d decisions; of %d predictions %d are above the report", logged, known, above)
	if known == 0 || float64(above) > 0.01*float64(known) {
		t.Errorf("%d of %d predictions are above what the engine reports", above, known)
	}
}
