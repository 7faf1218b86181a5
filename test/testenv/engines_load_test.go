package testenv_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// loads has the fields of /admin/workers about load.
type loads struct {
	Workers []struct {
		Holders []struct {
			Rank int `json:"rank"`
			Load struct {
				Others *struct {
					Requests int `json:"requests"`
				} `json:"others"`
				Report *struct {
					Time    time.Time `json:"time"`
					Running int       `json:"running"`
					Waiting int       `json:"waiting"`
					KVUsed  float64   `json:"kv_used"`
				} `json:"report"`
			} `json:"load"`
		} `json:"holders"`
	} `json:"workers"`
}

// saysHowBusyItIs tests that the gateway notices the load of requests that clients send directly to an engine.
func saysHowBusyItIs(t *testing.T, e *realEngine) {
	gateway := testenv.Serve(t, "--worker", e.url)
	gateway.Ready(t)
	busy := func() (running int, reported bool, l loads) {
		testenv.JSON(t, gateway.Admin+"/admin/workers", &l)
		for _, w := range l.Workers {
			for _, h := range w.Holders {
				if r := h.Load.Report; r != nil && time.Since(r.Time) < 5*time.Second {
					reported = true
					running += r.Running + r.Waiting
				}
			}
		}
		return running, reported, l
	}
	testenv.WaitFor(t, time.Minute, "the engine to tell its load", func() error {
		if _, reported, l := busy(); !reported {
			return fmt.Errorf("it does not: %s", pretty(l))
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		for ctx.Err() == nil {
			body := `{"model":"tiny","prompt":"once upon a time","max_tokens":900,"ignore_eos":true,"stream":true}`
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				return
			}
			req.Header.Set("Content-Type", "application/json")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
	}()
	testenv.WaitFor(t, time.Minute, "the request of somebody else to be seen", func() error {
		if running, _, l := busy(); running != 1 {
			return fmt.Errorf("%d are: %s", running, pretty(l))
		}
		return nil
	})
	cancel()
	<-ended
	testenv.WaitFor(t, time.Minute, "the engine to be idle", func() error {
		if running, _, l := busy(); running != 0 {
			return fmt.Errorf("%d are: %s", running, pretty(l))
		}
		return nil
	})
}
