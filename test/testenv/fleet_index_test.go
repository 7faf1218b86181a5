package testenv_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// startIndex starts `warmpath index` at an address, with gRPC at a free port.
func startIndex(t *testing.T, address string) *testenv.Process {
	t.Helper()
	p := testenv.Start(t, "warmpath index", testenv.Binary(t), "index", "--listen", address,
		"--grpc-listen", fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)))
	testenv.Until(t, "the index service answers", func() bool {
		if p.Exited() {
			t.Fatalf("the index service ended: %s", p.Log())
		}
		return testenv.Reachable("http://"+address+"/health") == nil
	})
	return p
}

// trusted returns how many lines the admin API shows about holders of that trust.
func trusted(f *mockFleet, trust string) int {
	resp, err := http.Get(f.Admin + "/admin/workers")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	return strings.Count(strings.ReplaceAll(string(text), `": "`, `":"`), `"trust":"`+trust+`"`)
}

// A router asks an index service in place of an index of its own. The service is killed under load: no request fails,
// and load alone decides. When a service is there again, the router finds the prefixes again. A router that starts
// finds them at once.
func TestARouterWithAnIndexServiceLosesNothingWhenTheServiceDies(t *testing.T) {
	testenv.Binary(t)
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	index := startIndex(t, address)
	var engines []*mockengine.Server
	for range 3 {
		engines = append(engines, mock(t, nil))
	}
	f := serve(t, engines, "--index", "http://"+address)
	testenv.Until(t, "the service knows all caches", func() bool { return trusted(f, "exact") == 3 })

	story := []message{{"user", strings.Repeat("The index service knows where this story is. ", 40)}}
	first := f.chat(t, story, "")
	if first.status != http.StatusOK {
		t.Fatalf("%+v", first)
	}
	hit := func(f *mockFleet) bool {
		a := f.chat(t, story, "")
		return a.status == http.StatusOK && a.match > 0 && a.worker == first.worker && a.trust == "exact"
	}
	testenv.Until(t, "the story is found", func() bool { return hit(f) })

	var failed, sent atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				a := f.chat(t, []message{{"user", fmt.Sprintf("client %d asks a question for the %d. time", n, i)}}, "")
				sent.Add(1)
				if a.status != http.StatusOK || a.truncated {
					failed.Add(1)
					t.Logf("%+v", a)
				}
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		from := sent.Load()
		testenv.Until(t, "requests are served", func() bool { return sent.Load() >= from+n })
	}
	more(20)
	index.Stop(syscall.SIGKILL)
	testenv.Until(t, "the service's end is noticed", func() bool { return trusted(f, "none") == 3 })
	more(20)
	if a := f.chat(t, story, ""); a.status != http.StatusOK || a.match != 0 || a.trust != "none" {
		t.Errorf("without the service: %+v", a)
	}
	startIndex(t, address)
	testenv.Until(t, "the service knows all caches again", func() bool { return trusted(f, "exact") == 3 })
	testenv.Until(t, "the story is found again", func() bool { return hit(f) })
	more(20)
	close(stop)
	clients.Wait()
	if n := failed.Load(); n != 0 {
		t.Errorf("%d of %d requests failed", n, sent.Load())
	}

	// On a busy machine an answer may need longer than the default time.
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(file, []byte(patient+"index: {max_wait: 10s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := serveFile(t, file, engines, "--index", "http://"+address)
	testenv.Until(t, "the second router has the trust", func() bool { return trusted(second, "exact") == 3 })
	// The worker may be another one, which had the story while the service was down.
	if a := second.chat(t, story, ""); a.match == 0 || a.cached != a.match || a.trust != "exact" {
		t.Errorf("a router that starts does not find the story at once: %+v", a)
	}
}
