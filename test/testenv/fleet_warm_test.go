package testenv_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// forgetful makes a mock engine whose replay has only the last messages, so that a router that starts late cannot read
// its whole history.
func forgetful(c *mockengine.Config) { c.BufferSteps = 40 }

// withoutReplay makes a mock engine without a replay endpoint.
func withoutReplay(c *mockengine.Config) { c.Replay = "" }

// warmRouter starts a router with these settings of the section index.
func warmRouter(t *testing.T, workers []*mockengine.Server, index string, args ...string) *mockFleet {
	t.Helper()
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(file, []byte(patient+"index: {"+index+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return serveFile(t, file, workers, args...)
}

// converse sends n conversations through a router, and returns them with their workers.
func converse(t *testing.T, f *mockFleet, n int) (asked [][]message, workers []string) {
	t.Helper()
	for i := range n {
		text := strings.Repeat(fmt.Sprintf("conversation %d has a long beginning that fills some blocks. ", i), 12)
		history := []message{{"user", text}}
		a := f.chat(t, history, "")
		if a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		asked, workers = append(asked, history), append(workers, a.worker)
	}
	return asked, workers
}

// exact waits until the router's trust in all holders of these workers is exact.
func (f *mockFleet) exact(t *testing.T, workers ...*mockengine.Server) {
	t.Helper()
	testenv.WaitFor(t, 20*time.Second, "trust to be exact", func() error {
		for _, w := range f.state(t).Workers {
			for _, h := range w.Holders {
				for _, wanted := range workers {
					if wanted.URL() == w.URL && h.Trust != "exact" {
						return fmt.Errorf("%s is %s: %s", w.URL, h.Trust, h.Why)
					}
				}
			}
		}
		return nil
	})
}

// hits checks that a request with a known beginning goes to the worker that has it, with trust exact.
func (f *mockFleet) hits(t *testing.T, history []message, worker string) {
	t.Helper()
	if a := f.chat(t, history, ""); a.status != 200 || a.worker != worker || a.match == 0 || a.trust != "exact" {
		t.Errorf("a known prompt: status %d, %s, match %d, trust %s; it is cached at %s", a.status, a.worker, a.match, a.trust, worker)
	}
}

func TestARouterIsWarmByAPeer(t *testing.T) {
	testenv.Binary(t)
	engines := []*mockengine.Server{mock(t, forgetful), mock(t, forgetful), mock(t, withoutReplay)}
	a := serve(t, engines, "--policy", "round_robin")
	asked, workers := converse(t, a, 90)
	a.exact(t, engines...)

	b := warmRouter(t, engines, `peers: ["`+a.Admin+`"]`)
	b.exact(t, engines[0], engines[1])
	for i, worker := range workers {
		if worker == engines[0].URL() {
			b.hits(t, asked[i], worker)
			break
		}
	}
	// The engine without a replay confirms with its next message what the peer says.
	for range 6 {
		converse(t, a, 1)
		a.chat(t, []message{{"user", strings.Repeat(fmt.Sprint("new ", time.Now().UnixNano(), " "), 60)}}, "")
	}
	b.exact(t, engines...)
	for i, worker := range workers {
		if worker == engines[2].URL() {
			b.hits(t, asked[i], worker)
			break
		}
	}
	if got := b.metric(t, `warmpath_checkpoints_total{outcome="confirmed"}`); got != 3 {
		t.Errorf("%v checkpoints are confirmed, want 3", got)
	}
}

// The peer's admin listener has a certificate of an authority that only the configuration names.
func TestARouterIsWarmByAPeerOverTLS(t *testing.T) {
	testenv.Binary(t)
	engine := mock(t, forgetful)
	cert, secret := testenv.Certificate(t)
	a := serve(t, []*mockengine.Server{engine}, "--policy", "round_robin")
	converse(t, a, 60)
	a.exact(t, engine)
	front := encrypted(t, strings.TrimPrefix(a.Admin, "http://"), cert, secret)
	b := warmRouter(t, []*mockengine.Server{engine}, `peers: ["https://`+front+`"], tls: {ca_file: "`+cert+`"}`)
	b.exact(t, engine)
	if got := b.metric(t, `warmpath_checkpoints_total{outcome="confirmed"}`); got != 1 {
		t.Errorf("%v checkpoints are confirmed, want 1", got)
	}
	stranger := warmRouter(t, []*mockengine.Server{engine}, `peers: ["https://`+front+`"]`)
	testenv.Until(t, "a router without the authority says so", func() bool { return strings.Contains(stranger.Log(), "certificate signed by unknown authority") })
}

func TestARouterWhosePeerDiesInTheTransferServesCold(t *testing.T) {
	testenv.Binary(t)
	engines := []*mockengine.Server{mock(t, forgetful), mock(t, withoutReplay)}
	a := serve(t, engines, "--policy", "round_robin")
	asked, _ := converse(t, a, 60)
	a.exact(t, engines...)
	peer := halfway(t, strings.TrimPrefix(a.Admin, "http://"), 900, func() { a.Stop(syscall.SIGKILL) })
	b := warmRouter(t, engines, `peers: ["http://`+peer+`"]`)
	for _, history := range asked[:4] {
		if answer := b.chat(t, history, ""); answer.status != 200 {
			t.Errorf("status %d: %s", answer.status, answer.body)
		}
	}
	if !a.Exited() || !strings.Contains(b.Log(), "a peer gave no whole snapshot of its index") {
		t.Errorf("the peer died: %v; the log has no line about it", a.Exited())
	}
}

// encrypted is a proxy with TLS in front of an HTTP listener.
func encrypted(t *testing.T, to, certFile, keyFile string) (address string) {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// halfway is a proxy that passes the first n bytes of an answer. Then it calls then, and cuts the connection.
func halfway(t *testing.T, to string, n int64, then func()) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { // ends when the listener is closed
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { // ends when both connections are closed
				defer client.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				all.Go(func() { _, _ = io.Copy(server, client) }) // ends with the connections
				if _, err := io.CopyN(client, server, n); err == nil {
					then()
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

func TestARouterIsWarmByItsOwnFile(t *testing.T) {
	testenv.Binary(t)
	engines := []*mockengine.Server{mock(t, forgetful), mock(t, forgetful)}
	file := filepath.Join(t.TempDir(), "index.snapshot")
	index := "snapshot_file: " + file + ", snapshot_interval: 0s"
	first := warmRouter(t, engines, index, "--policy", "round_robin")
	asked, workers := converse(t, first, 100)
	first.exact(t, engines...)
	began := time.Now()
	first.Stop(syscall.SIGTERM)
	if _, err := os.Stat(file); err != nil || !strings.Contains(first.Log(), "saved the index") {
		t.Fatalf("after SIGTERM, within %v: %v", time.Since(began), err)
	}

	if err := engines[1].Restart(10 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	second := warmRouter(t, engines, index)
	second.exact(t, engines[0])
	testenv.WaitFor(t, 20*time.Second, "the restarted engine to be learned again", func() error {
		if got := second.metric(t, `warmpath_checkpoints_total{outcome="refused"}`); got != 1 {
			return fmt.Errorf("%v checkpoints are refused, want 1", got)
		}
		return nil
	})
	second.exact(t, engines...)
	for i, worker := range workers {
		if worker == engines[0].URL() {
			second.hits(t, asked[i], worker)
			break
		}
	}
	for i, worker := range workers {
		if worker == engines[1].URL() {
			if a := second.chat(t, asked[i], ""); a.match > 0 && a.cached == 0 {
				t.Errorf("%d tokens of the process before match", a.match)
			}
			break
		}
	}
	second.Stop(syscall.SIGTERM)

	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"half": whole[:len(whole)/2], "foreign": []byte("a file of somebody else")} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		f := warmRouter(t, engines, index)
		// Of half a file, a holder may be whole.
		said := strings.Contains(f.Log(), "the saved index is not used") || name == "half" && strings.Contains(f.Log(), "only a part of the saved index is used")
		if a := f.chat(t, asked[0], ""); a.status != 200 || !said {
			t.Errorf("%s file: status %d", name, a.status)
		}
		f.Stop(syscall.SIGTERM)
		if left, err := os.ReadFile(file); name == "foreign" && (err != nil || string(left) != string(text)) {
			t.Error(errors.Join(err, errors.New("a file of somebody else was replaced")))
		}
	}
}
