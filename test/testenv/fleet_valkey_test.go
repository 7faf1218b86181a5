package testenv_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// sharing starts a router that writes the shared index at a server, or one that reads it. more are further settings of
// index.valkey.
func sharing(t *testing.T, s *testenv.ValkeyServer, workers []*mockengine.Server, write bool, more ...string) *mockFleet {
	t.Helper()
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	// The test's machine may be busy, so lookups may take long.
	text := fmt.Sprintf("%sindex: {backend: valkey, valkey: {url: \"valkey://%s\", lookup_timeout: 5s, write: %v%s}}\n", patient, s.Address, write, strings.Join(append([]string{""}, more...), ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return serveFile(t, file, workers)
}

// mirrored waits until everything that the writer knows is at the server and known to readers. The descriptions of
// holders do not change in this test, so readers see entries as soon as they are written.
func (f *mockFleet) mirrored(t *testing.T) {
	t.Helper()
	f.settle(t)
	last, since := "", time.Now()
	testenv.WaitFor(t, 20*time.Second, "the writer to write", func() error {
		resp, err := http.Get(f.Admin + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		now := ""
		for line := range strings.Lines(string(body)) {
			if strings.HasPrefix(line, "warmpath_shared_index_w") {
				now += line
			}
		}
		if now != last || !strings.Contains(now, "warmpath_shared_index_waiting 0\n") {
			last, since = now, time.Now()
		}
		if time.Since(since) < 60*time.Millisecond {
			return fmt.Errorf("still writing: %s", now)
		}
		return nil
	})
}

// One router follows the events and writes; two others have no index of their own. A conversation may go on at any of
// them, and a router that starts knows everything at once, without events.
func TestRoutersReadOneIndexInValkeyAndInRedis(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		t.Run(kind, func(t *testing.T) {
			s := testenv.StartValkey(t, kind)
			workers := []*mockengine.Server{mock(t, nil), mock(t, nil), mock(t, nil)}
			writer := sharing(t, s, workers, true)
			writer.trusted(t)
			one, two := sharing(t, s, workers, false), sharing(t, s, workers, false)
			one.trusted(t)
			two.trusted(t)
			var talks []*talk
			for i := range 6 {
				talks = append(talks, newTalk(fmt.Sprintf("agent%d", i)))
			}
			round := func(f *mockFleet, what string) {
				t.Helper()
				for i, k := range talks {
					a := k.turn(t, f, prose(fmt.Sprintf("%s%d", what, i), 20))
					exact(t, a, fmt.Sprintf("%s, conversation %d", what, i))
					if k.home != "" && a.worker != k.home {
						t.Errorf("%s, conversation %d went to %s, its prefix is on %s", what, i, a.worker, k.home)
					}
					k.home = a.worker
					writer.mirrored(t)
				}
			}
			round(one, "one")
			round(two, "two")
			round(writer, "writer")
			one.Stop(syscall.SIGTERM)
			one = sharing(t, s, workers, false)
			one.trusted(t)
			round(one, "restarted")

			s.Kill()
			for i, k := range talks { // no request fails without the server; only placement gets worse
				k.turn(t, two, prose(fmt.Sprint("without", i), 20))
			}
			s.Restart()
			two.trusted(t)
			writer.mirrored(t)
			for i, k := range talks {
				k.home = ""
				exact(t, k.turn(t, two, prose(fmt.Sprint("again", i), 20)), "after the server came back")
				writer.mirrored(t)
			}
		})
	}
}

// The workers have no events, and no process writes what is followed. What one router learned from its requests is
// known to the other, and to one that starts after the first one is gone. The server asks for a password, which one
// router has from a file and the other from its environment.
func TestRoutersShareLearnedPlacementsInValkey(t *testing.T) {
	const secret = "corv1d-canary"
	s := testenv.StartValkey(t, "valkey", "--requirepass", secret)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHARED_INDEX_PASSWORD", secret)
	inFile, inEnv := "database: 3, password_file: "+file, "database: 3, password_env: SHARED_INDEX_PASSWORD"
	silent := func(c *mockengine.Config) { c.Events, c.Replay = "", "" }
	workers := []*mockengine.Server{mock(t, silent), mock(t, silent), mock(t, silent)}
	one, two := sharing(t, s, workers, false, inFile), sharing(t, s, workers, false, inEnv)
	written := func(f *mockFleet, n float64) {
		t.Helper()
		testenv.Until(t, "learned placements are written", func() bool { return f.metric(t, "warmpath_shared_index_placements_total") >= n })
	}
	var talks []*talk
	for i := range 6 {
		k := newTalk(fmt.Sprintf("agent%d", i))
		k.home = k.turn(t, one, prose(fmt.Sprint("first", i), 20)).worker
		talks = append(talks, k)
		written(one, float64(i+1))
	}
	goHome := func(f *mockFleet, what string) {
		t.Helper()
		// A router believes placements at a worker once it knows the worker's process.
		homes := map[string]bool{}
		for _, k := range talks {
			homes[k.home] = true
		}
		known := fmt.Sprintf("warmpath_shared_index_holders{part=\"learned\"} %d\n", len(homes))
		testenv.Until(t, "the router knows the slots of all homes", func() bool { return strings.Contains(f.scrape(t), known) })
		for i, k := range talks {
			a := k.turn(t, f, prose(fmt.Sprint(what, i), 20))
			if a.worker != k.home || a.match == 0 || a.trust != "approximate" {
				t.Errorf("%s, conversation %d went to %s with %d tokens (%s), its prefix is on %s", what, i, a.worker, a.match, a.trust, k.home)
			}
			k.home = a.worker
			written(f, float64(i+1))
		}
	}
	goHome(two, "two")
	one.Stop(syscall.SIGTERM)
	two.Stop(syscall.SIGTERM)
	goHome(sharing(t, s, workers, false, inFile), "later")
	if strings.Contains(one.Log()+two.Log(), secret) {
		t.Error("a log has the password")
	}
}
