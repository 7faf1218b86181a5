package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/kvfeed"
)

// Path is the path of the admin listener at which a router gives its index.
const Path = "/admin/index/snapshot"

// contentType is the type of a snapshot over HTTP.
const contentType = "application/vnd.warmpath.index"

// peerHeader names the process that asks for a snapshot.
const peerHeader = "X-Warmpath-Peer"

const (
	// mostGiven bounds the snapshots that are given at one time. Each takes the memory of one holder's blocks, and a
	// part of one core.
	mostGiven = 2
	// mostAsked bounds the holders that one request names.
	mostAsked = 256
	// sendTimeout is how long the other side may take to receive one section: 2 MiB. The giver keeps one holder
	// meanwhile.
	sendTimeout = 10 * time.Second
	// restFrom is the least work after which a giver rests. Shorter rests would be much longer than they should be: a
	// machine wakes a process up only some milliseconds later, and there may be 10,000 small holders.
	restFrom = 10 * time.Millisecond
)

// Giver answers requests for snapshots of a feed's holders. It is an http.Handler, safe for concurrent use.
type Giver struct {
	feed    *kvfeed.Feed
	name    string
	version string
	log     *slog.Logger
	rest    func(context.Context, time.Duration) // called with the time that the work since the last rest took
	least   time.Duration                        // the work after which the giver rests
	counts  giverCounts

	mu     sync.Mutex      // guards giving
	giving map[string]bool // the peers that are being given a snapshot
}

type giverCounts struct{ given, broken, refused atomic.Uint64 }

// NewGiver returns a Giver. name is that of the Keeper of the same process, and version the router's version.
func NewGiver(feed *kvfeed.Feed, name, version string, log *slog.Logger) *Giver {
	return &Giver{feed: feed, name: name, version: version, log: log, rest: rest, least: restFrom, giving: map[string]bool{}}
}

// statusItself is the answer of a router that asks itself.
const statusItself = http.StatusLoopDetected

// ServeHTTP writes a snapshot of all holders, or of the holders that the parameters "holder" name, as RANK@URL. It
// gives one snapshot to a peer at a time, and two at most: further requests get 503. It gives none to its own process.
func (g *Giver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if name := r.Header.Get(peerHeader); name != "" && name == g.name {
		problem(w, statusItself, errors.New("this is the router that asks"))
		return
	}
	places, err := placesOf(r.URL.Query()["holder"])
	if err != nil {
		problem(w, http.StatusBadRequest, err)
		return
	}
	level := slog.LevelDebug // each router asks for holders that it lacks, up to once a second
	if places == nil {
		level = slog.LevelInfo
		if places = g.feed.Places(); r.URL.Query().Get(replayOnly) != "" {
			places = g.feed.Replayable()
		}
	}
	peer := peerOf(r)
	if !g.begin(peer) {
		g.counts.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusServiceUnavailable, fmt.Errorf("%d snapshots at most are given at a time, one to each router: ask again", mostGiven))
		return
	}
	defer g.end(peer)
	w.Header().Set("Content-Type", contentType)
	began, worked := time.Now(), time.Duration(0)
	pause := func(ctx context.Context, took time.Duration) {
		if worked += took; worked >= g.least {
			g.rest(ctx, worked)
			worked = 0
		}
	}
	given, blocks, err := writeSnapshot(r.Context(), &paced{w, http.NewResponseController(w)}, g.feed, places, g.version, pause)
	if err != nil {
		g.counts.broken.Add(1)
		g.log.Warn("a snapshot of the index was not given as a whole", "peer", r.RemoteAddr, "error", err)
		return
	}
	g.counts.given.Add(1)
	g.log.Log(r.Context(), level, "gave a snapshot of the index", "peer", r.RemoteAddr, "holders", given, "of", len(places), "blocks", blocks,
		"ms", time.Since(began).Milliseconds())
}

// problem answers with an error, in the shape of all errors of the admin listener.
func problem(w http.ResponseWriter, status int, err error) {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Message = err.Error()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the peer is gone
}

// peerOf returns a name of the process that asks. A router names itself, because several routers may share an address.
func peerOf(r *http.Request) string {
	if name := r.Header.Get(peerHeader); name != "" && len(name) <= 64 {
		return name
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

func (g *Giver) begin(peer string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.giving) >= mostGiven || g.giving[peer] {
		return false
	}
	g.giving[peer] = true
	return true
}

func (g *Giver) end(peer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.giving, peer)
}

// paced bounds the time of each write, so that a peer that reads slowly does not keep the giver's memory.
type paced struct {
	w          http.ResponseWriter
	controller *http.ResponseController
}

func (p *paced) Write(b []byte) (int, error) {
	// If the listener cannot set deadlines, the peer's own limit ends the exchange.
	_ = p.controller.SetWriteDeadline(time.Now().Add(sendTimeout))
	return p.w.Write(b)
}

// Flush sends what was written, so that the peer can use one holder while the next one is being read.
func (p *paced) Flush() { _ = p.controller.Flush() }

// placesOf parses the parameters "holder". Without parameters the result is nil.
func placesOf(holders []string) (places []kvfeed.Place, err error) {
	if len(holders) > mostAsked {
		return nil, fmt.Errorf("holder: %d are asked for, at most %d", len(holders), mostAsked)
	}
	for _, h := range holders {
		number, url, ok := strings.Cut(h, "@")
		rank, err := strconv.Atoi(number)
		if err != nil || !ok || rank < 0 || url == "" {
			return nil, fmt.Errorf("holder: %.200q is not RANK@URL", h)
		}
		places = append(places, kvfeed.Place{Worker: url, Rank: rank})
	}
	return places, nil
}

// replayOnly is the parameter that leaves out holders whose engines have no replay endpoint.
const replayOnly = "replay_only"

// holderParameter is the inverse of placesOf.
func holderParameter(p kvfeed.Place) string { return strconv.Itoa(p.Rank) + "@" + p.Worker }

// rest waits for a time, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// aliveEvery is the time between two sections "alive": a peer that waits sees that the giver is at work.
const aliveEvery = 500 * time.Millisecond

// writeSnapshot writes a snapshot of the feed's holders at these places. After each checkpoint it calls pause, if pause
// is not nil, with the time that the checkpoint took: a giver works half of the time, and leaves the cores to requests.
// Meanwhile it writes sections "alive", since some million blocks of one holder take seconds. It takes the memory of
// one holder at a time. It returns the number of written holders and blocks.
func writeSnapshot(ctx context.Context, to io.Writer, feed *kvfeed.Feed, places []kvfeed.Place, version string,
	pause func(context.Context, time.Duration)) (holders, blocks int, err error) {
	w, err := newWriter(to, header{Router: version, Created: time.Now().Unix()})
	if err != nil {
		return 0, 0, err
	}
	flush := func() {}
	if f, ok := to.(http.Flusher); ok {
		flush = f.Flush
	}
	flush()
	for _, p := range slices.Compact(places) {
		if ctx.Err() != nil {
			return holders, blocks, context.Cause(ctx)
		}
		var c *kvfeed.Checkpoint
		if pause == nil {
			c, err = feed.Checkpoint(p)
		} else {
			whileAlive(w, flush, func() {
				began := time.Now()
				if c, err = feed.Checkpoint(p); err == nil {
					pause(ctx, time.Since(began))
				}
			})
		}
		none := err != nil
		if !none {
			err = w.holder(c)
			none = errors.Is(err, errInvalid)
		}
		if none {
			err = w.skip(skippedHolder{Worker: p.Worker, Rank: p.Rank, Why: err.Error()})
		} else if err == nil {
			holders, blocks = holders+1, blocks+c.Blocks()
		}
		if err != nil {
			return holders, blocks, err
		}
		flush()
	}
	return holders, blocks, w.close()
}

// whileAlive calls work, and writes sections "alive" until work has returned. work has this goroutine, so that
// net/http recovers its panic: another goroutine would end the router.
func whileAlive(w *writer, flush, work func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends with work; whileAlive waits for it
		defer close(stopped)
		ticker := time.NewTicker(aliveEvery)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				w.alive()
				flush()
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	work() // does not write
}
