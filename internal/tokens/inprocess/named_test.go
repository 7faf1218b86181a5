package inprocess

import (
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// allow lets a Finder download models that engines name.
func (f *fakeHub) allow(cache string) func(*FinderParts) {
	return func(p *FinderParts) {
		p.Cache = cache
		p.Hub = NewHub(HubConfig{Allow: true, Endpoint: f.URL, Cache: cache}, slog.New(slog.DiscardHandler))
	}
}

// A model's files come from the hub if three conditions hold: downloads are allowed, the engine reports a name on the
// hub, and this machine does not have the files.
func TestModelsThatEnginesNameAreDownloaded(t *testing.T) {
	hub, cache := newHub(t), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, hub.allow(cache))
		x.serve("http://a", "m", "org/m", &fakeEngine{model: load(t, hub.files)})
		x.after(5 * time.Second)
		x.wants("m", FromFiles)
		if s := x.status("m"); s.Folder != filepath.Join(cache, "models--org--m", "snapshots", commit) {
			t.Errorf("the files are in %s", s.Folder)
		}
		x.after(2 * time.Hour)
		if len(hub.answered) != 3 {
			t.Errorf("files asked for: %q", hub.answered)
		}
	})
}

func TestADownloadThatFailedIsTriedAgain(t *testing.T) {
	hub := newHub(t)
	hub.status = http.StatusServiceUnavailable
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, hub.allow(t.TempDir()))
		x.serve("http://a", "m", "org/m", &fakeEngine{model: load(t, hub.files)})
		x.serve("http://b", "other", "org/other", &fakeEngine{model: load(t, hub.files)})
		x.after(fetchEvery / 2)
		x.wants("m", FromEngine, "org/m", "its download failed", "status 503")
		if log := x.log.String(); strings.Count(log, "could not be downloaded") != 2 || !strings.Contains(log, "name=org/m") {
			t.Errorf("the log does not tell of the downloads:\n%s", log)
		}
		hub.mu.Lock()
		hub.status = 0
		hub.mu.Unlock()
		x.after(fetchEvery)
		x.wants("m", FromFiles)
		x.wants("other", FromEngine, "org/other")
	})
}
