package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/network"
)

// Settings are the settings of a worker that the admin API may set. An absent field changes nothing. The key of a
// worker cannot be given as a file or a variable here: otherwise an operator's request could send any file of the
// router's machine to any server.
type Settings struct {
	Events    *string           `json:"events"`
	Replay    *string           `json:"replay"`
	Topic     *string           `json:"topic"`
	Model     *string           `json:"model"`
	Ranks     *int              `json:"ranks"`
	APIKey    *string           `json:"api_key"`
	APIKeyUse *string           `json:"api_key_use"`
	Protocol  *string           `json:"protocol"`
	TLS       *TLS              `json:"tls"`              // replaces all settings of TLS
	Labels    map[string]string `json:"labels,omitempty"` // replaces all labels
	// Role, and how the worker exchanges KV blocks.
	Role            *string `json:"role"`
	Connector       *string `json:"connector"`
	TransferHost    *string `json:"transfer_host"`
	TransferPort    *int    `json:"transfer_port"`
	EngineID        *string `json:"engine_id"`
	TensorParallel  *int    `json:"tensor_parallel"`
	KVBytesPerToken *int    `json:"kv_bytes_per_token"`
}

// TLS has the files for an https worker, on the router's machine.
type TLS struct {
	CAFile     string `json:"ca_file"`
	CertFile   string `json:"cert_file"`
	KeyFile    string `json:"key_file"`
	ServerName string `json:"server_name"`
}

// apply sets the given settings.
func (s *Settings) apply(t *discovery.Target) {
	for _, f := range []struct{ to, from *string }{{&t.Events, s.Events}, {&t.Replay, s.Replay}, {&t.Topic, s.Topic}, {&t.Model, s.Model},
		{&t.APIKey, s.APIKey}, {&t.APIKeyUse, s.APIKeyUse}, {&t.Protocol, s.Protocol},
		{&t.Role, s.Role}, {&t.Connector, s.Connector}, {&t.TransferHost, s.TransferHost}, {&t.EngineID, s.EngineID}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	for _, f := range []struct{ to, from *int }{{&t.Ranks, s.Ranks}, {&t.TransferPort, s.TransferPort}, {&t.TensorParallel, s.TensorParallel}, {&t.KVBytesPerToken, s.KVBytesPerToken}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if s.TLS != nil {
		t.TLS = network.PeerTLS(*s.TLS)
	}
	if s.Labels != nil {
		t.Labels = s.Labels
	}
}

// given reports whether there is a setting.
func (s *Settings) given() bool {
	return s.Events != nil || s.Replay != nil || s.Topic != nil || s.Model != nil || s.Ranks != nil || s.APIKey != nil || s.APIKeyUse != nil || s.Protocol != nil ||
		s.TLS != nil || s.Labels != nil || s.Role != nil || s.Connector != nil || s.TransferHost != nil || s.TransferPort != nil || s.EngineID != nil || s.TensorParallel != nil || s.KVBytesPerToken != nil
}

// Joining is the body of POST /admin/workers.
type Joining struct {
	URL string `json:"url"` // the worker's URL, as in the configuration
	Settings
}

// Joined is the answer of POST /admin/workers.
type Joined struct {
	URL string `json:"url"` // as GET /admin/workers shows it
}

// Left is the answer of DELETE /admin/workers.
type Left struct {
	URL string `json:"url"`
	// Requests are the requests of this router that are under way at the worker.
	Requests int64 `json:"requests"`
	// LeavesBy is when the worker leaves at the latest; absent: it has left.
	LeavesBy *time.Time `json:"leaves_by,omitempty"`
}

// maxDrain bounds how long a worker may take to leave. The longest answers take hours.
const maxDrain = 24 * time.Hour

// readBody reads the body of a change. A body with an unknown field is an error.
func readBody(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if strings.Contains(err.Error(), `"api_key_file"`) || strings.Contains(err.Error(), `"api_key_env"`) {
			return errors.New("a request cannot name a file or a variable with a key: send the key itself in api_key")
		}
		return err
	}
	tooLarge := new(http.MaxBytesError)
	switch _, err := d.Token(); {
	case err == io.EOF:
		return nil
	case errors.As(err, &tooLarge):
		return err
	}
	return errors.New("more than one value")
}

// statusOf returns the status for an error about a change of workers.
func statusOf(err error) int {
	tooLarge := new(http.MaxBytesError)
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, discovery.ErrAbsent):
		return http.StatusNotFound
	case errors.Is(err, discovery.ErrPresent), errors.Is(err, discovery.ErrElsewhere), errors.Is(err, discovery.ErrFull), errors.Is(err, errFixed):
		return http.StatusConflict
	}
	return http.StatusBadRequest
}

// errFixed is the error of a router without discovery.
var errFixed = errors.New("the workers of this router cannot be changed")

// addWorker adds a worker. It does not wait for the worker's first answer.
func (a *Admin) addWorker(w http.ResponseWriter, r *http.Request) {
	var body Joining
	if err := readBody(w, r, &body); err != nil {
		problem(w, statusOf(err), fmt.Errorf(`read the new worker: %w; send a body such as {"url": "http://gpu-1:8000", "labels": {"zone": "a"}}`, err))
		return
	}
	url, err := a.add(&body)
	if err != nil {
		problem(w, statusOf(err), err)
		return
	}
	answer(w, http.StatusCreated, Joined{url})
}

func (a *Admin) add(body *Joining) (url string, err error) {
	if a.Workers == nil {
		return "", errFixed
	}
	t := discovery.Target{URL: body.URL}
	body.apply(&t)
	switch url, err = a.Workers.Add(t); {
	case errors.Is(err, discovery.ErrPresent):
		return url, fmt.Errorf("add %s: %w; PATCH /admin/workers changes it", url, err)
	case errors.Is(err, discovery.ErrFull):
		return url, fmt.Errorf("add %s: %w; remove some, or list the workers in a file", url, err)
	case err != nil:
		return url, fmt.Errorf("add a worker: %w", err)
	}
	a.Log.Info("an operator added a worker", "worker", url)
	return url, nil
}

// removeWorker removes the worker ?url=. With ?drain=DURATION it leaves when its requests have ended, or after that
// time.
func (a *Admin) removeWorker(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	url, drain := query.Get("url"), time.Duration(0)
	if v := query.Get("drain"); v != "" {
		var err error
		if drain, err = time.ParseDuration(v); err != nil || drain < 0 || drain > maxDrain {
			problem(w, http.StatusBadRequest, fmt.Errorf("drain: %s is not a duration from 0s to %v, such as 5m", api.Quoted(v), maxDrain))
			return
		}
	}
	if url == "" {
		problem(w, http.StatusBadRequest, errors.New("the URL of the worker is needed: DELETE /admin/workers?url=http://gpu-1:8000, and with &drain=5m the worker leaves when its requests have ended"))
		return
	}
	left, err := a.remove(url, drain)
	if err != nil {
		problem(w, statusOf(err), err)
		return
	}
	status := http.StatusOK
	if left.LeavesBy != nil {
		status = http.StatusAccepted
	}
	answer(w, status, left)
}

func (a *Admin) remove(url string, drain time.Duration) (left Left, err error) {
	if a.Workers == nil {
		return left, errFixed
	}
	left.URL = discovery.NormalURL(url)
	if left.Requests, err = a.Workers.Remove(url, drain); err != nil {
		return left, fmt.Errorf("%w: %s; GET /admin/workers lists them", err, api.Quoted(url))
	}
	if _, leaving, by := a.Workers.SourceOf(left.URL); leaving {
		by = by.UTC()
		left.LeavesBy = &by
	}
	a.Log.Info("an operator removed a worker", "worker", left.URL, "requests", left.Requests, "drain", drain)
	return left, nil
}
