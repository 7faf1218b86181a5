package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/network"
)

// These constants are the addresses in the network.
const (
	routerIP = "10.0.0.1"
	clientIP = "10.0.0.2"
	httpPort = 8000 // port of an engine's HTTP API
	// pubPort is the port of rank 0's events. It is vLLM's default, which the router tries if an engine does not report
	// its port.
	pubPort  = 5557
	replay   = 5657
	adminKey = "operators only"
)

// world is one run: the router, its engines, its clients, and the network between them. The goroutine that plays the
// steps owns a world. The goroutines of clients write only the fields that mu guards, and read fields that never
// change.
type world struct {
	setup   setup
	network *network.Memory
	client  *network.Host
	clients *http.Client
	router  *app.App
	stop    context.CancelFunc
	base    context.Context    // context of all requests
	leave   context.CancelFunc // ends base
	ended   chan error
	engines []*engine
	orders  sync.WaitGroup // counts restarts, and ends of faults, that are still to come
	prompts map[string][]uint32
	recent  []string // keys of all prompts of token ids, oldest first
	bubble  string   // name of the run's bubble in stack traces

	mu       sync.Mutex // guards the fields below
	next     *config.Config
	asks     []*ask               // requests under way
	used     map[string]time.Time // by key of a prompt: time at which a request with this prompt last ended
	answers  map[string]string    // by the field key of an ask: text of its answer
	problems []string             // promises that the router broke
	counts   map[string]int       // number of requests by outcome
}

// engine is one worker: a mock engine, or another server at its address.
type engine struct {
	world  *world
	host   *network.Host
	ip     string
	setup  engineSetup
	server *mockengine.Server
	end    func()          // stops the server at the address
	lying  bool            // a server other than the mock engine is at the address
	dead   bool            // no server is at the address
	killed bool            // the engine's core is dead, but its HTTP server still answers
	was    mockengine.Kind // kind of the last mock engine that began at the address
	seen   bool            // the router has read metrics of a process of the kind was
	refuse bool            // the address has refused connections since the router read metrics; guarded by the world's mu
	blamed bool            // the engine has given, or may give, useless answers to requests that other workers answer well
	liedAt time.Time       // time at which a server other than the mock engine was last at the address
	born   time.Time       // time at which the current process began; guarded by the world's mu
	// restartVisible means that the router can see that the current process is not the process from before. Guarded by
	// the world's mu.
	restartVisible bool
	undone         chan struct{} // closing it ends all temporary faults early
}

func (e *engine) url() string { return fmt.Sprintf("http://%s:%d", e.ip, httpPort) }

// start starts the engines, the router and the clients.
func start(s setup, out io.Writer) (*world, error) {
	w := &world{setup: s, network: network.NewMemory(), prompts: map[string][]uint32{}, used: map[string]time.Time{}, answers: map[string]string{}, counts: map[string]int{}, ended: make(chan error, 1)}
	w.bubble = bubbleOf()
	w.base, w.leave = context.WithCancel(context.Background())
	w.client = w.network.Host(clientIP)
	w.clients = &http.Client{Transport: &http.Transport{DialContext: w.client.Dial, MaxIdleConnsPerHost: 16, IdleConnTimeout: 20 * time.Second}}
	for i, es := range s.Engines {
		ip := fmt.Sprintf("10.0.1.%d", i+1)
		e := &engine{world: w, host: w.network.Host(ip), ip: ip, setup: es, undone: make(chan struct{})}
		w.engines = append(w.engines, e)
		if err := e.run(); err != nil {
			return w, err
		}
	}
	cfg := w.config()
	w.next = cfg
	if err := cfg.Validate(); err != nil {
		return w, err
	}
	var err error
	if w.router, err = app.New(cfg, app.Options{Log: slog.New(logger(w, out)), Load: w.load, Network: w.network.Host(routerIP)}); err != nil {
		return w, err
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() { w.ended <- w.router.Run(ctx) }()
	<-w.router.Listening()
	return w, nil
}

// config returns the router's configuration.
func (w *world) config() *config.Config {
	s := &w.setup
	c := config.Default()
	c.Listen, c.Admin.Listen, c.Admin.Key = routerIP+":8080", routerIP+":9090", adminKey
	c.Policy, c.Shadow = s.Policy, s.Shadow
	c.RequestPolicies = []string{"direct"}
	c.Queue.Order, c.Queue.MaxWait = s.Queue, 5*time.Second
	c.Routing.MaxRequests = s.MaxRequests
	// The seed may be any number, but must be the same in each run.
	c.Index.Bytes, c.Index.Seed = s.IndexBytes, 1
	c.Gateway.Attempts, c.Gateway.RequestTimeout = s.Attempts, s.RequestTimeout
	c.Gateway.DrainDelay, c.Gateway.DrainTimeout = s.DrainDelay, s.DrainTimeout
	c.Proxy.StreamIdleTimeout = s.StreamIdle
	c.Reports.Interval = s.Reports
	c.Tokens.Budget = s.Tokens
	for _, e := range w.engines {
		c.Workers = append(c.Workers, e.target())
	}
	return &c
}

func (e *engine) target() discovery.Target {
	t := discovery.Target{URL: e.url()}
	if e.setup.NoEvents {
		t.Events = discovery.None
	}
	return t
}

// load returns the configuration that the router reads at a reload.
func (w *world) load() (*config.Config, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		return nil, errors.New("the file is broken")
	}
	return w.next, nil
}

// mock returns the mock engine's configuration.
func (e *engine) mock() mockengine.Config {
	s, c := &e.setup, mockengine.DefaultConfig()
	c.Network = e.host
	c.Listen = fmt.Sprintf("%s:%d", e.ip, httpPort)
	c.Kind, c.Wire, c.Model = s.Kind, s.Wire, s.Model
	c.Ranks, c.BlockSize, c.Blocks = s.Ranks, s.BlockSize, s.Blocks
	c.CPUBlocks, c.Placeholders = s.CPUBlocks, s.Placeholders
	c.MaxModelLen, c.MaxSequences = (s.Blocks-1)*s.BlockSize, s.MaxSequences
	c.BufferSteps, c.HideEventSources, c.ScaleOut, c.Speed = s.BufferSteps, s.Hidden, s.ScaleOut, s.Speed
	c.Events, c.Replay = fmt.Sprintf("tcp://%s:%d", e.ip, pubPort), fmt.Sprintf("tcp://%s:%d", e.ip, replay)
	if s.NoReplay {
		c.Replay = ""
	}
	if s.NoEvents {
		c.Events, c.Replay = "", ""
	}
	c.OutputTokens = 24
	c.Seed = 1 // with equal seeds all engines give the same answers
	return c
}

// run starts the mock engine at the address.
func (e *engine) run() error {
	server, err := mockengine.New(e.mock())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }() // ends with ctx; e.end waits
	select {
	case <-server.Ready():
	case err := <-ended:
		cancel()
		return fmt.Errorf("start engine %s: %w", e.ip, err)
	}
	e.server, e.dead, e.killed = server, false, false
	e.begins()
	e.lies(false)
	e.end = func() {
		cancel()
		if err := <-ended; err != nil {
			e.world.problem("engine %s: %v", e.ip, err)
		}
	}
	return nil
}

// vacate stops the server at the engine's address, and ends the engine's temporary faults.
func (e *engine) vacate() {
	close(e.undone)
	e.undone = make(chan struct{})
	if e.end != nil {
		e.end()
	}
	e.end, e.server = nil, nil
}

// begins records that a new process serves at the address. The router notices a new process by vLLM's /metrics, if it
// has read the metrics of an earlier process. The router drops the earlier metrics if the address refused connections
// and then another server answers.
func (e *engine) begins() {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	e.born = time.Now()
	e.seen = e.seen && e.setup.Kind == e.was
	e.restartVisible = e.seen && e.setup.Kind == mockengine.VLLM
	e.was = e.setup.Kind
	e.seen = e.seen && !e.refuse
}

// refuses records that the address refuses connections for some time.
func (e *engine) refuses() {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	e.refuse = true
}

// lies records whether a server other than the mock engine is at the address.
func (e *engine) lies(on bool) {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	if e.lying {
		e.liedAt = time.Now()
	}
	e.lying = on
	e.seen = e.seen && !(on && e.refuse)
}

// replace puts the mock engine, or the server that serve starts, at the address.
func (e *engine) replace(serve func() (end func(), err error)) {
	e.world.orders.Wait()
	e.vacate()
	var err error
	if serve == nil {
		err = e.run()
	} else {
		e.lies(true)
		e.end, err = serve()
	}
	if err != nil {
		e.world.problem("replace engine %s: %v", e.ip, err)
	}
}

// later calls undo once: after the time d, or when all faults are ended before.
func (e *engine) later(d time.Duration, undo func()) {
	undone := e.undone
	e.world.orders.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-undone:
		}
		undo()
	})
}

// problem records that the router broke a promise.
func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// complaints is the router's log handler. A line of level ERROR is a problem of the run: the router logs an error for a
// panic, a stall, a component that hangs, and load that was never released.
type complaints struct {
	slog.Handler
	world *world
}

// logger returns the router's log. It writes lines from level INFO on to out, or only errors if out is io.Discard.
func logger(w *world, out io.Writer) slog.Handler {
	level := slog.LevelInfo
	if out == io.Discard {
		level = slog.LevelError
	}
	return complaints{slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}), w}
}

func (c complaints) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		var b strings.Builder
		r.Attrs(func(a slog.Attr) bool { fmt.Fprint(&b, " ", a); return true })
		c.world.problem("the router logs an error: %s%s", r.Message, &b)
	}
	return c.Handler.Handle(ctx, r)
}

func (c complaints) WithAttrs(a []slog.Attr) slog.Handler {
	return complaints{c.Handler.WithAttrs(a), c.world}
}

func (c complaints) WithGroup(name string) slog.Handler {
	return complaints{c.Handler.WithGroup(name), c.world}
}

// first returns all problems so far, one in a line; "": there are none.
func (w *world) first() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) == 0 {
		return ""
	}
	return strings.Join(w.problems, "\n")
}

// bubbleOf returns the name that stack traces have for the bubble of the calling goroutine. The name distinguishes this
// run from other runs at the same time.
func bubbleOf() string {
	buf := make([]byte, 256)
	head, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "\n")
	_, mark, _ := strings.Cut(head, "synctest bubble ")
	mark, _, _ = strings.Cut(mark, "]")
	return "synctest bubble " + mark
}

// stacks returns the stacks of a bubble's goroutines.
func stacks(bubble string) []string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	var own []string
	for _, s := range strings.Split(string(buf), "\n\n") {
		head, _, _ := strings.Cut(s, "\n")
		if strings.Contains(head, bubble+"]") || strings.Contains(head, bubble+",") {
			own = append(own, s)
		}
	}
	return own
}

func (w *world) setNext(c *config.Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = c
}
