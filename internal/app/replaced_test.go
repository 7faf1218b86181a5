package app_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// Under load, every worker is replaced through a source of workers: the new one joins, the old one drains and
// leaves, and is stopped. No request fails, and no stream is cut.
func TestEveryWorkerIsReplacedUnderLoad(t *testing.T) {
	for name, begin := range replacing {
		t.Run(name, func(t *testing.T) { replaceAll(t, begin()) })
	}
}

// replacer makes a source of workers list a worker, or no longer list one.
type replacer interface {
	begin(t *testing.T, cfg *config.Config, o *app.Options)
	add(t *testing.T, r *router, url string)
	remove(t *testing.T, r *router, url string)
}

// replacing makes a replacer for each source whose workers can be replaced while the router runs.
var replacing = map[string]func() replacer{
	"admin": func() replacer { return byAdmin{} },
	"dns":   func() replacer { return &byDNS{} },
	"file":  func() replacer { return &byFile{} },
}

type byAdmin struct{}

func (byAdmin) begin(*testing.T, *config.Config, *app.Options) {}

func (byAdmin) add(t *testing.T, r *router, worker string) {
	r.admin(t, http.MethodPost, "", fmt.Sprintf(`{"url": %q}`, worker), http.StatusCreated)
}

func (byAdmin) remove(t *testing.T, r *router, worker string) {
	r.admin(t, http.MethodDelete, "?drain=1m&url="+url.QueryEscape(worker), "", http.StatusAccepted)
}

// byDNS changes the SRV records of a name.
type byDNS struct {
	server  *testenv.DNS
	records []string
}

func (d *byDNS) begin(t *testing.T, cfg *config.Config, o *app.Options) {
	d.server = testenv.NewDNS(t)
	cfg.WorkersDNS.Names = []discovery.Target{{URL: "http://_http._tcp.engines.test."}}
	cfg.WorkersDNS.Interval = 100 * time.Millisecond
	o.Resolver = d.server.Resolver()
}

func (d *byDNS) add(_ *testing.T, _ *router, worker string) {
	d.records = append(d.records, strings.TrimPrefix(worker, "http://"))
	d.server.Set("_http._tcp.engines.test.", d.records...)
}

func (d *byDNS) remove(_ *testing.T, _ *router, worker string) {
	d.records = slices.DeleteFunc(d.records, func(r string) bool { return "http://"+r == worker })
	d.server.Set("_http._tcp.engines.test.", d.records...)
}

// byFile changes the file of workers.
type byFile struct {
	path string
	urls []string
}

func (f *byFile) begin(t *testing.T, cfg *config.Config, o *app.Options) {
	f.path = filepath.Join(t.TempDir(), "workers.yaml")
	f.write(t)
	cfg.WorkersFile, cfg.WatchInterval = f.path, 10*time.Millisecond
	o.File = filepath.Join(filepath.Dir(f.path), "warmpath.yaml")
	text := fmt.Sprintf("workers: []\nworkers_file: %s\nwatch_interval: 10ms\n", f.path)
	if err := os.WriteFile(o.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Load = func() (*config.Config, error) { return config.Load(o.File, nil) }
}

func (f *byFile) add(t *testing.T, _ *router, worker string) {
	f.urls = append(f.urls, worker)
	f.write(t)
}

func (f *byFile) remove(t *testing.T, _ *router, worker string) {
	f.urls = slices.DeleteFunc(f.urls, func(u string) bool { return u == worker })
	f.write(t)
}

// write replaces the file at once, as a program should.
func (f *byFile) write(t *testing.T) {
	t.Helper()
	text := "workers: []\n"
	if len(f.urls) > 0 {
		text = "workers:\n- url: " + strings.Join(f.urls, "\n- url: ") + "\n"
	}
	if err := os.WriteFile(f.path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		t.Fatal(err)
	}
}

// admin sends a request to /admin/workers.
func (r *router) admin(t *testing.T, method, query, body string, want int) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+r.AdminAddr().String()+"/admin/workers"+query, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != want {
		t.Fatalf("%s %s: %d %s", method, query, resp.StatusCode, text)
	}
}

// has reports whether a worker at url is in the fleet, and whether it is ready.
func (r *router) has(url string) (present, ready bool) {
	for _, w := range r.Router().Fleet().Snapshot().Workers() {
		if w.URL == url {
			return true, w.Ready
		}
	}
	return false, false
}

func replaceAll(t *testing.T, source replacer) {
	const workers = 3
	cfg, options := settings(), app.Options{Log: slog.New(slog.DiscardHandler)}
	source.begin(t, cfg, &options)
	r := startWith(t, cfg, options)
	// SRV records have names, so each engine is called localhost here.
	at := func(e *mockengine.Server) string { return strings.Replace(e.URL(), "127.0.0.1", "localhost", 1) }
	join := func() *mockengine.Server {
		e := engine(t, nil)
		source.add(t, r, at(e))
		r.wait("the worker is ready", func() bool { _, ready := r.has(at(e)); return ready })
		return e
	}
	var engines []*mockengine.Server
	for range workers {
		engines = append(engines, join())
	}

	var clients sync.WaitGroup
	var stopping atomic.Bool
	var answered, streams atomic.Int64
	for i := range 6 {
		clients.Go(func() {
			for n := 0; !stopping.Load(); n++ {
				stream := n%2 == 0
				if err := r.answers(fmt.Sprintf("client %d asks %d", i, n), stream); err != nil {
					t.Errorf("client %d, request %d: %v", i, n, err)
					return
				}
				if answered.Add(1); stream {
					streams.Add(1)
				}
			}
		})
	}
	for _, old := range engines {
		before := answered.Load()
		join()
		source.remove(t, r, at(old))
		r.wait("the old worker has left", func() bool { present, _ := r.has(at(old)); return !present })
		if err := old.Die(); err != nil {
			t.Fatal(err)
		}
		r.wait("requests are answered", func() bool { return answered.Load() > before+20 || t.Failed() })
	}
	stopping.Store(true)
	clients.Wait()
	if s := r.Router().Fleet().Snapshot(); len(s.Workers()) != workers {
		t.Errorf("%d workers are left", len(s.Workers()))
	}
	t.Logf("%d requests, %d of them streams", answered.Load(), streams.Load())
}

// answers sends a completion, and reads its answer to the end.
func (r *router) answers(prompt string, stream bool) error {
	body := fmt.Sprintf(`{"model": "mock", "prompt": %q, "max_tokens": 40, "stream": %t}`, prompt, stream)
	resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if !stream {
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		return err
	}
	last := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if line := lines.Text(); line != "" {
			last = line
		}
	}
	if resp.StatusCode != http.StatusOK || last != "data: [DONE]" {
		return fmt.Errorf("%d, the stream ends with %q", resp.StatusCode, last)
	}
	return nil
}
