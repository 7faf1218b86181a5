package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/snapshot"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/kvfeed"
)

// Parts are the components that the admin listener shows. All are required except Certificates, Connections, Workers,
// Notes, TokenModels, Stalled, Meant, Snapshot, Replicas
// and Reload.
type Parts struct {
	Router    *warmpath.Router
	Gateway   *gateway.Gateway
	Telemetry *telemetry.Telemetry
	Tenants   *tenant.Registry
	Sources   telemetry.Sources
	Bodies    *proxy.Bodies
	Log       *slog.Logger
	// Certificates are those of the listener; nil: operators speak HTTP without TLS.
	Certificates *network.Certificates
	// Connections bounds the connections of the admin listener. The zero value is no limit.
	Connections gateway.ConnectionLimit
	// Streams returns the statistics of each event stream, by its holder.
	Streams func() map[fleet.Holder]*kvfeed.Stats
	// IndexHolders returns the index's statistics of each holder.
	IndexHolders func() map[fleet.Holder]IndexHolder
	// Workers adds and removes workers; nil: the workers cannot be changed.
	Workers *discovery.Watcher
	// Notes returns, by URL, what discovery could not learn of workers or had to assume; nil: there are no notes.
	Notes func() map[string][]string
	// TokenModels returns the source of the token ids of each model; nil: the sources are unknown.
	TokenModels func() []TokenModel
	// Stalled returns the reason of a stall, "" if there is none; nil: stalls are not watched.
	Stalled func() string
	// Meant returns a hint for an error about an unknown name: the known name that may be meant, or "". nil: there are
	// no hints.
	Meant func(unknown string, known []string) string
	// Snapshot answers GET snapshot.Path with the index.
	Snapshot http.Handler
	// Replicas returns the state of the sharing of requests with other routers; nil: it is off.
	Replicas func() replica.Status
	// Reload reads the configuration file again and returns the changes. After an error nothing has changed.
	Reload func(context.Context) ([]string, error)
}

// Admin answers the questions of operators. It is an http.Handler, safe for concurrent use.
type Admin struct {
	Parts
	// key is the digest of the admin key. Digests are compared instead of keys, because the time of the comparison then
	// reveals nothing about the key.
	key      [sha256.Size]byte
	guarded  bool
	routes   http.Handler
	methods  map[string][]string // the methods that each path answers
	changing sync.Mutex          // is held while the role of a worker is changed
	playing  atomic.Bool         // a prediction is being simulated
}

// New returns the handler. cfg has passed Validate, and cfg.Key has been read.
func New(cfg Config, parts Parts) *Admin {
	a := &Admin{Parts: parts, key: sha256.Sum256([]byte(cfg.Key)), guarded: cfg.Key != ""}
	mux := http.NewServeMux()
	a.methods = map[string][]string{}
	type route struct {
		method, path string
		answer       http.HandlerFunc
	}
	routes := []route{
		{"GET", "/metrics", parts.Telemetry.Handler(parts.Sources).ServeHTTP},
		{"GET", "/health", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, map[string]string{"status": "ok"})
		}},
		{"GET", "/readiness", parts.Gateway.ServeHTTP},
		{"GET", "/openapi.json", describe},
		{"GET", "/admin/workers", a.workers},
		{"POST", "/admin/workers", a.addWorker},
		{"PATCH", "/admin/workers", a.changeWorker},
		{"DELETE", "/admin/workers", a.removeWorker},
		{"POST", "/admin/workers/role", a.changeRole},
		{"GET", "/admin/decisions", a.decisions},
		{"GET", "/admin/queue", a.queue},
		{"GET", "/admin/tenants", a.tenants},
		{"GET", snapshot.Path, parts.giveSnapshot},
		{"GET", "/admin/replicas", a.replicas},
		{"POST", "/admin/explain", a.explain},
		{"POST", "/admin/reload", a.reload},
		{"POST", "/flush_cache", parts.Gateway.Order},
		{"POST", "/sleep", parts.Gateway.Order},
		{"POST", "/wake_up", parts.Gateway.Order},
		{"GET", "/is_sleeping", parts.Gateway.IsSleeping},
	}
	if cfg.PeerPaths {
		routes = append(routes, route{"POST", "/add_worker", a.peerAdd}, route{"POST", "/remove_worker", a.peerRemove}, route{"GET", "/list_workers", a.peerList})
	}
	for _, r := range routes {
		mux.HandleFunc(r.method+" "+r.path, r.answer)
		a.methods[r.path] = append(a.methods[r.path], r.method)
	}
	for path, list := range a.methods {
		mux.HandleFunc(path, wrongMethod(list))
	}
	mux.HandleFunc("/", unknown)
	// A web page in the operator's browser can send requests to loopback addresses, too. Such a page must not be able
	// to post here.
	a.routes = http.NewCrossOriginProtection().Handler(mux)
	return a
}

// Serve answers on l until ctx ends. After that it waits at most 2 s for running requests.
func (a *Admin) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Protocols:         new(http.Protocols),
		Handler:           a,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true) // only with TLS
	l = gateway.LimitConnections(l, server, a.Connections, refuse)
	failed := make(chan error, 1)
	go func() { failed <- a.Certificates.Serve(server, l) }() // this goroutine ends when the server is shut down or closed, below
	select {
	case err := <-failed:
		return fmt.Errorf("serve admin on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		_ = server.Close()
	}
	<-failed
	return nil
}

// ServeHTTP checks the key, then answers.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if probe := r.URL.Path == "/health" || r.URL.Path == "/readiness"; !probe && a.Certificates.MissingCertificate(r.TLS) {
		problem(w, http.StatusUnauthorized, errors.New("the request came without a client certificate: send one of an authority in admin.tls.client_ca_file"))
		return
	}
	if a.guarded && needsKey(r.URL.Path) && !a.allowed(r) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="warmpath"`)
		what := "wrong"
		if r.Header.Get("Authorization") == "" {
			what = "missing"
		}
		problem(w, http.StatusUnauthorized, fmt.Errorf("the admin key is %s: send the header Authorization: Bearer KEY, "+
			"where KEY is WARMPATH_ADMIN_KEY, admin.key_file or admin.key of the router", what))
		return
	}
	a.routes.ServeHTTP(w, r)
}

// needsKey reports whether a path is answered only with the key, if there is a key.
func needsKey(path string) bool {
	switch path {
	case "/flush_cache", "/sleep", "/wake_up", "/is_sleeping":
		return true
	}
	return api.PeerPath(path) || strings.HasPrefix(path, "/admin")
}

// refuse answers a request for which there is no place.
func refuse(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "1")
	problem(w, http.StatusServiceUnavailable, api.NoPlace())
}

// allowed reports whether r carries the key of the admin API. The comparison takes the same time for each wrong key, so
// its time reveals nothing about the key.
func (a *Admin) allowed(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	digest := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(digest[:], a.key[:]) == 1 && ok
}

// wrongMethod returns a handler that answers 405. methods are the methods that the path answers; GET includes HEAD.
func wrongMethod(methods []string) http.HandlerFunc {
	allowed := strings.Replace(strings.Join(methods, ", "), http.MethodGet, "GET, HEAD", 1)
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		answers := allowed
		if r.URL.Path == "/admin/explain" {
			answers += " with the body of a request"
		}
		problem(w, http.StatusMethodNotAllowed, fmt.Errorf("%s does not answer %s, only %s", r.URL.Path, api.Bounded(r.Method), answers))
	}
}

func unknown(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case api.PeerPath(path):
		problem(w, http.StatusNotFound, fmt.Errorf("there is no %s here: set admin.peer_paths to true in the file, or use GET, POST and DELETE /admin/workers", path))
		return
	case strings.HasPrefix(path, "/v1/"):
		problem(w, http.StatusNotFound, fmt.Errorf("there is no %s here: this is the operators' listener; the clients' listener is at another port (--listen of serve, 8080 by default)", api.Bounded(path)))
		return
	}
	problem(w, http.StatusNotFound, fmt.Errorf("there is no %s %s here; try GET /metrics, GET /health, GET /readiness, GET /openapi.json, GET, POST, PATCH or DELETE /admin/workers, POST /admin/workers/role, GET /admin/decisions, "+
		"GET /admin/queue, GET /admin/tenants, GET /admin/index/snapshot, POST /admin/explain, POST /admin/reload, POST /flush_cache, POST /sleep, POST /wake_up or GET /is_sleeping", api.Bounded(r.Method), api.Bounded(r.URL.Path)))
}

func (a *Admin) workers(w http.ResponseWriter, _ *http.Request) {
	snapshot := a.Router.Fleet().Snapshot()
	blocks, streams := a.IndexHolders(), a.Streams()
	out := Workers{Workers: []Worker{}, Index: []telemetry.Index{}, Kinds: []Kind{}}
	kinds, of := snapshot.Kinds()
	for _, k := range kinds {
		out.Kinds = append(out.Kinds, Kind(k))
	}
	var notes map[string][]string
	if a.Notes != nil {
		notes = a.Notes()
	}
	for _, fw := range snapshot.Workers() {
		line := workerOf(fw)
		line.Notes = notes[fw.URL]
		if a.Workers != nil {
			from, leaving, by := a.Workers.SourceOf(fw.URL)
			if line.Source = string(from); leaving {
				by = by.UTC()
				line.LeavesBy = &by
			}
		}
		for _, h := range fw.Holders {
			holder := a.holderOf(snapshot, h)
			holder.IndexHolder, holder.Stats = blocks[h], streams[h]
			holder.Kind = kinds[of[h]].Name
			line.Holders = append(line.Holders, holder)
		}
		out.Workers = append(out.Workers, line)
	}
	if a.Workers != nil {
		out.Removed = a.Workers.Removed()
	}
	for _, l := range snapshot.Links() {
		out.Links = append(out.Links, LearnedLink{*linkOf(snapshot, l.From, l.To), l.Failures})
	}
	out.Index = append(out.Index, a.Sources.Index()...)
	if a.Sources.Stale != nil {
		out.StaleSeconds = a.Sources.Stale().Seconds()
	}
	if a.Stalled != nil {
		out.Stalled = a.Stalled()
	}
	if a.Sources.Tokens != nil {
		s := a.Sources.Tokens()
		out.Tokens = &Tokens{Checked: s.Checked, Differed: s.Differed, Distrusted: append([]string{}, s.Distrusted...), Models: []TokenModel{}}
		if a.TokenModels != nil {
			out.Tokens.Models = a.TokenModels()
		}
	}
	answer(w, http.StatusOK, out)
}

func workerOf(w *fleet.Worker) Worker {
	f := &w.Facts
	line := Worker{
		URL: w.URL, Engine: f.Engine.String(), Version: f.Version, Models: []string{}, BlockSize: f.BlockSize,
		Blocks: f.BlocksPerRank, Ranks: len(w.Holders), Labels: f.Labels, Healthy: w.Healthy, Ready: w.Ready, Draining: w.Draining, Asleep: w.Asleep, Why: w.Why,
		Role: f.Role.String(), Holders: []Holder{},
	}
	if t := &f.Transfer; t.Connector != "" {
		line.Transfer = &Transfer{t.Connector, t.Host, t.Port, t.EngineIDs, t.TensorParallel, t.PipelineParallel, t.TokenBytes, t.Fetches}
	}
	for i := range f.Models {
		line.Models = append(line.Models, f.Models[i].ID)
	}
	return line
}

func (a *Admin) holderOf(s *fleet.Snapshot, h fleet.Holder) Holder {
	now := time.Now().UnixNano()
	trust, why := s.Trust(h)
	line := Holder{Rank: s.Rank(h), Trust: trust.String(), TrustReason: why, Load: loadOf(s.LoadAt(h, now)),
		Timing: s.Timing(h), Pace: s.Pace(h), Leaked: s.Leaked(h), Suspect: s.Suspected(h), Share: s.Share(h, now)}
	if until := s.BlockedUntil(h); until != 0 {
		at := time.Unix(0, until).UTC()
		line.BlockedUntil = &at
	}
	if until := s.Limited(h, now); until != 0 {
		at := time.Unix(0, until).UTC()
		line.LimitedUntil = &at
	}
	for _, u := range s.Useless(h) {
		name := a.Gateway.ScopeName(u.Scope)
		line.Useless = append(line.Useless, Useless{name.Model, name.Endpoint, time.Unix(0, u.Until).UTC()})
	}
	return line
}

func (a *Admin) decisions(w http.ResponseWriter, r *http.Request) {
	n := 100
	if v := r.URL.Query().Get("n"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1 {
			problem(w, http.StatusBadRequest, fmt.Errorf("n: %s is not a positive number", api.Quoted(v)))
			return
		}
	}
	answer(w, http.StatusOK, Decisions{a.Telemetry.Last(n)})
}

// queue shows the waiting requests. If a line has more than maxTenants tenants, queue shows the tenants with the most
// requests.
func (a *Admin) queue(w http.ResponseWriter, _ *http.Request) {
	order, lines := a.Gateway.Queue()
	out := Queue{Order: order, Lines: []QueueLine{}}
	now := time.Now()
	for _, l := range lines {
		line := QueueLine{Model: l.Model, Requests: l.Requests, Bytes: l.Bytes, Tenants: []QueueTenant{}}
		if !l.Oldest.IsZero() {
			line.OldestMS = float64(now.Sub(l.Oldest).Microseconds()) / 1000
		}
		slices.SortStableFunc(l.Tenants, func(a, b queue.Share) int { return b.Requests - a.Requests })
		for _, s := range l.Tenants[:min(len(l.Tenants), maxTenants)] {
			line.Tenants = append(line.Tenants, QueueTenant{s.Tenant, s.Requests, s.Deficit})
		}
		out.Lines = append(out.Lines, line)
	}
	answer(w, http.StatusOK, out)
}

// giveSnapshot gives the index to another router.
func (p *Parts) giveSnapshot(w http.ResponseWriter, r *http.Request) {
	if p.Snapshot == nil {
		problem(w, http.StatusNotFound, errors.New("this router gives no snapshots of its index"))
		return
	}
	p.Snapshot.ServeHTTP(w, r)
}

// maxTenants bounds the shown tenants of a line.
const maxTenants = 100

func (a *Admin) explain(w http.ResponseWriter, r *http.Request) {
	body, err := a.Bodies.Read(w, r)
	if err != nil {
		problem(w, api.AsError(err).Status, err)
		return
	}
	defer body.Release()
	d, err := dialectOf(r, body.Bytes)
	if err != nil {
		problem(w, http.StatusBadRequest, err)
		return
	}
	header := r.Header.Clone()
	header.Del("Authorization") // this header has the admin's key, which no engine may see
	names, err := a.policies(r.URL.Query().Get("policy"))
	if err != nil {
		problem(w, http.StatusBadRequest, err)
		return
	}
	all, err := a.Gateway.Explain(r.Context(), &gateway.Question{
		Dialect: d, Body: body.Bytes, Header: header, Tenant: r.URL.Query().Get("tenant"), Policies: names,
	})
	if err != nil {
		status := api.AsError(err).Status
		if cause := api.CauseOf(err); errors.Is(cause, warmpath.ErrNoWorker) {
			err = cause // a client is told to try again; an operator can be told why
		}
		problem(w, status, err)
		return
	}
	snapshot := a.Router.Fleet().Snapshot()
	var models []TokenModel
	if a.TokenModels != nil {
		models = a.TokenModels()
	}
	out, lacks, decided := Explanations{Agree: true}, lacking(d, body.Bytes), a.Telemetry.Last(1000)
	for _, e := range all {
		out.Policies = append(out.Policies, explanation(e, snapshot, originOf(e, models, lacks), decided))
		out.Agree = out.Agree && e.Record.Holder == all[0].Record.Holder
	}
	if len(all) == 1 {
		answer(w, http.StatusOK, out.Policies[0])
		return
	}
	answer(w, http.StatusOK, out)
}

// maxPolicies bounds the number of policies that are asked about one request.
const maxPolicies = 16

// policies parses ?policy=A,B. If the list is empty, the result is nil: then the policy that would decide the request
// explains it.
func (a *Admin) policies(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	known, names := a.Router.PolicyNames(), strings.Split(list, ",")
	if len(names) > maxPolicies {
		return nil, fmt.Errorf("policy: %d are asked for, at most %d", len(names), maxPolicies)
	}
	for _, name := range names {
		if slices.Contains(known, name) {
			continue
		}
		meant := ""
		if a.Meant != nil {
			meant = a.Meant(name[:min(len(name), 64)], known)
		}
		return nil, fmt.Errorf("policy: %.64q is none of %s%s", name, strings.Join(known, ", "), meant)
	}
	return names, nil
}

// explained are the dialects whose prompts are matched with the caches of workers.
var explained = []api.Dialect{api.OpenAIChat, api.OpenAICompletions, api.AnthropicMessages, api.OpenAIResponses, api.SGLangGenerate}

// dialectOf takes the dialect from ?path=. Without it the names of the body's members decide.
func dialectOf(r *http.Request, body []byte) (api.Dialect, error) {
	if path := r.URL.Query().Get("path"); path != "" {
		var paths []string
		for _, d := range explained {
			if d.Path() == path {
				return d, nil
			}
			paths = append(paths, d.Path())
		}
		return 0, fmt.Errorf("path: requests to %s are not routed by prompts: give one of %s", api.Quoted(path), strings.Join(paths, ", "))
	}
	has := map[string]bool{}
	if json.Valid(body) {
		for name := range jsonscan.Members(body) {
			has[string(name)] = true
		}
	}
	switch {
	case has["prompt"]:
		return api.OpenAICompletions, nil
	case has["messages"] && has["system"]:
		return api.AnthropicMessages, nil
	case has["messages"]:
		return api.OpenAIChat, nil
	case has["input"]:
		return api.OpenAIResponses, nil
	case has["text"], has["input_ids"]:
		return api.SGLangGenerate, nil
	}
	return api.OpenAIChat, nil
}

func (a *Admin) reload(w http.ResponseWriter, r *http.Request) {
	if a.Reload == nil {
		problem(w, http.StatusConflict, errors.New("there is no file to read again: start with --config FILE"))
		return
	}
	changes, err := a.Reload(r.Context())
	if err != nil {
		problem(w, http.StatusUnprocessableEntity, fmt.Errorf("the old configuration stays: %w", err))
		return
	}
	if changes == nil {
		changes = []string{}
	}
	answer(w, http.StatusOK, Reloaded{"ok", changes})
}

func answer(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false) // people read the answers in a shell: & and not \u0026
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		problem(w, http.StatusInternalServerError, fmt.Errorf("marshal the answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // an error means that the client is gone
}

// problem answers with the text of err. Of an *api.Error it sends the message, and not the cause.
func problem(w http.ResponseWriter, status int, err error) {
	text := err.Error()
	var forClient *api.Error
	if errors.As(err, &forClient) {
		text = forClient.Message
	}
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Message = text
	answer(w, status, body)
}
