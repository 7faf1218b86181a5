package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// askingKeeper is a keeper whose feed follows nothing, and its log.
func askingKeeper(t *testing.T) (*Keeper, *testenv.Buffer) {
	t.Helper()
	router, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{})})
	if err != nil {
		t.Fatal(err)
	}
	text := new(testenv.Buffer)
	to := slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	feed := kvfeed.New(router, kvfeed.Config{}, to)
	k := NewKeeper(Config{PeerTimeout: time.Minute}, Parts{Feed: feed, Client: client, Name: "r", Version: "test", Room: 1 << 30, Log: to})
	k.silence = time.Minute // a busy machine may take longer than peerSilence for a TLS handshake
	return k, text
}

// closed returns an address at which nothing listens.
func closed(t *testing.T) (url string) {
	t.Helper()
	return fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))
}

// server returns the address of a peer. tls says that it speaks TLS.
func server(t *testing.T, tls bool, answer http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewUnstartedServer(answer)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.URL
}

// The texts of errors differ with the wanted holders, with the ports of connections, and with what a peer says.
func TestTheLogHasAKindOfFailureOnce(t *testing.T) {
	n := 0
	for name, peer := range map[string]string{
		"dead": closed(t),
		"reset": server(t, false, func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		}),
		"broken": server(t, false, func(w http.ResponseWriter, _ *http.Request) {
			n++
			http.Error(w, fmt.Sprint("request ", n, " failed"), http.StatusInternalServerError)
		}),
	} {
		k, text := askingKeeper(t)
		for i := range 3 {
			var places []kvfeed.Place
			for j := range 1 + i {
				places = append(places, kvfeed.Place{Worker: fmt.Sprint("http://w:", i, j)})
			}
			room := int64(1 << 20)
			k.ask(t.Context(), slices.Values([]string{peer}), places, map[kvfeed.Place]bool{}, &room)
		}
		all := text.String()
		if strings.Count(all, "level=WARN") != 1 || strings.Count(all, "no whole snapshot") != 3 {
			t.Errorf("%s: the log:\n%s", name, all)
		}
		if strings.Contains(all, holderParameter(kvfeed.Place{})) || strings.Contains(all, "holder=") || strings.Contains(all, "->") {
			t.Errorf("%s: the log has the question or the ports:\n%s", name, all)
		}
	}
}

// A line that a peer sends in place of an answer may have megabytes.
func TestTheLogIsNotFilledByAPeer(t *testing.T) {
	k, text := askingKeeper(t)
	peer := server(t, false, func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = io.WriteString(conn, strings.Repeat("é", 20_000)+"\r\n\r\n")
			_ = conn.Close()
		}
	})
	room := int64(1 << 20)
	k.ask(t.Context(), slices.Values([]string{peer}), nil, map[kvfeed.Place]bool{}, &room)
	if all := text.String(); len(all) > 5000 || !strings.Contains(all, "no whole snapshot") {
		t.Errorf("%d bytes: %.300s", len(all), all)
	}
}

// Operators learn what to do about a peer that cannot be used.
func TestTheLogSaysWhatToDoAboutAPeer(t *testing.T) {
	empty := func(http.ResponseWriter, *http.Request) {}
	secure := server(t, true, empty)
	for peer, says := range map[string]string{
		closed(t):                                       "nothing listens at this address: start the router there",
		server(t, false, http.NotFound):                 "index.peers must name the admin listeners",
		"http" + secure[len("https"):]:                  "write https:// in index.peers",
		"https" + server(t, false, empty)[len("http"):]: "write http:// in index.peers",
		secure: "set index.tls.ca_file",
	} {
		k, text := askingKeeper(t)
		room := int64(1 << 20)
		k.ask(t.Context(), slices.Values([]string{peer}), nil, map[kvfeed.Place]bool{}, &room)
		if all := text.String(); !strings.Contains(all, says) {
			t.Errorf("%s: the log does not say %q:\n%s", peer, says, all)
		}
	}
	if _, next := explain(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "router-9"}}, false); next != "correct the name in index.peers" {
		t.Errorf("a name that is not known: %q", next)
	}
	if _, next := explain(errors.New("remote error: tls: bad certificate"), false); !strings.Contains(next, "index.tls.cert_file") {
		t.Errorf("a certificate that the peer refuses: %q", next)
	}
}

// sending returns a peer that sends first, and then some more for as long as it is asked.
func sending(t *testing.T, first, more []byte) (url string) {
	t.Helper()
	return server(t, false, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(first)
		_ = http.NewResponseController(w).Flush()
		testenv.Poll(time.Hour, func() bool {
			_, _ = w.Write(more)
			_ = http.NewResponseController(w).Flush()
			return r.Context().Err() != nil
		})
	})
}

// A peer may use up its time for nothing: it says only that it is alive, it sends a byte at a time, or it sends nothing
// and index.peer_timeout ends before silence is noticed.
func TestAPeerThatUsesUpItsTimeIsLeftAlone(t *testing.T) {
	whole := written(t)
	head := whole[:len(whole)-len(section(kindEnd, make([]byte, 8)))]
	for name, peer := range map[string]string{
		"alive":    sending(t, head, section(kindAlive, nil)),
		"trickles": sending(t, head, []byte{kindAlive}),
		"silent":   mute(t),
	} {
		k := lackingKeeper(t, 1, slog.New(slog.DiscardHandler), peer)
		k.config.PeerTimeout = 50 * time.Millisecond
		before := time.Now()
		k.askForLacking(t.Context())
		f, failed := k.failures[peer]
		if pause := f.until.Sub(before); !failed || pause < failedPause {
			t.Errorf("%s: it is asked again after %v", name, pause)
		}
		// The next time it gets only a little time.
		k.config.PeerTimeout = time.Hour
		k.failures[peer] = failure{limit: f.limit}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		room := int64(1 << 20)
		k.ask(ctx, slices.Values([]string{peer}), []kvfeed.Place{{Worker: "http://w:1"}}, map[kvfeed.Place]bool{}, &room)
		if ctx.Err() != nil || k.counts.peersFailed.Load() != 2 {
			t.Errorf("%s: it gets all of the time again, and has failed %d times", name, k.counts.peersFailed.Load())
		}
		cancel()
	}
}

// A peer that gives checkpoints until its time is over has more of them.
func TestAPeerThatHasMoreIsAskedAgain(t *testing.T) {
	c := sample()
	whole := written(t, c)
	peer := sending(t, whole[:len(whole)-len(section(kindEnd, make([]byte, 8)))], section(kindAlive, nil))
	// A busy machine may need more time for the checkpoint.
	var text *testenv.Buffer
	for limit := 50 * time.Millisecond; limit < time.Minute; limit *= 4 {
		var k *Keeper
		k, text = askingKeeper(t)
		k.config.PeerTimeout = limit
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		known, room := map[kvfeed.Place]bool{}, int64(1<<30)
		k.ask(ctx, slices.Values([]string{peer}), []kvfeed.Place{{Worker: c.Worker, Rank: c.Rank}, {Worker: "http://other"}}, known, &room)
		cancel()
		if len(known) == 0 {
			continue
		}
		if f := k.failures[peer]; f.kind == "" || f.until.After(time.Now()) {
			t.Errorf("it is asked again at %v", f.until)
		}
		return
	}
	t.Errorf("no checkpoint comes:\n%s", text)
}

// The next peer is not asked for the holders that a peer gave before its answer broke off.
func TestWhatAPeerGaveBeforeItBrokeOffIsNotAskedForAgain(t *testing.T) {
	c := sample()
	whole := written(t, c)
	broken := server(t, false, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(whole[:len(whole)-len(section(kindEnd, make([]byte, 8)))])
	})
	next := newAskedPeer(t)
	k, text := askingKeeper(t)
	known, room := map[kvfeed.Place]bool{}, int64(1<<30)
	places := []kvfeed.Place{{Worker: c.Worker, Rank: c.Rank}, {Worker: "http://other"}}
	k.ask(t.Context(), slices.Values([]string{broken, next.URL}), places, known, &room)
	if k.counts.peersFailed.Load() != 1 || len(known) != 1 {
		t.Fatalf("the first peer does not break off after a checkpoint:\n%s", text)
	}
	if want := []string{"0@http://other"}; len(next.asked) != 1 || !slices.Equal(next.asked[0], want) {
		t.Errorf("the next peer is asked for %q, want %q", next.asked, want)
	}
}

// A router that stops while it asks a peer does not blame the peer.
func TestARouterThatStopsBlamesNoPeer(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	peer := server(t, false, func(_ http.ResponseWriter, r *http.Request) {
		stop()
		<-r.Context().Done()
	})
	k, text := askingKeeper(t)
	room := int64(1 << 20)
	k.ask(ctx, slices.Values([]string{peer}), nil, map[kvfeed.Place]bool{}, &room)
	if all := text.String(); k.counts.peersFailed.Load() != 0 || strings.Contains(all, "no whole snapshot") {
		t.Errorf("a router stops:\n%s", all)
	}
}

func TestPausesGrowWithTheTimeThatAPeerUsesUp(t *testing.T) {
	const silence, most = 2 * time.Second, time.Minute
	busy := &refusal{status: http.StatusServiceUnavailable}
	for name, c := range map[string]struct {
		attempt
		limit, pause, next time.Duration
	}{
		"refused":                     {attempt{err: errForeign}, 0, failedPause, 0},
		"refused later":               {attempt{err: errForeign}, 8 * time.Second, failedPause, 8 * time.Second},
		"busy":                        {attempt{err: busy}, 0, time.Second, 0},
		"silent":                      {attempt{err: errSilent, took: silence}, 0, failedPause, 0},
		"at the start":                {attempt{late: true, took: most, start: true}, 0, 0, silence},
		"with a checkpoint":           {attempt{late: true, took: most, useful: true}, 0, 0, silence},
		"with a checkpoint again":     {attempt{late: true, took: 8 * time.Second, useful: true}, 8 * time.Second, 0, 8 * time.Second},
		"after others":                {attempt{late: true, took: time.Second}, 0, 0, 0},
		"for nothing":                 {attempt{late: true, took: most}, 0, failedPause, silence},
		"for nothing again":           {attempt{late: true, took: silence}, silence, 20 * time.Second, 2 * silence},
		"for nothing again and again": {attempt{late: true, took: 40 * time.Second}, 40 * time.Second, 5 * most, most},
	} {
		if pause, next := c.pace(c.limit, silence, most); pause != c.pause || next != c.next {
			t.Errorf("%s: a pause of %v and then %v, want %v and %v", name, pause, next, c.pause, c.next)
		}
	}
}
