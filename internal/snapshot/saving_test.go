package snapshot

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// A router that is killed leaves a file that is at most as old as index.snapshot_interval.
func TestTheFileIsWrittenRegularly(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	path := filepath.Join(t.TempDir(), "index")
	s := newSite(t, Config{SnapshotFile: path, SnapshotInterval: 10 * time.Millisecond}, e)
	e.cache(t, 3)
	s.awaitExact(e)
	testenv.Until(t, "the file is written twice", func() bool { return s.keeper.Stats(s.giver).Saved >= 2 })
	s.stop()
	if text, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(text), magic) {
		t.Errorf("the file: %q, %v", text, err)
	}
}

// The last write does not delay the end of a router: after its time limit the old file stays.
func TestTheLastWriteIsBounded(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	path := filepath.Join(t.TempDir(), "index")
	s := newSite(t, Config{SnapshotFile: path}, e)
	e.cache(t, 3)
	testenv.Until(t, "the events to be applied", func() bool { return s.match(e, 2) == promptBlocks*blockTokens })
	if s.keeper.lastSave != 2*time.Second {
		t.Errorf("the last write takes %v at most, docs/scale.md says 2 s", s.keeper.lastSave)
	}
	testenv.Until(t, "the history to be whole", func() bool { // a moment after its last event
		s.keeper.Save(t.Context())
		return s.keeper.Stats(s.giver).Saved == 1
	})
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	e.cache(t, 1)
	testenv.Until(t, "the last event to be applied", func() bool { return s.match(e, 3) == promptBlocks*blockTokens })
	s.keeper.lastSave = time.Nanosecond
	s.keeper.Save(t.Context())
	if got := s.keeper.Stats(s.giver); got.Saved != 1 || got.SavesFailed != 1 || !strings.Contains(s.log.String(), "it takes more than 1ns") {
		t.Errorf("%+v\n%s", got, s.log)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
		t.Errorf("the file of %d bytes has %d now", len(before), len(after))
	}
}

// The file of an engine may be too old for the engine's replay, and the snapshot of a peer is not. So a router takes
// from the file only what no peer gives.
func TestAPeerIsAskedBeforeTheFile(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	path := filepath.Join(t.TempDir(), "index")
	if _, _, err := saveFile(t.Context(), path, a.feed, "v"); err != nil {
		t.Fatal(err)
	}
	e.cache(t, 20) // the replay has 5 messages
	testenv.Until(t, "the last event to be applied", func() bool { return a.match(e, 69) == promptBlocks*blockTokens })
	b := newSite(t, Config{Peers: []string{a.admin.URL}, SnapshotFile: path}, e)
	b.awaitExact(e)
	for _, i := range []int{3, 60, 69} {
		if got := b.match(e, i); got != promptBlocks*blockTokens {
			t.Errorf("%d tokens of prompt %d match", got, i)
		}
	}
	testenv.Until(t, "the file is read", func() bool { return strings.Contains(b.log.String(), "the saved index") })
	_, after, asked := strings.Cut(b.log.String(), "a peer gave a snapshot of its index")
	if !asked || !strings.Contains(after, `msg="read the saved index" file=`+path+" holders=0") {
		t.Errorf("the log does not say that the peer was first, and that nothing of the file was needed:\n%s", b.log)
	}
}
