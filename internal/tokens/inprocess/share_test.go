package inprocess

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// hubInMemory is a hub without a network. It serves the files of models.
type hubInMemory struct {
	models map[string]fstest.MapFS
	drips  map[string]bool // models whose files come byte by byte

	mu    sync.Mutex
	asked map[string]int // guarded by mu; number of listings, by model
}

// listed returns the number of models whose listing was requested, and how many times the listing of the given model
// was requested.
func (h *hubInMemory) listed(model string) (models, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.asked), h.asked[model]
}

// drip is a response body that sends single bytes with pauses.
type drip struct{ ctx context.Context }

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(50 * time.Second):
		return copy(p, "x"), nil
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

func (h *hubInMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, body []byte) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
			Request: r}, nil
	}
	name, listing := strings.CutPrefix(strings.TrimPrefix(r.URL.Path, "/"), "api/models/")
	parts := strings.Split(name, "/")
	model := strings.Join(parts[:2], "/")
	if listing {
		h.mu.Lock()
		h.asked[model]++
		h.mu.Unlock()
	}
	files := h.models[model]
	switch {
	case h.drips[model] && !listing:
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(drip{r.Context()}), ContentLength: -1,
			Request: r}, nil
	case files == nil:
		return answer(http.StatusNotFound, nil)
	case !listing:
		return answer(http.StatusOK, files[strings.Join(parts[4:], "/")].Data)
	}
	var list struct {
		Commit string              `json:"sha"`
		Files  []map[string]string `json:"siblings"`
	}
	list.Commit = commit
	for name := range files {
		list.Files = append(list.Files, map[string]string{"rfilename": name})
	}
	data, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return answer(http.StatusOK, data)
}

// withHub lets a Finder download from h.
func withHub(t *testing.T, h *hubInMemory) func(*FinderParts) {
	h.asked = map[string]int{}
	return func(p *FinderParts) {
		p.Cache = t.TempDir()
		p.Hub = NewHub(HubConfig{Allow: true, Endpoint: "http://hub", Cache: p.Cache}, slog.New(slog.DiscardHandler))
		p.Hub.client = &http.Client{Transport: h}
	}
}

// One worker names a new model each minute. The downloads for this worker must leave room for other workers' models.
// The hub has some of the named models.
func TestAWorkerThatNamesManyModelsUsesItsOwnDownloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hubInMemory{models: map[string]fstest.MapFS{"org/words": files(), "bad/1": files(), "bad/2": files()},
			drips: map[string]bool{"bad/1": true}}
		x := runFinder(t, withHub(t, h))
		right := load(t, files())
		for i := range 2 * maxFetched {
			name := fmt.Sprint("bad/", i)
			id := x.serve("http://hostile", fmt.Sprint("a", i), name, &fakeEngine{outcome: tokens.Failed})
			x.after(time.Minute)
			x.Fleet.Remove(id)
			x.after(time.Second)
		}
		if n, _ := h.listed(""); n != maxFetchedFor {
			t.Errorf("%d models were downloaded for one worker, want %d", n, maxFetchedFor)
		}
		x.serve("http://honest", "m", "org/words", &fakeEngine{model: right})
		x.after(15 * time.Minute)
		x.wants("m", FromFiles)
		// A day later, the worker may cause downloads again.
		x.after(24 * time.Hour)
		x.serve("http://hostile", "z", "bad/99", &fakeEngine{outcome: tokens.Failed})
		x.after(time.Minute)
		if _, n := h.listed("bad/99"); n != 1 {
			t.Error("the worker's downloads of yesterday count")
		}
	})
}

// Models that were not tried yet come before models with failed downloads.
func TestSlowDownloadsDoNotBlockOtherModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hubInMemory{models: map[string]fstest.MapFS{"org/words": files(), "bad/0": files(), "bad/1": files(),
			"bad/2": files()},
			drips: map[string]bool{"bad/0": true, "bad/1": true, "bad/2": true}}
		x := runFinder(t, withHub(t, h))
		for i := range 3 {
			x.serve(fmt.Sprint("http://hostile", i), fmt.Sprint("a", i), fmt.Sprint("bad/", i),
				&fakeEngine{outcome: tokens.Failed})
		}
		x.after(time.Hour)
		x.serve("http://m", "m", "org/words", &fakeEngine{model: load(t, files())})
		x.after(11 * time.Minute)
		x.wants("m", FromFiles)
		if _, n := h.listed("bad/1"); n < 1 {
			t.Error("this proves nothing")
		}
	})
}

// A slow download delays no reads of folders: neither a folder of the same model that another worker names, nor another
// model's folder.
func TestASlowDownloadDelaysNoFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hubInMemory{models: map[string]fstest.MapFS{"bad/0": files()}, drips: map[string]bool{"bad/0": true}}
		x := runFinder(t, withHub(t, h))
		right := load(t, files())
		x.serve("http://hostile", "m", "bad/0", &fakeEngine{model: right})
		x.after(time.Minute)
		if x.fetching != 1 {
			t.Fatalf("%d downloads are under way", x.fetching)
		}
		x.serve("http://m", "m", folderOf(t, files()), &fakeEngine{model: right})
		x.serve("http://n", "n", folderOf(t, files()), &fakeEngine{model: right})
		x.after(10 * time.Second)
		x.wants("m", FromFiles)
		x.wants("n", FromFiles)
	})
}

func TestADownloadOfManyLargeFilesIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := files()
		for i := range 3 {
			large[fmt.Sprint(i, ".tiktoken")] = &fstest.MapFile{Data: make([]byte, 1000)}
		}
		h := &hubInMemory{models: map[string]fstest.MapFS{"org/large": large}}
		x := runFinder(t, withHub(t, h))
		x.Hub.inAll = 2500
		x.serve("http://a", "m", "org/large", &fakeEngine{model: load(t, files())})
		x.after(time.Minute)
		if log := x.log.String(); !strings.Contains(log, "more than 2500 bytes") {
			t.Errorf("the log does not say it:\n%s", log)
		}
	})
}

// The hostile worker names one folder after another, and a read of each of these folders would hang. The hostile worker
// serves another model each time. An honest worker also serves one of these models.
func TestOneWorkersHangingReadsDelayNoOtherWorker(t *testing.T) {
	for _, what := range []string{"look", "load"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dead := t.TempDir()
				for i := range 3 * maxStuck {
					write(t, filepath.Join(dead, fmt.Sprint(i)), files())
				}
				end := make(chan struct{})
				f := NewFinder(FinderParts{Fleet: fleet.New(fleet.Config{}), Cache: "/nowhere", Log: slog.New(slog.DiscardHandler)})
				search, read := f.search, f.read
				hang := func(path string) {
					if strings.HasPrefix(path, dead) {
						<-end
					}
				}
				if what == "look" {
					f.search = func(origin string) ([]place, string) {
						hang(origin)
						return search(origin)
					}
				} else {
					f.read = func(dir string) (*Model, string) {
						hang(dir)
						return read(dir)
					}
				}
				x := runThis(t, f)
				right := load(t, files())
				for i := range 3 * maxStuck {
					id := x.serve("http://hostile", fmt.Sprint("a", i), filepath.Join(dead, fmt.Sprint(i)), &fakeEngine{model: right})
					x.after([]time.Duration{time.Second, 2 * readTime}[i%2])
					x.Fleet.Remove(id)
				}
				if x.stuck != 1 || x.readers != 0 {
					t.Errorf("%d reads hang for one worker, %d are under way", x.stuck, x.readers)
				}
				x.serve("http://hostile", "m", filepath.Join(dead, "0"), &fakeEngine{model: right})
				x.serve("http://m", "m", folderOf(t, files()), &fakeEngine{model: right})
				x.serve("http://n", "n", folderOf(t, files()), &fakeEngine{model: right})
				x.after(lookEvery + readTime)
				x.wants("m", FromFiles)
				x.wants("n", FromFiles)
				close(end)
				x.after(2 * lookEvery)
				if x.stuck != 0 || len(x.hanging) != 0 {
					t.Errorf("%d reads still count as stuck, for %v", x.stuck, x.hanging)
				}
			})
		})
	}
}

// The network disk with the folder does not answer for a while. When it answers, the folder must be read again.
func TestAFolderIsReadAgainAfterItsHangingReadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		f := NewFinder(FinderParts{Fleet: fleet.New(fleet.Config{}), Cache: "/nowhere", Log: slog.New(slog.DiscardHandler)})
		read := f.read
		f.read = func(dir string) (*Model, string) {
			<-end
			return read(dir)
		}
		x := runThis(t, f)
		x.serve("http://a", "m", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.after(10 * readTime)
		x.wants("m", FromEngine, "within 30s")
		if x.stuck != 1 {
			t.Errorf("%d reads hang", x.stuck)
		}
		close(end)
		x.after(2 * lookEvery)
		x.wants("m", FromFiles)
	})
}
