package indexer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvindex"
)

const (
	// pollEvery is the time between two questions about the service's workers. A trust is at most so old, and a service
	// that died is noticed after it at the latest.
	pollEvery = time.Second
	// pollTimeout bounds such a question, so that a service that stands still is noticed soon. A list of more than
	// longListing bytes, and the first one, may take longListingTimeout.
	pollTimeout        = time.Second
	longListing        = 4 << 20
	longListingTimeout = 2 * time.Second
	// maxListing bounds the list of workers in bytes: 20,000 workers of eight ranks with 500 bytes each.
	maxListing = 80 << 20
	// maxAnswer bounds the answer to a question in bytes: 80,000 ranks with 100 bytes each.
	maxAnswer = 8 << 20
)

// errDown means that the index service does not answer at present. Requests then do not wait for it.
var errDown = errors.New("the index service does not answer")

// Client asks an index service in place of an index of the router's own. It is a gateway.RemoteIndex. Its methods may
// be called from any goroutine; Run is called once.
type Client struct {
	config ClientConfig
	router *warmpath.Router
	fleet  *fleet.Fleet
	http   *http.Client
	log    *slog.Logger

	// known is what the last poll said; nil: the service does not answer, or is left alone.
	known atomic.Pointer[view]
	soon  chan struct{} // asks for a poll now; has room for one

	// stream is a faster way to ask; nil: questions go over HTTP. Where and how it connects is host, secure and network.
	stream  atomic.Pointer[stream]
	host    string
	address string // host:port of the URL
	secure  bool
	network network.Network
	warned  atomic.Bool // the log has said that there can be no stream
	late    lateness
	failed  minute // the log has said that a question was answered with an error

	// Only the goroutine of a stream uses the fields below.
	astray   bool      // the log has said that a stream reaches another service
	astrayAt time.Time // when a stream last ended for that

	// Only Run uses the fields below.
	silent     bool              // the last poll failed
	down       time.Time         // since when polls fail
	trouble    string            // why, as the log has said; "": they do not fail
	registered map[string]sent   // by worker: the last registration
	refused    map[string]string // by worker: why the service did not take the last registration
	strange    map[string]bool   // workers that the service does not know and this router does not register, as the log has said
	listed     int               // bytes of the last list of workers; 0: there was none
	unfinished int               // looks in a row after which not all workers were registered
	differing  map[string]bool   // models about whose keys the log has an error
	sizes      map[string]sizing // by model: the changes of the service's block size
	current    *stream           // the last stream; nil if there was none
	streaming  chan struct{}     // has an element while a stream runs, and shortly after
	running    sync.WaitGroup    // the goroutine of the stream
}

// view is the service's workers, as holders of the router's fleet.
type view struct {
	generation uint64                    // of the fleet's snapshot
	holders    map[string][]fleet.Holder // by worker: its ranks from first[worker] on
	first      map[string]int
	listing    *listing
	refused    map[string]bool // models whose keys differ
}

// ask is the memory of one question.
type ask struct {
	body   bytes.Reader
	out    []byte
	answer bytes.Buffer
}

// NewClient returns a client of the service that c names, for the workers of router's fleet. c has passed Validate, and
// c.Key has been read. A nil n means the machine's network. It starts nothing.
func NewClient(c ClientConfig, router *warmpath.Router, n network.Network, log *slog.Logger) (*Client, error) {
	c.URL = strings.TrimRight(c.URL, "/")
	// HTTP/2 carries all questions over one connection.
	peer, err := network.ParsePeer(c.URL, network.PeerConfig{TLS: c.TLS, Key: c.Key, Protocol: network.ProtocolHTTP2})
	if err != nil {
		return nil, fmt.Errorf("index.url: %w", err)
	}
	peers := new(network.Peers)
	peers.Replace([]*network.Peer{peer})
	at, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("index.url: %w", err)
	}
	x := &Client{host: at.Hostname(), address: peer.Address, secure: at.Scheme == "https", network: n, streaming: make(chan struct{}, 1),
		config: c, router: router, fleet: router.Fleet(), log: log, soon: make(chan struct{}, 1), registered: map[string]sent{}, refused: map[string]string{},
		differing: map[string]bool{}, sizes: map[string]sizing{}, strange: map[string]bool{},
		http: &http.Client{Transport: network.NewTransport(n, peers, network.TransportConfig{ConnectTimeout: time.Second, IdleTimeout: time.Minute, IdlePerPeer: 16, Plain: true})}}
	return x, nil
}

// Match asks the service who has the prompt of q: it fulfills gateway.RemoteIndex.
func (c *Client) Match(ctx context.Context, q *warmpath.Lookup) error {
	v := c.known.Load()
	switch {
	case c.late.Resting(time.Now()):
		return errLeftAlone
	case v == nil:
		return errDown
	case v.refused[q.Model]:
		return warmpath.ErrOtherKeys
	}
	if snap := c.fleet.Snapshot(); snap.Generation() != v.generation {
		next := newView(snap, v.listing)
		next.refused = v.refused
		c.known.CompareAndSwap(v, next)
		v = next
	}
	question := question{model: q.Model, keys: q.Keys, blockSize: q.BlockSize, algorithm: q.Algorithm.String(), salt: q.Salt, extra: q.Extra}
	if s := c.stream.Load(); s != nil {
		answer, err := s.ask(ctx, &question)
		if err == nil {
			c.late.answered(time.Now(), c.log, &c.config)
			return c.noteFailed(q.Model, v.matches(answer, q))
		}
		if !errors.Is(err, errStream) {
			c.missed(ctx)
			return err
		}
	}
	a := new(ask) // not used again, because net/http may still read the body when it has returned an error
	a.out = question.appendTo(a.out[:0])
	a.body.Reset(a.out)
	if err := c.call(ctx, http.MethodPost, "/query_by_hash", a, maxAnswer); err != nil {
		c.missed(ctx)
		if errors.As(err, new(*refusal)) {
			return c.noteFailed(q.Model, err)
		}
		return err // the next poll notes what is wrong
	}
	c.late.answered(time.Now(), c.log, &c.config)
	return c.noteFailed(q.Model, v.matches(a.answer.Bytes(), q))
}

// missed notes that a question got no answer. The context of the question says whether its time is over. If most
// answers are late, nobody is trusted until the service has had its rest and then a poll succeeds.
func (c *Client) missed(question context.Context) {
	if errors.Is(question.Err(), context.Canceled) {
		return // the asker is gone, which says nothing about the service
	}
	if question.Err() != nil && c.late.missed(time.Now(), c.log, &c.config) {
		c.leaveAlone(c.fleet.Snapshot())
	}
	c.pollSoon() // the service may be gone
}

// leaveAlone takes the trust in all holders away while the service is left alone.
func (c *Client) leaveAlone(snap *fleet.Snapshot) {
	c.known.Store(nil)
	c.distrust(snap, tooLate)
}

// matches appends the matches of an answer to q.Matches.
func (v *view) matches(answer []byte, q *warmpath.Lookup) error {
	size := 0
	var scores []byte // the service writes block_size before the scores, but any order is valid
	code, text := uint32(0), ""
	err := eachField(answer, func(f *field) error {
		switch f.id {
		case 2:
			size = int(f.small() & 0x7fffffff)
		case 4:
			if scores == nil {
				scores = f.bytes
			}
		case 6:
			code = f.small()
		case 7:
			text = f.text()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the index service's answer: %w", err)
	}
	if code != 0 {
		return declined(code, text)
	}
	if size != q.BlockSize {
		return fmt.Errorf("%w: the service answered in blocks of %d tokens to keys of %d", warmpath.ErrOtherKeys, size, q.BlockSize)
	}
	if scores == nil {
		return nil
	}
	return eachField(answer, func(f *field) error {
		if f.id != 4 {
			return nil
		}
		var s score
		var ranks []fleet.Holder
		first := 0
		err := s.decodeNamed(f.bytes, func(name []byte) { ranks, first = v.holders[string(name)], v.first[string(name)] })
		if i := s.rank - first; err == nil && i >= 0 && i < len(ranks) {
			m := kvindex.Match{Holder: ranks[i], Blocks: uint32(s.matched / size), Full: uint32(s.full / size)}
			for t := range s.tier {
				m.Tier[t] = uint32(s.tier[t] / size)
			}
			q.Matches = append(q.Matches, m)
		}
		return err
	})
}

// call sends a.body and reads the answer into a.answer. An answer with another status than 2xx is an error.
func (c *Client) call(ctx context.Context, method, path string, a *ask, most int64) error {
	req, err := http.NewRequestWithContext(ctx, method, c.config.URL+path, nil)
	if err != nil {
		return err
	}
	if method == http.MethodPost {
		req.ContentLength, req.Body = a.body.Size(), io.NopCloser(&a.body)
		req.Header["Content-Type"] = protobufHeader
	}
	req.Header["Accept"] = protobufHeader
	if c.config.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.config.Key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the index service: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	a.answer.Reset()
	n, err := a.answer.ReadFrom(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the index service's answer: %w", err)
	case n > most:
		return fmt.Errorf("the index service's answer to %s has more than %d bytes", path, most)
	case resp.StatusCode/100 != 2:
		return &refusal{path, resp.StatusCode, c.blank(api.Bounded(string(bytes.TrimSpace(a.answer.Bytes()))))}
	}
	return nil
}

// pollSoon asks Run to look at once whether the service answers.
func (c *Client) pollSoon() {
	select {
	case c.soon <- struct{}{}:
	default: // Run will look anyway
	}
}

// Run follows the service until ctx ends, and then returns nil. It registers the router's workers, and tells the fleet
// how far the service's answers can be believed.
func (c *Client) Run(ctx context.Context) error {
	defer c.http.CloseIdleConnections()
	defer c.running.Wait()
	ctx, stop := context.WithCancel(ctx) // stop ends the stream
	defer stop()
	for {
		asked := time.Now()
		if list := c.poll(ctx); list != nil {
			c.keepStream(ctx, list.grpcPort, list.process)
		}
		timer := time.NewTimer(pollEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.fleet.Snapshot().Superseded():
			timer.Stop()
			select { // many changes of the fleet come together
			case <-time.After(pollEvery / 10):
			case <-ctx.Done():
				return nil
			}
		case <-c.soon:
			timer.Stop()
			pause := pollEvery/10 - time.Since(asked) // a broken service can give reasons to ask it without end
			if c.silent {                             // it was just asked
				pause = pollEvery / 4
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil
			}
		case <-timer.C:
		}
	}
}

// poll asks the service for its workers, and then registers workers. It returns the service's list; nil: it does not
// answer.
func (c *Client) poll(ctx context.Context) *listing {
	snap := c.fleet.Snapshot()
	limit := pollTimeout
	if c.listed == 0 || c.listed > longListing {
		limit = longListingTimeout
	}
	soon, cancel := context.WithTimeout(ctx, limit)
	list, a := new(listing), new(ask)
	err := c.call(soon, http.MethodGet, "/workers", a, maxListing)
	if err == nil {
		err = list.decode(a.answer.Bytes())
	}
	cancel()
	if err != nil {
		if ctx.Err() == nil { // else Run ends: the trust stays as it was
			c.lost(snap, err)
		}
		return nil
	}
	c.listed = max(1, a.answer.Len())
	if c.silent {
		c.log.Info("the index service answers again", "service", c.config.URL, "silent", time.Since(c.down).Round(time.Millisecond))
		c.silent, c.trouble = false, ""
	}
	c.apply(snap, list)
	late, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	fresh, err := c.register(late, snap)
	if fresh {
		c.pollSoon() // the next list has the new workers
	}
	if ctx.Err() == nil {
		c.noteLate(err)
	}
	return list
}

// lost notes that the service cannot be used. Load alone decides from now on.
func (c *Client) lost(snap *fleet.Snapshot, err error) {
	c.known.Store(nil)
	if c.current != nil {
		c.current.stop(errDown)
	}
	now := troubleOf(err, c.address, c.config.Key != "", c.listed > 0)
	if !c.silent {
		c.silent, c.down = true, time.Now()
	}
	if now.what != c.trouble {
		c.trouble = now.what
		c.log.Error(now.what+": requests are decided by load until that changes", "service", c.config.URL, "next", now.next, "error", c.blank(plain(err)))
	}
	clear(c.registered)
	c.distrust(snap, now.what)
}

// distrust takes the trust in all holders away.
func (c *Client) distrust(snap *fleet.Snapshot, why string) {
	for _, w := range snap.Workers() {
		for _, h := range w.Holders {
			c.tell(snap, h, fleet.TrustNone, why)
		}
	}
}

// tell sets the trust of a holder, if it is another one.
func (c *Client) tell(snap *fleet.Snapshot, h fleet.Holder, t fleet.Trust, why string) {
	if now, as := snap.Trust(h); now != t || as != why {
		c.fleet.SetTrust(h, t, why)
	}
}

// apply tells the fleet what the service knows of its workers. While the service is left alone, nobody is trusted.
func (c *Client) apply(snap *fleet.Snapshot, list *listing) {
	v := newView(snap, list)
	byName := make(map[string]*listedWorker, len(list.workers))
	for i := range list.workers {
		if w := &list.workers[i]; w.group == defaultGroup { // questions of routers are about the default group
			byName[w.worker] = w
		}
	}
	v.refused = c.compare(list)
	maps.DeleteFunc(c.strange, func(url string, _ bool) bool { return v.holders[url] == nil })
	rests := c.late.Resting(time.Now())
	for _, w := range snap.Workers() {
		known := byName[w.URL]
		c.noteStrange(w, known != nil)
		for _, h := range w.Holders {
			at := known.rank(snap.Rank(h))
			if last, has := c.registered[w.URL]; at == nil && has && c.refused[w.URL] == "" {
				c.registered[w.URL] = sent{tried: last.tried} // it was registered at a service that has ended
			}
			switch {
			case rests:
				c.tell(snap, h, fleet.TrustNone, tooLate)
			case v.refused[w.Facts.BaseModel()]:
				c.tell(snap, h, fleet.TrustNone, "the index service makes other keys for the model: see the log")
			case at == nil:
				c.tell(snap, h, fleet.TrustApproximate, "the index service does not know the rank: "+fleet.LearnedFromRequests)
			default:
				c.tell(snap, h, at.trust, relearned(at.trust, c.blank(at.why)))
			}
			if at != nil && c.router.Ahead(h) != at.ahead {
				c.router.SetAhead(h, at.ahead)
			}
		}
		if known != nil && known.engineBlockSize > 0 && known.engineBlockSize != w.Facts.BlockSize {
			c.fleet.SetBlockSize(w.ID, known.engineBlockSize) // the service sees it in the events
		}
	}
	if !rests {
		c.known.Store(v)
	}
	if c.late.Resting(time.Now()) { // perhaps only since a moment ago
		c.leaveAlone(snap)
	}
}

// rank returns a rank of a worker; nil if the worker, which may be nil, does not have it.
func (w *listedWorker) rank(rank int) *listedRank {
	if w == nil {
		return nil
	}
	for i := range w.ranks {
		if w.ranks[i].rank == rank {
			return &w.ranks[i]
		}
	}
	return nil
}

// noteStrange logs once that the service does not know a worker which this router does not register.
func (c *Client) noteStrange(w *fleet.Worker, known bool) {
	switch {
	case known:
		delete(c.strange, w.URL)
	case !c.config.Register && w.Facts.BaseModel() != "" && !c.strange[w.URL]:
		c.strange[w.URL] = true
		c.log.Warn("the index service does not know a worker, so the worker is learned from requests: list it at the service by the same URL, or set index.register: true",
			"service", c.config.URL, "worker", w.URL)
	}
}

// newView returns the service's workers as holders of the router's fleet.
func newView(snap *fleet.Snapshot, list *listing) *view {
	v := &view{generation: snap.Generation(), holders: make(map[string][]fleet.Holder, len(snap.Workers())), first: map[string]int{}, listing: list}
	for _, w := range snap.Workers() {
		v.holders[w.URL] = w.Holders
		if w.Facts.FirstRank > 0 {
			v.first[w.URL] = w.Facts.FirstRank
		}
	}
	return v
}

// blank returns a text of the service without the key, which the service may repeat.
func (c *Client) blank(text string) string { return api.WithoutSecrets(text, c.config.Key) }

// refusal is an answer of the service that is no success.
type refusal struct {
	path   string
	status int
	text   string
}

// temporary reports whether the same request may succeed later. Other answers are about the request itself.
func (r *refusal) temporary() bool {
	return r.status >= 500 || r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout
}

// Error says what the service answered.
func (r *refusal) Error() string {
	return fmt.Sprintf("the index service answers %s with %d: %s", r.path, r.status, r.text)
}
