package testenv_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
)

// ports has the ports that a fault of the network affects, by the step's field How. Port 0 stands for all ports.
var ports = map[string][]uint16{"http": {httpPort}, "events": {pubPort, pubPort + 1}, "all": {0}}

// play plays one step.
func (w *world) play(s step) {
	e := w.engines[s.Worker%len(w.engines)]
	switch s.Do {
	case "ask":
		for i := range s.N {
			w.send(w.question(s.Seed+uint64(i)%3, s.How, 0))
		}
		pass(s.For)
	case "leave":
		w.leaving(s)
	case "sleep":
		pass(s.For)
	case "cut":
		if s.How == "clients" {
			w.network.Host(routerIP).Cut(0)
		}
		for _, p := range ports[s.How] {
			e.host.Cut(p)
		}
	case "half-close":
		for _, p := range ports[s.How] {
			e.host.HalfClose(p)
		}
	case "delay":
		e.host.Delay(s.For)
	case "partition":
		e.host.Lose(true)
		e.later(s.For, func() { e.host.Lose(false) })
	case "restart":
		e.refuses()
		e.order(func(m *mockengine.Server) error {
			defer e.begins()
			return m.Restart(s.For)
		})
		e.dead, e.killed = false, false
	case "die":
		e.refuses()
		e.order((*mockengine.Server).Die)
		e.dead = true
	case "kill engine":
		if e.server != nil {
			e.server.KillEngine()
			e.blamed = true
			e.killed = true
		}
	case "freeze":
		e.fault(s.For, func(f *mockengine.Faults, on bool) {
			if s.How == "stall" {
				f.Stalled = on
			} else {
				f.Frozen = on
			}
		})
	case "become another":
		d := dice{rand.New(rand.NewPCG(s.Seed, 5))}
		e.setup = d.engine(16)
		e.setup.Model = oneOf(d, "mock", "other")
		e.replace(nil)
	case "lie":
		e.blamed = true
		e.replace(func() (func(), error) { return e.lie(s.How) })
	case "lie in events":
		e.replace(func() (func(), error) { return e.lieInEvents(s.How) })
	case "drop events":
		if e.server != nil {
			e.server.DropNextEvents(int(s.Seed)%e.setup.Ranks, s.N)
		}
	case "faults":
		if e.server != nil {
			f := mockengine.Faults{DropEvents: share(s.N, 0, 0.1), LoseReplay: share(s.N, 1, 0.4), Errors: share(s.N, 2, 0.2), Cut: share(s.N, 3, 0.2)}
			e.blamed = e.blamed || f.Errors > 0
			if s.N&16 != 0 {
				f.ReplayLimit = 15
			}
			if s.N&32 != 0 {
				f.FirstToken = 700 * time.Millisecond
			}
			e.set(f)
		}
	case "empty cache":
		if e.server != nil {
			e.server.ResetPrefixCache()
		}
	case "reload":
		w.reload(s)
	case "look":
		for _, path := range []string{"/admin/workers", "/metrics", "/admin/decisions", "/admin/queue", "/health"} {
			if _, err := w.operator("GET", path); err != nil {
				w.problem("GET %s: %v", path, err)
			}
		}
	case "calm":
		w.calm()
	case "trial":
		w.trial(s)
	default:
		panic("bug: no step " + s.Do)
	}
}

func share(n, bit int, share float64) float64 {
	if n>>bit&1 == 0 {
		return 0
	}
	return share
}

// order runs a command of the mock engine in the background, because the command takes time.
func (e *engine) order(f func(*mockengine.Server) error) {
	m := e.server
	if m == nil {
		return
	}
	e.world.orders.Go(func() {
		if err := f(m); err != nil {
			e.world.problem("order engine %s: %v", e.ip, err)
		}
	})
}

func (e *engine) set(f mockengine.Faults) {
	if err := e.server.SetFaults(f); err != nil {
		e.world.problem("set faults of %s: %v", e.ip, err)
	}
}

// fault sets a fault for a limited time.
func (e *engine) fault(d time.Duration, change func(f *mockengine.Faults, on bool)) {
	m := e.server
	if m == nil {
		return
	}
	set := func(on bool) {
		f := m.Faults()
		change(&f, on)
		if err := m.SetFaults(f); err != nil {
			e.world.problem("set faults of %s: %v", e.ip, err)
		}
	}
	set(true)
	e.later(d, func() { set(false) })
}

// leaving sends requests of clients that leave before the end of the answer, or that read the answer slowly.
func (w *world) leaving(s step) {
	for i := range s.N {
		a := w.question(s.Seed+uint64(i), "chat", 0)
		a.how = s.How
		a.key += " not waited for"
		if s.How == "slow" {
			// A slow client reads buffered bytes after the router has ended the request, so it needs more time.
			a.limit += 5 * time.Minute
		} else {
			a.leave = func(_ *ask, cancel context.CancelFunc) { time.AfterFunc(s.For, cancel) }
		}
		if s.How == "half" {
			w.halfClosed(a, s.For)
			continue
		}
		w.send(a)
	}
}

// halfClosed sends a request, closes the sending side of the connection as `nc -N` does, and reads for the time d.
func (w *world) halfClosed(a *ask, d time.Duration) {
	c, err := w.client.Dial(context.Background(), "tcp", routerIP+":8080")
	if err != nil {
		w.problem("the router takes no connection: %v", err)
		return
	}
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n\r\n%s", a.path, len(a.body), a.body)
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(d))
	go func() {
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}()
}

// lie starts a server that gives useless answers at the engine's address. how is the kind of useless answer.
func (e *engine) lie(how string) (end func(), err error) {
	l, err := e.host.Listen("tcp", fmt.Sprintf(":%d", httpPort))
	if err != nil {
		return nil, err
	}
	if how == "garbage" || how == "silent" {
		return e.babble(l, how), nil
	}
	models := fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","owned_by":"vllm"}]}`, e.setup.Model)
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/health":
			return
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(rw, models)
			return
		case !strings.HasPrefix(r.URL.Path, "/v1/"):
			http.NotFound(rw, r)
			return
		}
		lieAbout(rw, r, how)
	})}
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	go func() { defer close(ended); _ = server.Serve(l) }() // ends when the server is closed; the returned function waits
	return func() { stop(); _ = server.Close(); <-ended }, nil
}

func lieAbout(rw http.ResponseWriter, r *http.Request, how string) {
	events := func(text string) {
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, text)
	}
	switch how {
	case "429", "401", "404", "500", "503":
		var status int
		_, _ = fmt.Sscan(how, &status)
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, `{"error":{"message":"no","type":"no","code":`+how+`}}`)
	case "html":
		rw.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(rw, "<html>It works!</html>")
	case "empty":
	case "broken":
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"choices":[{"text":"it is`)
	case "done":
		events("data: [DONE]\n\n")
	case "drip": // a stream that sends slowly and never ends
		for i := 0; r.Context().Err() == nil; i++ {
			events(fmt.Sprintf(`data: {"id":"x","object":"text_completion","model":"mock","choices":[{"index":0,"text":" %d","delta":{"content":" %d"}}]}`+"\n\n", i, i))
			if http.NewResponseController(rw).Flush() != nil {
				return
			}
			t := time.NewTimer(300 * time.Millisecond)
			select {
			case <-t.C:
			case <-r.Context().Done():
			}
			t.Stop()
		}
	default:
		panic("no such answer: " + how)
	}
}

// babble accepts connections and sends bytes that are not HTTP, or nothing.
func (e *engine) babble(l net.Listener, how string) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var open []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			open = append(open, c)
			if how == "garbage" {
				_, _ = c.Write([]byte("220 mail.example.com ESMTP\r\n"))
			}
		}
	}()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	return func() { stop(); <-ended }
}

// lieInEvents starts the mock engine without its events, and publishes events that no real engine sends in their place.
func (e *engine) lieInEvents(how string) (end func(), err error) {
	cfg := e.mock()
	endpoint, replay := cfg.Events, cfg.Replay
	if endpoint == "" {
		endpoint = fmt.Sprintf("tcp://%s:%d", e.ip, pubPort)
	}
	cfg.Events, cfg.Replay, cfg.Ranks = "", "", 1
	server, err := mockengine.New(cfg)
	if err != nil {
		return nil, err
	}
	publisher := mockengine.NewPublisher(mockengine.PublisherConfig{Endpoint: endpoint, Replay: replay, Network: e.host})
	if err := publisher.Listen(); err != nil {
		return nil, err
	}
	wire, err := kvevent.ParseWire("vllm-0.32")
	if err != nil {
		return nil, err
	}
	for _, events := range impossible(how) {
		publisher.Publish(wire.Append(nil, &kvevent.Batch{Time: 1, Events: events}))
	}
	if how == "bytes" {
		publisher.Publish([]byte("\x93\xcb\xff\xff"))
		publisher.Publish(nil)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- server.Run(ctx) }()
	go func() { ended <- publisher.Run(ctx) }()
	return func() { stop(); <-ended; <-ended }, nil
}

// impossible returns batches of events that no real engine sends.
func impossible(how string) (batches [][]kvevent.Event) {
	stored := func(parent uint64, size int, hashes ...uint64) kvevent.Event {
		e := kvevent.Event{Kind: kvevent.Stored, Tier: block.TierGPU, Medium: "GPU", HasAttention: true, Spec: "full_attention",
			Hashes: hashes, BlockSize: size, HasParent: parent != 0, Parent: parent}
		for i := range size * len(hashes) {
			e.Tokens = append(e.Tokens, 1000+uint32(hashes[0])%100+uint32(i))
		}
		return e
	}
	one := func(e ...kvevent.Event) { batches = append(batches, e) }
	switch how {
	case "cycle":
		one(stored(9, 16, 8))
		one(stored(8, 16, 9))
		one(stored(7, 16, 7))
		one(stored(8, 16, 10, 11, 8))
	case "orphans":
		for i := range uint64(300) {
			one(stored(1<<40+i, 16, 1<<20+i*4, 1<<20+i*4+1))
		}
	case "giant":
		e := stored(0, 16, 1)
		e.Tokens, e.Hashes, e.BlockSize = nil, nil, 1<<20
		for i := range uint64(2000) {
			e.Hashes = append(e.Hashes, 1<<30+i)
		}
		one(stored(9, 16, 8))
		one(stored(8, 16, 9))
		one(e)
	case "flood": // stores the same content many times, each time under new hashes
		for i := range uint64(400) {
			e := stored(0, 16, 1)
			e.Tokens = nil
			e.Hashes = nil
			for j := range uint64(8) {
				e.Hashes = append(e.Hashes, 1<<31+i*8+j)
				for k := range uint32(16) {
					e.Tokens = append(e.Tokens, 7000+uint32(j)*16+k)
				}
			}
			one(e)
		}
	}
	return batches
}

// reload changes the configuration and reloads the router.
func (w *world) reload(s step) {
	w.mu.Lock()
	current := w.next
	w.mu.Unlock()
	if current == nil {
		current = w.config()
	}
	next := *current
	switch s.How {
	case "broken":
		w.setNext(nil)
		if _, err := w.operator("POST", "/admin/reload"); err == nil {
			w.problem("a reload of a broken file is accepted")
		}
		w.setNext(current)
		return
	case "workers":
		gone := int(s.Seed) % len(w.engines)
		next.Workers = nil
		for i, e := range w.engines {
			if i != gone || len(w.engines) == 1 || len(current.Workers) < len(w.engines) {
				next.Workers = append(next.Workers, e.target())
			}
		}
	case "policy":
		next.Policy = []string{"marginal", "kv_aware", "least_load", "round_robin"}[s.Seed%4]
	case "queue":
		next.Queue.Order = []string{"off", "fcfs", "fair"}[s.Seed%3]
	}
	w.setNext(&next)
	if _, err := w.operator("POST", "/admin/reload"); err != nil {
		w.problem("POST /admin/reload: %v", err)
	}
}
