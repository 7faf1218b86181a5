package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// An answer in one piece does not wait for blocks without end: neither if its length is limited, nor if the prefill
// worker is lost.
func TestAWholeAnswerDoesNotWaitForBlocksWithoutEnd(t *testing.T) {
	for _, limited := range []bool{true, false} {
		t.Run(fmt.Sprintf("limited %v", limited), func(t *testing.T) {
			d := divide(t, 1, 1, func(s *settings) { s.gateway.TransferTimeout = 200 * time.Millisecond },
				func(_ fleet.Role, cfg *mockengine.Config) { cfg.Transfer.Lease = 2 * time.Second })
			body := legBodies()["/v1/chat/completions false"]
			if !limited {
				body = strings.Replace(body, `"max_tokens":24,`, "", 1)
			}
			set(d.prefill[0], func(f *mockengine.Faults) { f.HoldTransfers = true })
			ended := make(chan struct{})
			go func() { // the test waits for it
				defer close(ended)
				if status, got, _ := d.ask(t, "/v1/chat/completions", body); status != http.StatusOK || textIn(t, got) == "" {
					t.Errorf("status %d: %s", status, got)
				}
			}()
			if !limited {
				testenv.Until(t, "the decode worker waits for blocks", func() bool { return d.decode[0].Stats().Ranks[0].UsedBlocks > 0 })
				d.fleet.SetHealth(d.fleet.Snapshot().Workers()[0].ID, false, "frozen")
			}
			<-ended
			if r := d.Telemetry.Last(1)[0]; r.Attempts != 2 || r.PrefillWorker != "" || !strings.Contains(strings.Join(r.Failed, " "), "nothing came from") {
				t.Errorf("%+v", r)
			}
			set(d.prefill[0], func(f *mockengine.Faults) { f.HoldTransfers = false })
			d.released(t)
		})
	}
}
