package snapshot

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// named returns a checkpoint of a worker.
func named(worker string, change func(*kvfeed.Checkpoint)) *kvfeed.Checkpoint {
	c := sample()
	c.Worker = worker
	if change != nil {
		c.Runs = append([]kvindex.Held(nil), c.Runs...)
		change(c)
	}
	return c
}

// roomOf returns the room that a checkpoint takes.
func roomOf(t *testing.T, c *kvfeed.Checkpoint) int64 {
	t.Helper()
	r, err := newReader(bytes.NewReader(written(t, c)), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.nextHolder(); err != nil {
		t.Fatal(err)
	}
	return 1<<30 - r.room
}

// behind returns a snapshot with two holders, of which the first is as it is.
func behind(t *testing.T, first []byte, good *kvfeed.Checkpoint) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := newWriter(&out, header{Router: "v"})
	out.Write(first)
	w.holders++
	if err = errors.Join(err, w.holder(good), w.close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// pieces returns a holder with its runs in sections of one run each.
func pieces(t *testing.T, c *kvfeed.Checkpoint, change func(i int, run *kvindex.Held)) []byte {
	t.Helper()
	whole := *c
	whole.Runs = nil
	all := holderOf(t, &whole, nil, 0)
	all = all[:len(all)-len(section(kindRuns, nil))-len(section(kindDone, make([]byte, 8)))]
	runs := 0
	for i := range c.Runs {
		for _, run := range divided(&c.Runs[i]) {
			change(runs, &run)
			runs++
			all = append(all, section(kindRuns, appendRun(nil, &run))...)
		}
	}
	return append(all, section(kindDone, []byte{byte(runs), 0, 0, 0, 0, 0, 0, 0})...)
}

// A checkpoint that is invalid takes no room from the next one, whatever is wrong with it.
func TestAnInvalidCheckpointTakesNoRoom(t *testing.T) {
	good := named("http://good:1", nil)
	for name, first := range map[string][]byte{
		"at its beginning": pieces(t, named("", nil), func(int, *kvindex.Held) {}),
		"at its end": pieces(t, sample(), func(i int, run *kvindex.Held) {
			if i == 6 {
				run.Tier = 99
			}
		}),
	} {
		r, err := newReader(bytes.NewReader(behind(t, first, good)), roomOf(t, good)*3/2)
		if err != nil {
			t.Fatal(err)
		}
		if c, s, err := r.nextHolder(); c != nil || s == nil || !s.Invalid || err != nil {
			t.Errorf("%s: the first: %v, %v", name, s, err)
		}
		if c, _, err := r.nextHolder(); c == nil || err != nil {
			t.Errorf("%s: the good one: %v", name, err)
		}
		if _, _, err := r.nextHolder(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the end: %v", name, err)
		}
	}
}

// Invalid holders without an end, and one with runs without an end, do not keep a reader for ever.
func TestWhatIsNotKeptIsBoundedToo(t *testing.T) {
	var start bytes.Buffer
	if _, err := newWriter(&start, header{Router: "v"}); err != nil {
		t.Fatal(err)
	}
	bare := named("", func(c *kvfeed.Checkpoint) { c.Runs = nil })
	holder := holderOf(t, bare, nil, 0)
	begun := holder[:len(holder)-len(section(kindDone, make([]byte, 8)))]
	const room = 1 << 20
	for name, e := range map[string]*endless{
		"holders": {head: start.Bytes(), again: holder},
		"runs":    {head: append(bytes.Clone(start.Bytes()), begun...), again: section(kindRuns, make([]byte, 4000))},
	} {
		r, err := newReader(e, room)
		for n := 0; err == nil && n < 1<<16; n++ {
			_, _, err = r.nextHolder()
		}
		if !errors.Is(err, errLarge) || e.read > 4*room {
			t.Errorf("%s without an end: %v after %d bytes", name, err, e.read)
		}
	}
}

// What the feed refuses, and what is known already, takes no room, whether a peer has it or a file. The room is enough
// for one and a half holders.
func TestACheckpointThatIsNotTakenTakesNoRoom(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	fits, err := a.feed.Checkpoint(kvfeed.Place{Worker: e.url})
	if err != nil {
		t.Fatal(err)
	}
	refused := *fits
	refused.Version, refused.Runs = "0.0.1", sample().Runs // another version of the engine
	good, small := named("http://good:1", nil), named("http://small:1", func(c *kvfeed.Checkpoint) { c.Runs = c.Runs[:3] })
	texts := map[string][]byte{"refused": written(t, &refused, good), "known": written(t, good, small), "good": written(t, good)}
	dir, urls := t.TempDir(), map[string]string{}
	for name, text := range texts {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
		t.Cleanup(s.Close)
		urls[name] = s.URL
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		peers []string
		file  string
		want  string // a line of the log
	}{
		"refused of a peer": {[]string{"refused"}, "", "a peer gave a snapshot of its index"},
		"refused in a file": {nil, "refused", "read the saved index"},
		"known in a file":   {[]string{"good"}, "known", "read the saved index"},
		"known of a peer":   {[]string{"good", "known"}, "", "holders=2 skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(testenv.Buffer)
			k := &Keeper{config: Config{PeerTimeout: time.Minute}, Parts: a.keeper.Parts, silence: time.Minute, own: map[string]bool{}, failures: map[string]failure{}}
			k.Room, k.Log = roomOf(t, good)*3/2, slog.New(slog.NewTextHandler(log, nil))
			for _, peer := range c.peers {
				k.config.Peers = append(k.config.Peers, urls[peer])
			}
			if c.file != "" {
				k.config.SnapshotFile = filepath.Join(dir, c.file)
			}
			k.warm(t.Context())
			s := k.Stats(a.giver)
			if s.PeersFailed+s.FilesFailed > 0 || s.Peers != uint64(len(c.peers)) || !strings.Contains(log.String(), c.want) {
				t.Errorf("%+v, want %q:\n%s", s, c.want, log)
			}
		})
	}
}
