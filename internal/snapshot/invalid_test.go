package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/kvindex"
)

// holderOf returns the sections of a holder as they are, without a look at what they say.
func holderOf(t *testing.T, c *kvfeed.Checkpoint, description []byte, runs int) []byte {
	t.Helper()
	if description == nil {
		var err error
		if description, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
	}
	var content []byte
	for i := range c.Runs {
		content = appendRun(content, &c.Runs[i])
	}
	all := section(kindHolder, description)
	all = append(all, section(kindDigests, make([]byte, 8*len(c.Digests)))...)
	all = append(all, section(kindRuns, content)...)
	return append(all, section(kindDone, []byte{byte(runs), 0, 0, 0, 0, 0, 0, 0})...)
}

// spoiled returns a snapshot with invalid checkpoints between good ones, and the number of the invalid ones.
func spoiled(t *testing.T, good ...*kvfeed.Checkpoint) (text []byte, invalid int) {
	t.Helper()
	bad := func(change func(*kvfeed.Checkpoint)) *kvfeed.Checkpoint {
		c := sample()
		c.Runs = c.Runs[:3]
		change(c)
		return c
	}
	same := bad(func(*kvfeed.Checkpoint) {})
	wrong := [][]byte{
		holderOf(t, bad(func(c *kvfeed.Checkpoint) { c.Ranks = 0 }), nil, 3),
		holderOf(t, same, []byte(`{"worker":7}`), 3),
		holderOf(t, bad(func(c *kvfeed.Checkpoint) { c.Runs[1].Tier = 99 }), nil, 3),
		holderOf(t, same, nil, 2),
	}
	var out bytes.Buffer
	w, err := newWriter(&out, header{Router: "v"})
	for i := range max(len(wrong), len(good)) {
		if i < len(wrong) {
			out.Write(wrong[i])
			w.holders++
		}
		if i < len(good) {
			err = errors.Join(err, w.holder(good[i]))
		}
	}
	if err = errors.Join(err, w.close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), len(wrong)
}

func TestAnInvalidCheckpointCostsOnlyItself(t *testing.T) {
	text, want := spoiled(t, sample(), sample())
	r, err := newReader(bytes.NewReader(text), 1<<30)
	good, invalid := 0, 0
	for err == nil {
		var c *kvfeed.Checkpoint
		var s *skippedHolder
		if c, s, err = r.nextHolder(); c != nil {
			good++
		} else if s != nil && s.Invalid && strings.Contains(s.Why, errInvalid.Error()) {
			invalid++
		}
	}
	if !errors.Is(err, io.EOF) || good != 2 || invalid != want {
		t.Errorf("%d good ones, %d invalid ones, %v", good, invalid, err)
	}
}

// A router uses the good checkpoints of a peer and of a file, and its log names the others and why.
func TestARouterUsesTheGoodCheckpointsOfASpoiledSnapshot(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	c, err := warmSite(t, e).feed.Checkpoint(kvfeed.Place{Worker: e.url})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := spoiled(t, c)
	path := filepath.Join(t.TempDir(), "index")
	for name, damage := range map[string]int{"whole": 0, "cut short": 5} {
		t.Run(name, func(t *testing.T) {
			text := text[:len(text)-damage]
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
			t.Cleanup(peer.Close)
			for from, cfg := range map[string]Config{"peer": {Peers: []string{peer.URL}}, "file": {SnapshotFile: path}} {
				b := newSite(t, cfg, e)
				b.awaitExact(e)
				if got := b.match(e, 3); got != promptBlocks*blockTokens || b.trusts()[e.url] != fleet.TrustExact {
					t.Errorf("%s: %d tokens match", from, got)
				}
				log := b.log.String()
				if !strings.Contains(log, "a checkpoint is not used") || !strings.Contains(log, "run") {
					t.Errorf("%s: the log does not say which checkpoints are not used:\n%s", from, log)
				}
				if damage > 0 && from == "file" && !strings.Contains(log, "only a part of the saved index is used") {
					t.Errorf("the log does not say that the file is cut short:\n%s", log)
				}
				b.stop()
			}
		})
	}
}

// What no reader would take is not written, and the snapshot goes on.
func TestAnInvalidCheckpointIsNotWritten(t *testing.T) {
	var out bytes.Buffer
	w, err := newWriter(&out, header{Router: "v"})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*kvfeed.Checkpoint){
		"ranks":       func(c *kvfeed.Checkpoint) { c.Ranks = 0 },
		"digests":     func(c *kvfeed.Checkpoint) { c.Digests = nil },
		"description": func(c *kvfeed.Checkpoint) { c.State.Mixed = strings.Repeat("x", maxJSON) },
		"tier":        func(c *kvfeed.Checkpoint) { c.Runs[1].Tier = block.NumTiers + 1 },
		"hashes":      func(c *kvfeed.Checkpoint) { c.Runs[1].Hashes = nil },
		"depth":       func(c *kvfeed.Checkpoint) { c.Runs[1].Depth = -1 },
	} {
		c := sample()
		c.Runs = append([]kvindex.Held(nil), c.Runs...)
		change(c)
		if err := w.holder(c); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(w.holder(sample()), w.close()); err != nil {
		t.Fatal(err)
	}
	r, err := newReader(bytes.NewReader(out.Bytes()), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if c, _, err := r.nextHolder(); err != nil || c == nil {
		t.Errorf("the good one: %v", err)
	}
	if _, _, err := r.nextHolder(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
}

// The memory of the checkpoints of all peers together is bounded, and what the feed does not take does not count.
func TestThePeersOfARouterShareItsRoom(t *testing.T) {
	var peers []string
	for _, worker := range []string{"http://x:1", "http://y:1"} {
		c := sample()
		c.Worker = worker
		text := written(t, c)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
		t.Cleanup(s.Close)
		peers = append(peers, s.URL)
	}
	r, err := newReader(bytes.NewReader(written(t, sample())), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.nextHolder(); err != nil {
		t.Fatal(err)
	}
	one := 1<<30 - r.room
	b := newSite(t, Config{})
	k := &Keeper{config: Config{Peers: peers}, Parts: b.keeper.Parts, silence: time.Minute, failures: map[string]failure{}}
	for room, want := range map[int64]int{one + one/2: 1, 2*one + one/2: 2} {
		left, known := room, map[kvfeed.Place]bool{}
		k.ask(t.Context(), slices.Values(k.peers()), nil, known, &left)
		if len(known) != want || left != room-int64(want)*one {
			t.Errorf("room for %d bytes, %d for each: %d holders, %d bytes are left", room, one, len(known), left)
		}
	}
}
