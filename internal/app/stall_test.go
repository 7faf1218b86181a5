package app_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/test/testenv"
)

// lockIndexes takes the locks of all indexes, and so acts as an operation that never ends. unlock releases the locks.
func lockIndexes(r *warmpath.Router) (unlock func()) {
	field := reflect.ValueOf(r).Elem().FieldByName("indexes")
	all := reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).MethodByName("Load").Call(nil)[0].Elem()
	var held []*sync.Mutex
	for it := all.MapRange(); it.Next(); {
		index := it.Value().Elem().FieldByName("index").Elem()
		mu := (*sync.Mutex)(unsafe.Pointer(index.FieldByName("mu").UnsafeAddr()))
		mu.Lock()
		held = append(held, mu)
	}
	return sync.OnceFunc(func() {
		for _, mu := range held {
			mu.Unlock()
		}
	})
}

// look requests a path and returns status and body. Every path that reports stalls must answer during a stall.
func (r *router) look(url string) (int, string) {
	r.t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		r.t.Fatalf("%s does not answer: %v", url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// stall returns a router whose index stays locked. Events then wait, but requests do not.
func stall(t *testing.T, log io.Writer) (r *router, unlock func()) {
	e := engine(t, nil)
	cfg := settings(e)
	cfg.Gateway.DrainTimeout = time.Minute
	r = startWith(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	r.exact(1)
	ask := func(url, prompt string) bool {
		body := `{"model":"mock","prompt":"` + strings.Repeat(prompt+" ", 200) + `","max_tokens":4}`
		client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err == nil && resp.StatusCode == http.StatusOK
	}
	ask(r.url, "before")
	// This request makes the router fetch its figures once, so that it has last known figures.
	r.look("http://" + r.AdminAddr().String() + "/admin/workers")
	unlock = lockIndexes(r.Router())
	t.Cleanup(unlock)
	ask(e.URL(), "past the router") // the router gets events about this request, and cannot apply them
	if !ask(r.url, "through the router") {
		t.Error("a request waits for the index")
	}
	return r, unlock
}

func TestAStallIsVisibleWhileTheIndexIsLockedForEver(t *testing.T) {
	r, unlock := stall(t, io.Discard)
	backend := "http://" + r.AdminAddr().String()
	var reason string
	r.wait("readiness says 503", func() bool {
		status, body := r.look(r.url + "/readiness")
		reason = body
		return status == http.StatusServiceUnavailable
	})
	if !strings.Contains(reason, "stalled: events") {
		t.Errorf("reason %s", reason)
	}
	for _, url := range []string{r.url + "/health", backend + "/health"} {
		if status, body := r.look(url); status != http.StatusOK {
			t.Errorf("%s: %d %s", url, status, body)
		}
	}
	r.wait("events are stalled", func() bool {
		status, body := r.look(backend + "/metrics")
		return status == http.StatusOK && strings.Contains(body, `warmpath_stalled{what="events"} 1`) && !strings.Contains(body, "warmpath_stale_seconds 0\n")
	})
	var shown admin.Workers
	status, body := r.look(backend + "/admin/workers")
	if err := json.Unmarshal([]byte(body), &shown); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s: %v", status, body, err)
	}
	if shown.StaleSeconds <= 0 || !strings.Contains(shown.Stalled, "no progress") || len(shown.Index) != 1 {
		t.Errorf("stale for %v s, stalled %q, %d indexes: the last known figures with their age are wanted", shown.StaleSeconds, shown.Stalled, len(shown.Index))
	}
	unlock()
	r.wait("readiness says 200", func() bool {
		status, _ := r.look(r.url + "/readiness")
		return status == http.StatusOK
	})
	r.wait("no figure is stale", func() bool {
		_, body := r.look(backend + "/metrics")
		return strings.Contains(body, "warmpath_stale_seconds 0\n") && strings.Contains(body, `warmpath_stalled{what="events"} 0`)
	})
}

func TestTheProcessEndsWhateverIsLocked(t *testing.T) {
	var log testenv.Buffer
	r, unlock := stall(t, &log)
	r.wait("the log tells of the stall", func() bool { return strings.Contains(log.String(), "no progress: readiness answers 503") })
	began := time.Now()
	err := r.stop()
	if err == nil || !strings.Contains(err.Error(), "ingest") || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("error %v, want what hangs", err)
	}
	// No request is under way, so the drain ends at once. The stop takes the 5 s of endMargin. The rest of the limit is
	// for a busy machine.
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if text := log.String(); !strings.Contains(text, "a component hangs") {
		t.Errorf("log:\n%s", text)
	}
	unlock()
	r.wait("what hung has ended", func() bool { return !r.listens() })
}

// listens reports whether the router's address accepts connections.
func (r *router) listens() bool {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(r.url + "/health")
	if err == nil {
		_ = resp.Body.Close()
	}
	return err == nil
}

func TestWorkThatDoesNotEndIsTheOldest(t *testing.T) {
	var p telemetry.Progress
	now := time.Now()
	stuck := p.Begin(now.Add(-time.Minute).UnixNano())
	for range 10_000 { // other work begins and ends
		p.End(p.Begin(now.UnixNano()))
	}
	if age := p.Oldest(now); age != time.Minute {
		t.Errorf("the oldest is %v", age)
	}
	p.End(stuck)
	if age := p.Oldest(now); age != 0 {
		t.Errorf("the oldest is %v with nothing under way", age)
	}
}
