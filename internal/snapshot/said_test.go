package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// Operators learn at the start, and not at the first writing, that a file cannot be written.
func TestTheLogSaysAtTheStartThatAFileCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign")
	if err := os.WriteFile(foreign, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		foreign:                           "name another file, or move this one",
		filepath.Join(foreign, "index"):   "the index cannot be saved",
		filepath.Join(dir, "gone/index"):  "the index cannot be saved",
		filepath.Join(dir, "fresh-index"): "",
	} {
		s := newSite(t, Config{SnapshotFile: path})
		testenv.Until(t, "the file is looked for", func() bool { return strings.Contains(s.log.String(), "saved index") })
		s.stop()
		log := s.log.String()
		if !strings.Contains(log, says) || says == "" && strings.Contains(log, "WARN") {
			t.Errorf("%s: the log does not say %q:\n%s", path, says, log)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%d files are left", len(left))
	}
}

// Two routers that name an engine by different URLs can give each other nothing, and both say so.
func TestTheLogSaysThatPeersNameWorkersDifferently(t *testing.T) {
	e := newEngine(t, "http://127.0.0.1:8000", 1, 100)
	a := warmSite(t, e)
	other := *e
	other.url = "http://localhost:8000"
	b := newSite(t, Config{}, &other)
	b.awaitExact(&other) // the next keeper holds streams that have not begun
	k := NewKeeper(Config{Peers: []string{a.admin.URL}, PeerTimeout: b.keeper.config.PeerTimeout}, b.keeper.Parts)
	k.warm(t.Context())
	k.noteUnclaimed()
	if log := b.log.String(); !strings.Contains(log, "follows no events of their workers") || !strings.Contains(log, "such_as=http://127.0.0.1:8000") {
		t.Errorf("%s", log)
	}
	room := int64(1 << 30)
	for range 2 {
		k.ask(t.Context(), slices.Values(k.peers()), []kvfeed.Place{{Worker: other.url}}, map[kvfeed.Place]bool{}, &room)
	}
	if n := strings.Count(b.log.String(), "a peer follows no such worker"); n != 1 {
		t.Errorf("the log says %d times that the peer follows no such worker:\n%s", n, b.log)
	}
	same := NewKeeper(Config{Peers: []string{a.admin.URL}, PeerTimeout: b.keeper.config.PeerTimeout}, a.keeper.Parts)
	same.Name = "another"
	same.warm(t.Context())
	if same.noteUnclaimed(); strings.Contains(a.log.String(), "follows no events of their workers") {
		t.Errorf("the workers have joined:\n%s", a.log)
	}
}
