package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
)

// endless is a snapshot that repeats some sections for ever.
type endless struct {
	head, again []byte
	read        int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		from := e.head[min(e.read, len(e.head)):]
		if len(from) == 0 {
			from = e.again[(e.read-len(e.head))%len(e.again):]
		}
		c := copy(p[n:], from)
		n, e.read = n+c, e.read+c
	}
	return n, nil
}

// section returns a section with its hash.
func section(kind byte, content []byte) []byte {
	s := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(content)))
	s = append(s, content...)
	return binary.LittleEndian.AppendUint64(s, xxh3.Hash(s))
}

// A hostile peer or file has holders without runs, or reasons, without an end.
func TestHoldersWithoutBlocksTakeRoomToo(t *testing.T) {
	var start bytes.Buffer
	if _, err := newWriter(&start, header{Router: "v"}); err != nil {
		t.Fatal(err)
	}
	c := sample()
	c.Runs = nil
	holder, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var bare []byte
	bare = append(bare, section(kindHolder, holder)...)
	bare = append(bare, section(kindDigests, make([]byte, 24))...)
	bare = append(bare, section(kindDone, make([]byte, 8))...)
	skipped, err := json.Marshal(skippedHolder{Worker: "http://a", Why: "it is cold"})
	if err != nil {
		t.Fatal(err)
	}
	const room = 1 << 20
	for what, again := range map[string][]byte{"holders": bare, "reasons": section(kindSkipped, skipped)} {
		e := &endless{head: start.Bytes(), again: again}
		r, err := newReader(e, room)
		for n := 0; err == nil && n < 1<<20; n++ {
			_, _, err = r.nextHolder()
		}
		if !errors.Is(err, errLarge) || e.read > 4*room {
			t.Errorf("%s without an end: %v after %d bytes", what, err, e.read)
		}
	}
}

func TestFilesThatAKilledRouterLeftAreRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "index")
	old := time.Now().Add(-time.Hour)
	gone := map[string]bool{".index.123": true, ".index.45": true, ".index.6": false, ".index.bak": false, ".index.9x": false, ".other.7": false, ".index.8": false}
	for name := range gone {
		text, when := magic+"\x01\x00", old
		switch name {
		case ".index.45":
			text = "" // killed before the first write
		case ".index.6":
			text = "this is not of a router"
		case ".index.8":
			when = time.Now() // another router is writing it
		}
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600), os.Chtimes(filepath.Join(dir, name), when, when)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := loadFile(path, 1<<20, nil, func(*kvfeed.Checkpoint) bool { return true }, func(*skippedHolder) {}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("load: %v", err)
	}
	for name, want := range gone {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) != want {
			t.Errorf("%s is removed: %v, want %v", name, !want, want)
		}
	}
}

// The first peer's checkpoint is about another version of the engine. The second one, or the file, has a good one.
func TestACheckpointThatDoesNotFitKeepsNoOtherAway(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	c, err := a.feed.Checkpoint(kvfeed.Place{Worker: e.url})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "index")
	if _, _, err := saveFile(t.Context(), path, a.feed, "v"); err != nil {
		t.Fatal(err)
	}
	c.Version = "0.0.1"
	wrong := written(t, c)
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, bytes.NewReader(wrong)) }))
	t.Cleanup(peer.Close)
	b := newSite(t, Config{Peers: []string{peer.URL}, SnapshotFile: path}, e)
	b.awaitExact(e)
	if got := b.match(e, 3); got != promptBlocks*blockTokens || b.trusts()[e.url] != fleet.TrustExact {
		t.Errorf("%d tokens match: the file was not used", got)
	}
}
