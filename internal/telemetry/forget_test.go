package telemetry

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// TestWorkersThatLeftAreForgotten checks that the number of series has a bound, although an autoscaled fleet has
// workers with new names every hour.
func TestWorkersThatLeftAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := New(DefaultConfig())
		src := Sources{Workers: func() []Worker { return []Worker{{URL: "http://stays"}} }}
		finish := func(worker string) {
			tel.Finished(&Record{Policy: "kv_aware", Worker: worker, Status: 200, PromptTokens: 10, ReportedTokens: number(0)})
		}
		finish("http://stays")
		finish("http://left")
		tel.Retried("http://failed", "failed")
		for range 15 {
			text := scrape(t, tel, src)
			has(t, text, `warmpath_requests_total{branch="",policy="kv_aware",status="200",worker="http://left"} 1`, `warmpath_retries_total{reason="failed",worker="http://failed"} 1`)
			testenv.Pass(time.Minute)
		}
		text := scrape(t, tel, src)
		has(t, text, `warmpath_requests_total{branch="",policy="kv_aware",status="200",worker="http://stays"} 1`)
		for _, gone := range []string{"http://left", "http://failed"} {
			if strings.Contains(text, gone) {
				t.Errorf("%s is still there:\n%s", gone, text)
			}
		}
		finish("http://left") // the worker came back, or its last request ended after it had left
		has(t, scrape(t, tel, src), `warmpath_requests_total{branch="",policy="kv_aware",status="200",worker="http://left"} 1`)
	})
}
