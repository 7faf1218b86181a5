package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// Change is the body of PATCH /admin/workers: what to change about one worker. A field that is absent changes nothing.
type Change struct {
	URL string `json:"url"` // the worker's URL, as GET /admin/workers shows it
	// Draining: true sends the worker no further requests; its requests under way continue. false ends this.
	Draining *bool `json:"draining"`
}

// Changed is the answer of PATCH /admin/workers.
type Changed struct {
	URL      string `json:"url"`
	Draining bool   `json:"draining"`
	// Requests are the requests of this router that are under way at the worker. When a draining worker has none, it may
	// be stopped.
	Requests int64 `json:"requests"`
}

// maxChange bounds the body of PATCH /admin/workers, in bytes.
const maxChange = 64 << 10

// changeWorker begins or ends the drain of a worker.
func (a *Admin) changeWorker(w http.ResponseWriter, r *http.Request) {
	var c Change
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange))
	d.DisallowUnknownFields()
	err := d.Decode(&c)
	if _, more := d.Token(); err == nil && more != io.EOF {
		err = errors.New("more than one value")
	}
	const example = `send a body such as {"url": "http://gpu-1:8000", "draining": true}`
	switch {
	case err != nil:
		problem(w, http.StatusBadRequest, fmt.Errorf("read the change of a worker: %w; %s", err, example))
		return
	case c.URL == "" || c.Draining == nil:
		problem(w, http.StatusBadRequest, fmt.Errorf("url and draining are needed: %s", example))
		return
	}
	f := a.Router.Fleet()
	worker := workerAt(f.Snapshot(), c.URL)
	if worker == nil {
		problem(w, http.StatusNotFound, fmt.Errorf("no worker has the URL %s; GET /admin/workers lists them", api.Quoted(c.URL)))
		return
	}
	if worker.Draining != *c.Draining {
		f.SetDraining(worker.ID, *c.Draining)
		a.Log.Info("an operator changed a worker", "worker", worker.URL, "draining", *c.Draining)
	}
	// The requests are counted after the change. A decision that used the snapshot before may still add one. If the worker
	// is stopped at that moment, this request is tried again at another worker.
	snapshot := f.Snapshot()
	out := Changed{URL: worker.URL, Draining: *c.Draining}
	for _, h := range worker.Holders {
		out.Requests += snapshot.Load(h).Requests
	}
	answer(w, http.StatusOK, out)
}

// workerAt returns the worker with a URL, nil if there is none.
func workerAt(s *fleet.Snapshot, url string) *fleet.Worker {
	url = strings.TrimRight(url, "/")
	for _, w := range s.Workers() {
		if w.URL == url {
			return w
		}
	}
	return nil
}
