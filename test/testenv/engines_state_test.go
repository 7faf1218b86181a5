package testenv_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// trustState has the fields of /admin/workers that the tests read.
type trustState struct {
	Workers []struct {
		URL     string `json:"url"`
		Ready   bool   `json:"ready"`
		Why     string `json:"why"`
		Holders []struct {
			Rank        int    `json:"rank"`
			Trust       string `json:"trust"`
			TrustReason string `json:"trust_reason"`
			IndexBlocks int    `json:"index_blocks"`
		} `json:"holders"`
	} `json:"workers"`
}

func stateOf(t *testing.T, g *testenv.Gateway) trustState {
	t.Helper()
	var s trustState
	testenv.JSON(t, g.Admin+"/admin/workers", &s)
	return s
}

// waitTrust waits until the given number of holders has the given trust.
func waitTrust(t *testing.T, g *testenv.Gateway, trust string, holders int) {
	t.Helper()
	testenv.WaitFor(t, 60*time.Second, fmt.Sprintf("%d holders to be %s", holders, trust), func() error {
		s, n := stateOf(t, g), 0
		for _, w := range s.Workers {
			for _, h := range w.Holders {
				if h.Trust == trust {
					n++
				}
			}
		}
		if n != holders {
			return fmt.Errorf("%d are: %s", n, pretty(s))
		}
		return nil
	})
}

// workerState returns nil if the worker at url is ready.
func workerState(t *testing.T, g *testenv.Gateway, url string) error {
	t.Helper()
	for _, w := range stateOf(t, g).Workers {
		if w.URL == url && w.Ready {
			return nil
		}
		if w.URL == url {
			return fmt.Errorf("%s is not ready: %s", url, w.Why)
		}
	}
	return fmt.Errorf("%s is not known", url)
}

// ranksWithBlocks returns the number of holders for which the index has blocks.
func ranksWithBlocks(t *testing.T, g *testenv.Gateway) int {
	t.Helper()
	n := 0
	for _, w := range stateOf(t, g).Workers {
		for _, h := range w.Holders {
			if h.IndexBlocks > 0 {
				n++
			}
		}
	}
	return n
}
