package snapshot

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// pipes is a listener whose connections have no buffers.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A peer that takes nothing of its snapshot loses it, so it does not keep the place of another peer.
func TestAPeerThatTakesNothingLosesItsSnapshot(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	synctest.Test(t, func(t *testing.T) {
		l := make(pipes)
		server := &http.Server{Handler: a.giver}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) })
		ours, theirs := net.Pipe()
		l <- theirs
		_, _ = io.WriteString(ours, "GET "+Path+" HTTP/1.1\r\nHost: peer\r\n\r\n")
		given := func() int {
			synctest.Wait()
			a.giver.mu.Lock()
			defer a.giver.mu.Unlock()
			return len(a.giver.giving)
		}
		<-time.After(sendTimeout - time.Millisecond)
		if n := given(); n != 1 {
			t.Errorf("%d snapshots are given within the time limit", n)
		}
		<-time.After(2 * time.Millisecond)
		if n := given(); n != 0 || a.giver.counts.broken.Load() != 1 {
			t.Errorf("%d snapshots are given after the time limit, %d were broken off", n, a.giver.counts.broken.Load())
		}
		_ = ours.Close()
		close(l)
		_ = server.Close()
		serving.Wait()
	})
}

// A router that gives a snapshot rests as long as it has worked: its own requests need the cores. It rests after 10 ms
// of work at the earliest, since a short rest takes longer than it should. A file is written without rests.
func TestAGiverRestsAsLongAsItHasWorked(t *testing.T) {
	engines := twoEngines(t)
	a := warmSite(t, engines...)
	if a.giver.least != 10*time.Millisecond {
		t.Errorf("a giver rests after %v of work", a.giver.least)
	}
	a.giver.least = time.Nanosecond
	var rests []time.Duration
	a.giver.rest = func(_ context.Context, d time.Duration) { rests = append(rests, d) }
	began := time.Now()
	answer := httptest.NewRecorder()
	a.giver.ServeHTTP(answer, httptest.NewRequest("GET", Path, nil))
	if took := time.Since(began); answer.Code != http.StatusOK || len(rests) != 2 || min(rests[0], rests[1]) <= 0 || rests[0]+rests[1] > took {
		t.Errorf("status %d: in %v the giver rests %v", answer.Code, took, rests)
	}
	if _, _, err := saveFile(t.Context(), filepath.Join(t.TempDir(), "index"), a.feed, "v"); err != nil || len(rests) != 2 {
		t.Errorf("the file: %v, rests %v", err, rests)
	}
	a.giver.least = time.Hour // the two holders do not take so long together
	a.giver.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", Path, nil))
	if len(rests) != 2 {
		t.Errorf("a giver that has worked little rests %v", rests[2:])
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rest(t.Context(), time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("a rest of a second takes %v", took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		rest(ended, time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("a rest for a peer that is gone takes %v", took-time.Second)
		}
	})
	if NewGiver(nil, "", "", nil).rest == nil {
		t.Error("a giver does not rest")
	}
}

// Checkpoints of workers that do not join take memory, and room of other checkpoints: after a minute they are dropped.
// The log has said so before.
func TestCheckpointsOfUnknownWorkersAreDropped(t *testing.T) {
	bare := named("", func(c *kvfeed.Checkpoint) { c.Runs = nil })
	var all []*kvfeed.Checkpoint
	for i := range 4096 { // as many as a feed keeps
		one := *bare
		one.Worker = fmt.Sprint("http://gone:", i)
		all = append(all, &one)
	}
	path := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(path, written(t, all...), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		log := new(testenv.Buffer)
		logger := slog.New(slog.NewTextHandler(log, nil))
		router, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{})})
		if err != nil {
			t.Fatal(err)
		}
		feed := kvfeed.New(router, kvfeed.Config{}, logger)
		k := NewKeeper(Config{SnapshotFile: path, PeerTimeout: time.Second}, Parts{Feed: feed, Room: 1 << 30, Log: logger})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = k.Run(ctx) })
		late := named("http://late:1", nil)
		<-time.After(claimedWithin + time.Second)
		if text := log.String(); !strings.Contains(text, "follows no events of their workers") || !strings.Contains(text, "workers=4096") {
			t.Errorf("the log does not name the workers:\n%s", text)
		}
		<-time.After(offeredFor - claimedWithin - 2*time.Second)
		if err := feed.Offer(late); err == nil {
			t.Error("the checkpoints are gone before a minute is over")
		}
		<-time.After(2 * time.Second)
		if err := feed.Offer(late); err != nil {
			t.Errorf("after a minute: %v", err)
		}
		cancel()
		running.Wait()
	})
}
