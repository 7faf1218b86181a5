package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// A prefill worker without a decode worker is named once, and so is the end of that.
func TestPrefillWorkersWithoutADecodeWorkerAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testenv.Buffer
		a := &App{fleet: fleet.New(fleet.Config{}), log: slog.New(slog.NewTextHandler(&log, nil))}
		put := func(url string, role fleet.Role, connector string) fleet.WorkerID {
			return a.fleet.Put(url, fleet.Facts{Models: []fleet.Model{{ID: "m"}}, Role: role, Transfer: fleet.Transfer{Connector: connector}})
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.watchRoles(ctx) }()
		read := 0
		says := func(when string, want ...string) {
			t.Helper()
			testenv.Pass(rolesEvery + time.Second)
			said := log.String()[read:]
			read += len(said)
			if strings.Count(said, "\n") != len(want) {
				t.Errorf("%s: the log has %q", when, said)
			}
			for _, part := range want {
				if !strings.Contains(said, part) {
					t.Errorf("%s: the log has %q, not %q", when, said, part)
				}
			}
		}
		put("http://p:1", fleet.RolePrefill, "nixl")
		says("a prefill worker alone", `all workers of the model have the role prefill; add one with the role decode or both" of="model m"`)
		says("later")
		d := put("http://d:1", fleet.RoleDecode, "sglang")
		says("a decode worker with another connector", `of="worker http://p:1"`, "nothing is missing any more")
		put("http://d:1", fleet.RoleDecode, "nixl")
		says("a decode worker", `nothing is missing any more" of="worker http://p:1"`)
		put("http://p:1", fleet.RolePrefill, "")
		says("no connector", "because it has no connector")
		put("http://p:1", fleet.RoleBoth, "")
		says("no role", "nothing is missing any more")
		a.fleet.Remove(d)
		says("workers without roles")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
