package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
)

func TestATransferHasASpan(t *testing.T) {
	var spans collector
	change, end := traced(t, &spans, 1)
	d := divide(t, 1, 1, func(s *settings) {
		change(s)
		s.gateway.TransferTimeout = 300 * time.Millisecond
	}, func(_ fleet.Role, c *mockengine.Config) { c.Transfer.Lease = time.Second })
	ask := func(stream string) {
		if status, got, _ := d.ask(t, "/v1/completions", legBodies()["/v1/completions "+stream]); status != http.StatusOK {
			t.Fatalf("status %d: %s", status, got)
		}
	}
	ask("false")
	ask("true")
	set(d.prefill[0], func(f *mockengine.Faults) { f.HoldTransfers = true })
	ask("true")
	set(d.prefill[0], func(f *mockengine.Faults) { f.HoldTransfers = false })
	if err := d.stop(); err != nil {
		t.Fatal(err)
	}
	end()
	for _, text := range []string{"warmpath.prefill_worker", "warmpath.connector", "nixl"} {
		if !spans.has(text) {
			t.Errorf("the spans lack %q", text)
		}
	}
	if n := spans.count("warmpath.transfer_tokens"); n != 2 {
		t.Errorf("%d spans of transfers, want one for each stream", n)
	}
}
