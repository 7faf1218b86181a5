package mockengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/network"
)

// ErrSideChannel says that the address of the side channel could not be opened.
var ErrSideChannel = errors.New("open side channel")

// exchange is a life's side channel: the address at which other engines read this engine's blocks, the leases of these
// blocks, and the client that reads the blocks of others.
type exchange struct {
	life      *life
	config    Transfer
	name      string // engine id without the rank; each life has another one, as real engines have after a restart
	host      string
	port      int
	listeners []net.Listener // of the ranks, at consecutive ports
	http      *http.Server
	peers     *http.Client
	woken     chan struct{} // signals that a lease was added, or that its end has changed
	transfer  transferStats

	mu     sync.Mutex // guards the fields below, and the fields of transfer
	leases map[string]*lease
	rooms  map[string]*room
	store  map[engine.Hash]bool // the blocks of a shared store
	// rankOfRoom has the rank of each of SGLang's rooms at this prefill worker.
	rankOfRoom map[int64]int
	role       Role
	linkFree   time.Time // end of the last transfer over the link
	notices    []notice  // releases that leave with the engine's next step
}

// forever is the length of a lease that does not end by itself.
const forever = 365 * 24 * time.Hour

// lease keeps the blocks of a request that has ended.
type lease struct {
	rank    *rank
	request *engine.Request
	ends    time.Time
	readers int // reads under way; they keep the lease alive, as the readers' heartbeats do
}

// transferStats counts transfers, for the metrics.
type transferStats struct {
	reads         int     // reads from other engines that were complete
	seconds       float64 // their time
	bytes         float64
	failed        int // reads that failed
	expired       int // leases that ended before a reader came
	lateNotices   int // reads of requests without a lease
	failedNotices int
	waiting       int // prefills whose reader has not come yet (SGLang)
	stale         int // reads that found other blocks than they expected; real engines do not notice this
}

// openExchange opens the side channel. In a life after the first, addr is the address of the first; otherwise it is "".
func (l *life) openExchange(addr string) error {
	c := l.cfg.Transfer
	if addr == "" {
		addr = c.Listen
	}
	listeners, err := l.listenSide(addr)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSideChannel, err)
	}
	listener := listeners[0]
	host, digits, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		panic("bug: address of a listener: " + err.Error())
	}
	port, _ := strconv.Atoi(digits)
	x := &exchange{life: l, config: c, host: host, port: port, listeners: listeners, woken: make(chan struct{}, 1),
		leases: map[string]*lease{}, rooms: map[string]*room{}, store: map[engine.Hash]bool{},
		rankOfRoom: map[int64]int{}, role: c.Role}
	x.name = engineName(xxh3.HashString(listener.Addr().String()) + l.salt)
	x.peers = &http.Client{Transport: &http.Transport{DialContext: network.Of(l.cfg.Network).Dial}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mock/kv/read", x.serveRead)
	mux.HandleFunc("POST /mock/kv/renew", x.serveRenew)
	mux.HandleFunc("POST /mock/kv/release", x.serveRelease)
	switch c.Connector {
	case Rooms:
		x.bootstrapRoutes(mux)
	case Mooncake:
		x.mooncakeRoutes(mux)
	case Shared:
		x.storeRoutes(mux)
	}
	x.http = &http.Server{
		Handler:           x.guard(mux),
		BaseContext:       func(net.Listener) context.Context { return l.ctx },
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // faults break connections on purpose
	}
	l.exchange = x
	return nil
}

// listenSide opens the addresses of the side channel: vLLM has one for each rank, at consecutive ports, SGLang has one.
func (l *life) listenSide(addr string) (listeners []net.Listener, err error) {
	ranks := l.cfg.Ranks
	if l.cfg.Kind == SGLang {
		ranks = 1
	}
	host, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if digits == "0" && ranks > 1 {
		_, listeners, err = row(network.Of(l.cfg.Network), host, ranks)
		return listeners, err
	}
	base, err := strconv.Atoi(digits)
	if err != nil {
		return nil, err
	}
	for r := range ranks {
		listener, err := l.listen(net.JoinHostPort(host, strconv.Itoa(base+r)))
		if err != nil {
			for _, open := range listeners {
				open.Close()
			}
			return nil, err
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

// serve serves the side channel and ends leases until the life ends.
func (x *exchange) serve() {
	l := x.life
	l.work.Add(1 + len(x.listeners))
	for _, listener := range x.listeners {
		go func() { // ends when stop calls http.Server.Close
			defer l.work.Done()
			if err := x.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				l.fail(fmt.Errorf("serve side channel: %w", err))
			}
		}()
	}
	go func() { // ends when the life's context ends
		defer l.work.Done()
		x.expire()
	}()
}

// engineName returns a name in the form of a UUID.
func engineName(seed uint64) string {
	random := splitmix(seed)
	d := hex64(random.next()) + hex64(random.next())
	return d[:8] + "-" + d[8:12] + "-" + d[12:16] + "-" + d[16:20] + "-" + d[20:]
}

// guard lets no request in while the engine is frozen or its EngineCore is dead, because in real engines the EngineCore
// serves the side channel.
func (x *exchange) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !x.life.gate.enter() {
			panic(http.ErrAbortHandler)
		}
		defer x.life.gate.leave()
		if !x.life.server.faults.hold(r.Context(), frozen) || x.life.isDead() {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func (x *exchange) close() {
	x.http.Close()
	for _, listener := range x.listeners {
		listener.Close()
	}
	x.peers.CloseIdleConnections()
}

// engineID returns the engine id of a rank. With several ranks vLLM appends the rank to the id.
func (x *exchange) engineID(rank int) string {
	if x.life.cfg.Ranks == 1 {
		return x.name
	}
	return fmt.Sprintf("%s_dp%d", x.name, rank)
}

// rankOf returns the rank with the engine id, or nil.
func (x *exchange) rankOf(id string) *rank {
	for _, r := range x.life.ranks {
		if x.engineID(r.id) == id {
			return r
		}
	}
	return nil
}

// pin begins a lease of the blocks of a request that has ended.
func (x *exchange) pin(id string, r *rank, q *engine.Request, length time.Duration) (ends time.Time) {
	if f, _ := x.life.server.faults.get(); f.Lease > 0 && length != forever {
		length = f.Lease
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	ends = time.Now().Add(length)
	x.leases[id] = &lease{rank: r, request: q, ends: ends}
	if rm := x.rooms[id]; rm != nil {
		closeOnce(rm.leased)
	}
	x.wake()
	return ends
}

func (x *exchange) wake() {
	select {
	case x.woken <- struct{}{}:
	default:
	}
}

// release ends a lease. It returns false if there is no such lease.
func (x *exchange) release(id string) bool {
	x.mu.Lock()
	held := x.leases[id]
	delete(x.leases, id)
	x.mu.Unlock()
	if held == nil {
		return false
	}
	held.rank.release(held.request)
	return true
}

// renew extends the lease of a request that waits at its reader, by two thirds of the lease's length (base_worker.py,
// vLLM 0.32).
func (x *exchange) renew(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if held := x.leases[id]; held != nil {
		held.ends = later(held.ends, time.Now().Add(x.config.Lease*2/3))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// expire ends leases whose time is over, until the life ends.
func (x *exchange) expire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-x.woken:
		case <-x.life.ctx.Done():
			return
		}
		now, next := time.Now(), time.Hour
		var over []string
		x.mu.Lock()
		for id, held := range x.leases {
			left := held.ends.Sub(now)
			switch {
			case held.readers > 0:
			case left <= 0:
				over = append(over, id)
			default:
				next = min(next, left)
			}
		}
		x.transfer.expired += len(over)
		x.mu.Unlock()
		for _, id := range over {
			x.release(id)
		}
		timer.Reset(next)
	}
}

// stats returns the counters.
func (x *exchange) stats() (s transferStats, leases int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.transfer, len(x.leases)
}

func (x *exchange) count(change func(*transferStats)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.transfer)
}

// address returns the base URL of another engine's side channel.
func address(host string, port int) string {
	return "http://" + net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
}
