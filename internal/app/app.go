package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/snapshot"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/kvfeed"
)

// Options are what an App needs in addition to its configuration.
type Options struct {
	Log     *slog.Logger // required
	Version string       // the router's version
	// LogLines counts the lines of Log for the metrics; nil: they are not counted.
	LogLines func() telemetry.LogLines
	// Load reads the configuration again for a reload; if it is nil, reloads are refused.
	Load func() (*config.Config, error)
	// File is the name of the configuration file that Load reads; "" if it reads only files that flags name.
	File string
	// Models are the folders of models' files on this machine. They include the downloaded models that the
	// configuration names. nil means the configuration's paths.
	Models []inprocess.Path
	// Resolver asks about the DNS names of workers; nil means the machine's.
	Resolver *net.Resolver
	// IndexOnly says that the process only offers its index (index_service). It has no gateway and no admin listener.
	IndexOnly bool
	// Network is the network of clients, workers and their events; nil means the machine's. Files of models are
	// always downloaded over the machine's network.
	Network network.Network
}

// App is a whole router. Its methods may be called from any goroutine. Run may be called once.
type App struct {
	options   Options
	indexes   lastKnown[[]warmpath.IndexStats]
	events    lastKnown[[]kvfeed.Stats]
	log       *slog.Logger
	fleet     *fleet.Fleet
	router    *warmpath.Router
	telemetry *telemetry.Telemetry
	tracer    *telemetry.Tracer     // nil: off
	journals  [2]*telemetry.Journal // of requests and of decisions; nil: off
	tenants   *tenant.Registry
	issuer    *tenant.Issuer // nil: no tokens are accepted
	// The certificates of the listeners; nil: without TLS.
	certificates, adminCertificates, indexCertificates *network.Certificates
	seenCertificates                                   []looks // the files of allCertificates before they were read first
	tokens                                             *tokens.Source
	models                                             *inprocess.Finder
	client                                             *proxy.Client
	workers                                            *discovery.Watcher
	reporter                                           *discovery.Reporter
	kvfeed                                             *kvfeed.Feed
	gateway                                            *gateway.Gateway
	admin                                              *admin.Admin
	service                                            *indexService   // nil: the index is not offered
	indexClient                                        *indexer.Client // nil: the router asks no index service
	replica                                            *replica.Sync   // nil: requests are not shared
	giver                                              *snapshot.Giver
	keeper                                             *snapshot.Keeper
	sharedIndex                                        sharedIndex
	listening                                          chan struct{} // closed when the addresses below are set

	address, adminAddress net.Addr

	// reloading serialises reloads, and is locked before mu. A reload may hang for long while it reads a file, and the
	// other users of mu do not wait for that.
	reloading sync.Mutex
	// mu guards the fields below.
	mu   sync.Mutex
	cfg  *config.Config // the configuration in force
	seen looks          // the files of the configuration before the last reload read them
	// The block size of the policy with which the router was made; 0: the policy names none.
	blockSize int
	external  map[string]*source                                                     // the sources of policies, by the policy's name
	follow    func(name string, client *discovery.LMCache) (stop context.CancelFunc) // runs a source's client; nil unless Run runs
}

// New builds an App from a configuration that has passed Validate. It opens no socket and starts no component.
func New(cfg *config.Config, o Options) (*App, error) {
	a := &App{options: o, log: o.Log, cfg: cfg, listening: make(chan struct{})}
	a.fleet = fleet.New(fleet.Config{Breaker: cfg.Breaker, Expiry: expiry(cfg.Gateway.RequestTimeout), BlockSizes: cfg.Routing.BlockSizes})
	blockSize, err := a.makeRouter(cfg)
	if err != nil {
		return nil, err
	}
	peers := new(network.Peers)
	health := cfg.Health
	health.Peers = peers
	if a.workers, err = discovery.NewWatcher(a.fleet, cfg.Workers, health, discovery.NewClient(o.Network, peers), o.Log); err != nil {
		return nil, err
	}
	a.workers.SetDefaults(cfg.WorkerDefaults)
	useFile, err := a.workers.Prepare(discovery.SourceFile, cfg.FileWorkers)
	if err != nil {
		return nil, err
	}
	useFile()
	a.reporter = discovery.NewReporter(a.fleet, cfg.Reports, a.workers.Target, discovery.NewClient(o.Network, peers), o.Log)
	events := cfg.Events
	events.BlockSize, events.Elsewhere, events.Unrouted = cfg.Routing.BlockSize, cfg.Index.Elsewhere(), o.IndexOnly
	events.Stream.Dial, events.Stream.Listen = network.Of(o.Network).Dial, network.Of(o.Network).Listen
	a.kvfeed = kvfeed.New(a.router, events, o.Log)
	a.indexes.fetch, a.events.fetch = a.router.IndexStats, a.kvfeed.Stats
	if err := a.useSnapshots(cfg); err != nil {
		return nil, err
	}
	a.telemetry = telemetry.New(cfg.Telemetry)
	a.sharedIndex.report(a.telemetry)
	a.journals[0] = a.telemetry.NewJournal("access", cfg.Telemetry.AccessLog, o.Log)
	a.journals[1] = a.telemetry.NewJournal("decision", cfg.Telemetry.DecisionLog, o.Log)
	if a.tracer, err = a.telemetry.NewTracer(cfg.Telemetry.Traces, o.Version, o.Log); err != nil {
		return nil, err
	}
	if cfg.JWT.On() {
		a.issuer = tenant.NewIssuer(cfg.JWT)
	}
	a.tokens = tokens.New(cfg.Tokens, tokenClient(o.Network, peers))
	a.tokens.Log = o.Log
	models := cfg.Models
	if o.Models != nil {
		models = o.Models
	}
	if err := a.useModels(cfg, models); err != nil {
		return nil, err
	}
	a.blockSize = blockSize
	forward := cfg.Proxy
	forward.Network, forward.Peers = o.Network, peers
	a.client = proxy.New(forward)
	bodies := proxy.NewBodies(cfg.Body)
	clients, operators := a.connections(cfg)
	if err := a.readCertificates(cfg); err != nil {
		return nil, err
	}
	if err := a.useIndexClient(cfg); err != nil {
		return nil, err
	}
	a.gateway = gateway.New(cfg.Gateway, gateway.Parts{
		Index: a.remoteIndex(), IndexTimeout: cfg.Index.LookupTimeout(),
		Router: a.router, Fleet: a.fleet, Tokens: a.tokens, Client: a.client, Bodies: bodies, Telemetry: a.telemetry, Tenants: a.tenants,
		Issuer: a.issuer, Certificates: a.certificates, Queue: cfg.Queue, MaxRequests: cfg.Routing.MaxRequests, Connections: clients, ShadowSample: cfg.ShadowSample, Scoped: a.kvfeed.Scoped, Log: o.Log,
		Outdated: a.workers.ProbeAgain, Stalled: a.stalled, Version: o.Version, AccessLog: a.journals[0], DecisionLog: a.journals[1], Tracer: a.tracer,
	})
	a.gateway.AllowPolicies(cfg.RequestPolicies)
	a.gateway.UseServiceLevels(cfg.GatewayLevels())
	a.gateway.UseModelNames(cfg.ModelNames())
	a.gateway.UseAdapters(cfg.GatewayAdapters())
	a.makeAdmin(cfg, bodies, operators)
	if a.service != nil {
		a.finishIndexService(cfg, clients, operators)
	}
	a.seen = look(a.files())
	return a, nil
}

// makeRouter makes the router, and the components that its options name. It returns the block size of its policy.
func (a *App) makeRouter(cfg *config.Config) (blockSize int, err error) {
	options := cfg.Options()
	options.Fleet = a.fleet
	if options.Index.Seed == 0 {
		var seed [8]byte
		rand.Read(seed[:]) // never fails
		options.Index.Seed = binary.NativeEndian.Uint64(seed[:])
	}
	a.external = a.sourcesOf(cfg)
	attach(options.Policies, a.external)
	a.countFailures(options.Policies)
	options.Policy.Failed = a.failuresOf(options.Policy.Name)
	if x := a.external[options.Policy.Name]; x != nil {
		options.Policy.Source = x.client.Cached
	}
	a.tenants = tenant.NewRegistry()
	a.tenants.Use(cfg.AllTenants, []byte(cfg.TenantSaltKey))
	a.useSync(cfg, &options)
	a.useSharedIndex(cfg, &options)
	if cfg.IndexService.Listen != "" {
		a.service = newIndexService(a.fleet, &options)
	}
	a.router, err = warmpath.New(options)
	return options.Policy.BlockSize, err
}

// makeAdmin makes the admin listener.
func (a *App) makeAdmin(cfg *config.Config, bodies *proxy.Bodies, operators gateway.ConnectionLimit) {
	parts := admin.Parts{
		Router: a.router, Gateway: a.gateway, Telemetry: a.telemetry, Tenants: a.tenants, Certificates: a.adminCertificates, Sources: a.sources(), Bodies: bodies, Log: a.log,
		Connections: operators, Streams: a.streams, IndexHolders: a.indexHolders, Workers: a.workers, Notes: a.workers.Notes, TokenModels: a.showModels,
		Stalled: a.stalled, Meant: config.Meant,
	}
	if !cfg.Index.Elsewhere() {
		parts.Snapshot = a.giver
	}
	if a.replica != nil {
		parts.Replicas = a.replica.Status
	}
	if a.options.Load != nil {
		parts.Reload = func(context.Context) ([]string, error) { return a.Reload() }
	}
	a.admin = admin.New(cfg.Admin, parts)
}

// expiry returns the time without a sign of life after which a request counts as lost. timeout is how long a request
// may take; 0 is no limit. An answer in one piece gives no sign of life before its end, so the expiry is longer than
// timeout. Without a timeout the expiry is a day.
func expiry(timeout time.Duration) time.Duration {
	if timeout == 0 {
		return 24 * time.Hour
	}
	return max(fleet.DefaultExpiry, timeout+time.Minute)
}

// useModels sets up token ids that are made in this process, for models whose files are given or will be found.
func (a *App) useModels(cfg *config.Config, paths []inprocess.Path) error {
	given, err := inprocess.Open(paths)
	if err != nil {
		return err
	}
	for _, p := range paths {
		a.log.Info("the router makes the model's token ids itself, from the files that the configuration names", "model", cmp.Or(p.Name, "the only one of the workers"), "folder", p.Path)
	}
	hub := config.Hub(cfg.Hub)
	parts := inprocess.FinderParts{Fleet: a.fleet, Asker: a.tokens, Given: given, Off: !cfg.Tokens.Discover, Cache: hub.Cache, Bare: indexer.Bare, Log: a.log,
		Authorization: func(url string) string {
			if key := a.workers.Target(url).APIKey; key != "" {
				return "Bearer " + key
			}
			return ""
		}}
	if hub.Allow {
		parts.Hub = inprocess.NewHub(hub, a.log)
	}
	a.models = inprocess.NewFinder(parts)
	a.tokens.Local = a.models
	return nil
}

// tokenClient returns the client that asks engines for tokens. It closes a connection after 4 idle seconds, because
// uvicorn closes it after 5. It uses no proxy from the environment. It asks for no compression: the answers are digits,
// sent over a local network, so compression would only cost the engine time.
func tokenClient(n network.Network, peers *network.Peers) *http.Client {
	return &http.Client{
		Transport: network.NewTransport(n, peers, network.TransportConfig{
			ConnectTimeout: time.Second, IdleTimeout: 4 * time.Second, IdlePerPeer: 64, Plain: true,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Listening returns a channel that is closed when Addr and AdminAddr may be called.
func (a *App) Listening() <-chan struct{} { return a.listening }

// Addr returns the address at which clients are served.
func (a *App) Addr() net.Addr { return a.address }

// AdminAddr returns the address at which operators are served, or nil if there is no admin listener.
func (a *App) AdminAddr() net.Addr { return a.adminAddress }

// Router returns the router, so that a caller can look at its index.
func (a *App) Router() *warmpath.Router { return a.router }

// endMargin is how long the process may take to end after the drain. For each request that the drain cuts off, an error
// event is sent (1 s), and the admin listener ends (2 s). The remaining 2 s are for a busy machine.
const endMargin = 5 * time.Second

// Run serves until ctx ends. After that it drains the gateway, while the other components still watch workers and
// follow events. When the gateway has ended, Run ends these components. Run returns when everything that it started has
// ended. The error says which component could not start or failed, or that requests were cut off. If a component has
// not ended endMargin after the gateway, or after the time that the drain may take, Run returns without waiting for it,
// so that the process ends; the error names the component.
func (a *App) Run(ctx context.Context) error {
	a.mu.Lock()
	cfg := a.cfg
	a.mu.Unlock()
	stopping, stop := context.WithCancelCause(ctx) // stop ends the gateway
	defer stop(nil)
	var g group
	ended, drained := make(chan error, 1), make(chan struct{})
	go func() { ended <- a.run(ctx, stopping, stop, &g, cfg, drained) }() // waited for below, unless it hangs
	select {
	case err := <-ended:
		return err
	case <-drained:
	case <-stopping.Done():
	}
	drain := time.NewTimer(cfg.Gateway.DrainDelay + cfg.Gateway.DrainTimeout)
	defer drain.Stop()
	select {
	case err := <-ended:
		return err
	case <-drained:
	case <-drain.C:
	}
	limit := time.NewTimer(endMargin)
	defer limit.Stop()
	select {
	case err := <-ended:
		return err
	case <-limit.C:
	}
	err := fmt.Errorf("stop: components still run %v after the end of the drain: %s", endMargin, strings.Join(g.names(), ", "))
	if why := a.stalled(); why != "" {
		err = fmt.Errorf("%w; %s", err, why)
	}
	a.log.Error("a component hangs: the process ends without waiting for it; please report this", "error", err)
	return err
}

// run does the work of Run, without the time limit for the end. It closes drained when the gateway has ended.
func (a *App) run(ctx, stopping context.Context, stop context.CancelCauseFunc, g *group, cfg *config.Config, drained chan<- struct{}) error {
	for _, j := range a.journals { // before clients are served: their lines must not be lost
		if err := j.Open(); err != nil {
			return err
		}
		defer j.Close()
	}
	if a.options.IndexOnly {
		return a.runIndex(ctx, stopping, stop, g, cfg, drained)
	}
	front, err := a.listen("clients", "--listen", cfg.Listen)
	if err != nil {
		return err
	}
	a.address = front.Addr()
	if a.service != nil {
		if err := a.listenIndex(cfg); err != nil {
			_ = front.Close()
			return err
		}
	}
	var back net.Listener
	if cfg.Admin.Listen != "" {
		if back, err = a.listen("operators", "--admin-listen", cfg.Admin.Listen); err != nil {
			_ = front.Close()
			a.service.close()
			return err
		}
		a.adminAddress = back.Addr()
	}
	close(a.listening)
	a.log.Info("serving", "listen", a.address.String(), "admin", addr(a.adminAddress), "policy", cfg.Policy, "workers", len(cfg.Workers)+len(cfg.FileWorkers))

	rest, stopRest := context.WithCancel(context.WithoutCancel(ctx)) // stopRest ends the other components, after the gateway
	defer stopRest()
	g.run("client", stop, func() error { return a.client.Run(rest) })
	a.runFollowers(rest, g, stop, cfg)
	g.run("reports", stop, func() error { return a.reporter.Run(rest) })
	g.run("paces", stop, func() error { return a.watchPaces(rest) })
	g.run("roles", stop, func() error { return a.watchRoles(rest) })
	if a.service != nil {
		g.run("index service", stop, func() error { return a.service.serve(rest) })
	}
	if a.indexClient != nil {
		g.run("index client", stop, func() error { return a.indexClient.Run(rest) })
	}
	if a.issuer != nil {
		g.run("issuer", stop, func() error { return a.runIssuer(rest) })
	}
	if a.tracer != nil {
		g.run("traces", stop, func() error { return a.tracer.Run(rest) })
	}
	for _, j := range a.journals {
		if j != nil {
			g.run("log", stop, func() error { return j.Run(rest) })
		}
	}
	if a.replica != nil {
		a.replica.SetAdmin(addr(a.adminAddress), a.adminCertificates != nil)
		g.run("sync", stop, func() error { return a.replica.Run(rest) })
	}
	noMore := a.runSources(rest, g, stop)
	if back != nil {
		g.run("admin", stop, func() error { return a.admin.Serve(rest, back) })
	}
	endGateway := g.begin("gateway")
	served := a.gateway.Serve(stopping, front)
	endGateway()
	close(drained)
	a.keeper.Save(rest)
	noMore()
	stopRest()
	g.wg.Wait()
	a.tokens.Close()
	a.log.Info("stopped")
	if cause := context.Cause(stopping); cause != nil && ctx.Err() == nil {
		served = errors.Join(cause, served)
	}
	stop(nil)
	return served
}

// runFollowers runs the components that know the workers and follow their events, until ctx ends.
func (a *App) runFollowers(ctx context.Context, g *group, stop context.CancelCauseFunc, cfg *config.Config) {
	g.run("discovery", stop, func() error { return a.workers.Run(ctx) })
	if len(cfg.WorkersDNS.Names) > 0 {
		names := discovery.NewDNS(cfg.WorkersDNS, a.workers, a.options.Resolver, a.log)
		g.run("dns", stop, func() error { return names.Run(ctx) })
	}
	g.run("models", stop, func() error { return a.models.Run(ctx) })
	g.run("ingest", stop, func() error { return a.kvfeed.Run(ctx) })
	g.run("snapshots", stop, func() error { return a.keeper.Run(ctx) })
	a.sharedIndex.run(ctx, g, stop)
	g.run("stalls", stop, func() error { return a.watchStalls(ctx) })
	if cfg.WatchInterval > 0 {
		g.run("files", stop, func() error { return a.watchFiles(ctx, cfg.WatchInterval) })
	}
	g.run("reclaim", stop, func() error { return a.reclaim(ctx) })
}

// listen opens an address. If another process uses the address, the error says how to choose another address.
func (a *App) listen(who, flag, address string) (net.Listener, error) {
	l, err := network.Of(a.options.Network).Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen for %s: %w; is another router running there? Choose another address with %s", who, err, flag)
	case err != nil:
		return nil, fmt.Errorf("listen for %s: %w", who, err)
	}
	return l, nil
}

func addr(a net.Addr) string {
	if a == nil {
		return "off"
	}
	return a.String()
}

// group runs components. A component that fails stops the App.
type group struct {
	wg sync.WaitGroup

	mu      sync.Mutex // guards running
	running []string   // names of components
}

func (g *group) run(name string, stop context.CancelCauseFunc, component func() error) {
	end := g.begin(name)
	g.wg.Go(func() {
		defer end()
		if err := component(); err != nil {
			stop(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// begin records that a component runs until end is called.
func (g *group) begin(name string) (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = append(g.running, name)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if i := slices.Index(g.running, name); i >= 0 {
			g.running = slices.Delete(g.running, i, i+1)
		}
	}
}

// names returns the names of the running components.
func (g *group) names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.running)
}
