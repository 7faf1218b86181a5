package admin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/discovery"
)

// Change is the body of PATCH /admin/workers: what to change about one worker. A field that is absent changes nothing.
// Only workers that the admin API added have settings to change here.
type Change struct {
	URL string `json:"url"` // the worker's URL, as GET /admin/workers shows it
	// Draining: true sends the worker no further requests; its requests under way continue. false ends this. It also
	// keeps a worker that leaves.
	Draining *bool `json:"draining"`
	Settings
}

// Changed is the answer of PATCH /admin/workers.
type Changed struct {
	URL      string `json:"url"`
	Draining bool   `json:"draining"`
	// Requests are the requests of this router that are under way at the worker. When a draining worker has none, it
	// may be stopped.
	Requests int64 `json:"requests"`
}

// maxChange bounds the body of PATCH /admin/workers, in bytes.
const maxChange = 64 << 10

// changeWorker begins or ends the drain of a worker, and changes its settings.
func (a *Admin) changeWorker(w http.ResponseWriter, r *http.Request) {
	var c Change
	err := readBody(w, r, &c)
	const example = `send a body such as {"url": "http://gpu-1:8000", "draining": true}`
	switch {
	case err != nil:
		problem(w, statusOf(err), fmt.Errorf("read the change of a worker: %w; %s", err, example))
		return
	case c.URL == "" || c.Draining == nil && !c.given():
		problem(w, http.StatusBadRequest, fmt.Errorf("url and a change are needed: %s", example))
		return
	}
	f := a.Router.Fleet()
	c.URL = discovery.NormalURL(c.URL)
	worker := workerAt(f.Snapshot(), c.URL)
	if worker == nil {
		problem(w, http.StatusNotFound, fmt.Errorf("no worker has the URL %s; GET /admin/workers lists them", api.Quoted(c.URL)))
		return
	}
	if c.given() {
		if err := a.set(c.URL, &c.Settings); err != nil {
			problem(w, statusOf(err), fmt.Errorf("change %s: %w", c.URL, err))
			return
		}
	}
	if c.Draining != nil {
		if !*c.Draining && a.Workers != nil {
			a.Workers.Stay(c.URL)
		}
		f.SetDraining(worker.ID, *c.Draining)
		a.Log.Info("an operator changed a worker", "worker", worker.URL, "draining", *c.Draining)
	}
	// The requests are counted after the change. A decision that used the snapshot before may still add one. If the
	// worker is stopped at that moment, this request is tried again at another worker.
	snapshot := f.Snapshot()
	out := Changed{URL: worker.URL}
	if now := snapshot.ByID(worker.ID); now != nil {
		out.Draining = now.Draining
	}
	for _, h := range worker.Holders {
		out.Requests += snapshot.Load(h).Requests
	}
	answer(w, http.StatusOK, out)
}

// set changes the settings of a worker.
func (a *Admin) set(url string, s *Settings) error {
	if a.Workers == nil {
		return errFixed
	}
	if err := a.Workers.Change(url, s.apply); errors.Is(err, discovery.ErrElsewhere) {
		return fmt.Errorf("%w; change them there, and reload", err)
	} else if err != nil {
		return err
	}
	a.Log.Info("an operator changed the settings of a worker", "worker", url)
	return nil
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
