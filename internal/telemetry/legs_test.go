package telemetry

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestLegsAndTransfersAreCounted(t *testing.T) {
	tel := New(DefaultConfig())
	tel.Divided("")
	tel.Divided("short")
	tel.Divided("short")
	tel.Leg("prefill", 30*time.Millisecond)
	tel.Leg("decode", 80*time.Millisecond)
	tel.LegFailed("decode", PhaseTransfer)
	tel.Transfer(1000, 131072000, 20*time.Millisecond)
	tel.Transfer(500, 0, 20*time.Millisecond)
	tel.LeaseAborted(true)
	tel.LeaseAborted(false)
	tel.Fetched(640)
	has(t, scrape(t, tel, Sources{}),
		`warmpath_divided_total 1`,
		`warmpath_bypassed_total{reason="short"} 2`,
		`warmpath_leg_requests_total{leg="prefill"} 1`,
		`warmpath_leg_requests_total{leg="decode"} 1`,
		`warmpath_leg_seconds_sum{leg="prefill"} 0.03`,
		`warmpath_leg_failures_total{leg="decode",phase="transfer"} 1`,
		`warmpath_leg_failures_total{leg="prefill",phase="prefill"} 0`,
		`warmpath_transfer_seconds_count 2`,
		`warmpath_transfer_seconds_bucket{le="0.01"} 0`,
		`warmpath_transfer_tokens_total 1500`,
		`warmpath_transfer_bytes_total 1.31072e+08`,
		`warmpath_leases_aborted_total{outcome="sent"} 1`,
		`warmpath_leases_aborted_total{outcome="not_sent"} 1`,
		`warmpath_fetched_tokens_total 640`)
}

func TestTheRecordOfAnUndividedRequestHasNoFieldsOfLegs(t *testing.T) {
	text, err := json.Marshal(Record{Worker: "http://a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"prefill", "bypass", "division", "transfer", "fetched"} {
		if strings.Contains(string(text), field) {
			t.Errorf("%s: %s", field, text)
		}
	}
}
