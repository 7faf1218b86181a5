package kvfeed

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/zmtp"
	"github.com/warmpath/warmpath/kvevent"
)

// topicPrefix is the beginning of the topics that a listener reads. llm-d and AIBrix use the same form.
const topicPrefix = "kv@"

// maxTopic bounds a topic, in bytes.
const maxTopic = 1024

// maxLinkStreams bounds the streams of one connection. Each rank of an engine has a connection of its own, so only a
// forwarder has several streams. Without the bound, one connection could take all of [StreamConfig.MaxStreams].
const maxLinkStreams = fleet.MaxRanks

// topicOrigin is the engine of a stream, as its topic `kv@<host:port>@<model>` names it.
type topicOrigin struct {
	topic   string // the whole topic, as the engine sent it
	address string // host:port of the engine's HTTP server, or only its host
	model   string
}

// parseTopic reads `kv@<host:port>@<model>`. The model may itself contain "@".
func parseTopic(topic string) (topicOrigin, error) {
	rest, ok := strings.CutPrefix(topic, topicPrefix)
	address, model, ok2 := strings.Cut(rest, "@")
	if !ok || !ok2 || address == "" || model == "" {
		return topicOrigin{}, fmt.Errorf("parse topic %q: want kv@<host:port>@<model>", topic)
	}
	return topicOrigin{topic, address, model}, nil
}

// listener binds the endpoint of [Config.Listen]. Engines connect to it.
type listener struct {
	feed   *Feed
	config StreamConfig

	mu      sync.Mutex // guards the fields below
	socket  *zmtp.Socket
	ended   <-chan struct{}                     // closed when Run's context ends
	links   map[*zmtp.Peer]map[string]*incoming // connection → topic → stream with a holder
	streams int                                 // number of streams with a holder, of all connections
	warned  time.Time                           // when a refused topic was last logged
}

func newListener(feed *Feed) *listener {
	return &listener{feed: feed, config: feed.config.Stream.withDefaults(), links: map[*zmtp.Peer]map[string]*incoming{}}
}

// open opens the endpoint. The caller must then call run, which closes the endpoint when it ends.
func (l *listener) open() error {
	config := l.config.socket()
	config.Bind = true
	config.Topics = []string{topicPrefix}
	config.OnConnect = l.connect
	config.OnMessage = l.receive
	config.OnDisconnect = l.disconnect
	socket, err := zmtp.New(zmtp.SUB, l.feed.config.Listen, config)
	if err == nil {
		err = socket.Listen()
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket = socket
	return nil
}

// endpoint returns the endpoint, with its real port after open.
func (l *listener) endpoint() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket == nil {
		return l.feed.config.Listen
	}
	return l.socket.Endpoint()
}

// run accepts engines until ctx ends. The end of ctx is no error.
func (l *listener) run(ctx context.Context) error {
	l.mu.Lock()
	l.ended = ctx.Done()
	l.mu.Unlock()
	return l.socket.Run(ctx)
}

func (l *listener) connect(p *zmtp.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links[p] = map[string]*incoming{}
}

func (l *listener) receive(p *zmtp.Peer, parts [][]byte) {
	l.mu.Lock()
	link := l.links[p] // only the callbacks of connection p use link, and they run one at a time
	l.mu.Unlock()
	in, known := link[string(parts[0])]
	if !known {
		var err error
		if in, err = l.begin(link, parts[0], p.Name()); err != nil {
			l.refuse(p.Name(), err)
			return
		}
	}
	// Only a stream with a holder is remembered: topics without a holder take no memory.
	switch following := in.receive(parts); {
	case following && !known:
		link[in.topic] = in
	case !following && known:
		delete(link, in.topic)
	}
}

// begin returns a stream for a topic that has none on its connection. An error means that the topic is refused.
func (l *listener) begin(link map[string]*incoming, topic []byte, peer string) (*incoming, error) {
	if len(topic) > maxTopic {
		return nil, fmt.Errorf("the topic has %d bytes, at most %d are read", len(topic), maxTopic)
	}
	from, err := parseTopic(string(topic))
	if err != nil {
		return nil, err
	}
	if len(link) >= maxLinkStreams {
		maps.DeleteFunc(link, func(_ string, in *incoming) bool { return in.follower.closed() })
	}
	if len(link) >= maxLinkStreams {
		return nil, fmt.Errorf("the streams of one connection are at most %d", maxLinkStreams)
	}
	return &incoming{feed: l.feed, topicOrigin: from, peer: peer}, nil
}

// refuse logs that messages of a connection are not read.
func (l *listener) refuse(peer string, err error) {
	l.warn("KV events of an engine that dialled us are refused", "peer", peer, "error", err)
}

// warn writes a warning unless one was written lately.
func (l *listener) warn(msg string, args ...any) {
	now := time.Now()
	l.mu.Lock()
	late := now.Sub(l.warned) >= warnEvery
	if late {
		l.warned = now
	}
	l.mu.Unlock()
	if late {
		l.feed.log.Warn(msg, args...)
	}
}

// reserve counts a stream that gets a holder. It returns false if there are MaxStreams already.
func (l *listener) reserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams >= l.config.MaxStreams {
		return false
	}
	l.streams++
	return true
}

// release undoes reserve.
func (l *listener) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams--
}

func (l *listener) disconnect(p *zmtp.Peer, err error) {
	l.mu.Lock()
	link := l.links[p]
	delete(l.links, p)
	ended := l.ended
	l.mu.Unlock()
	for _, in := range link {
		select {
		case <-ended: // Run ends, and the index keeps its content
		default:
			in.disconnect(err)
		}
	}
}

// incoming is one stream of an engine that connected to the router: one topic of one connection. The topic names the
// worker. The first message that can be decoded shows the rank: each rank has its own connection, and the ranks' topics
// may be equal. Messages that come before the holder is known are dropped. The sequence then begins with a later
// number, so the dropped messages count as lost.
type incoming struct {
	feed *Feed
	topicOrigin
	peer string

	mu       sync.Mutex // guards the fields below: the connection's goroutine receives messages, and the feed may end the stream
	follower *follower  // nil: the holder is not known yet
	sequence *sequence  // the follower's sequence
}

// receive takes a live message. following reports whether the stream has a holder afterwards.
func (in *incoming) receive(parts [][]byte) (following bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.follower != nil && in.follower.closed() {
		in.follower = nil // the fleet changed, and the stream may belong to another holder now
	}
	if in.follower == nil && !in.adopt(parts) {
		return false
	}
	in.sequence.receive(parts)
	return true
}

// adopt finds the holder of this stream, and makes this stream the holder's event stream. in.mu is held.
func (in *incoming) adopt(parts [][]byte) bool {
	feed := in.feed
	snap := feed.fleet.Snapshot()
	w := workerAt(snap, in.address)
	if w == nil {
		return false
	}
	_, payload, err := parseLive(parts)
	if err != nil {
		payload, _ = parseUnnumbered(parts)
	}
	var d kvevent.Decoder
	var batch kvevent.Batch
	if err := d.Decode(payload, &batch); err != nil {
		return false
	}
	h, ok := w.Rank(batch.Rank)
	if single := w.Facts.Ranks == 1; !batch.HasRank || single {
		h, ok = w.Holders[0], single
	}
	if !ok || feed.router.Generation(h) == 0 {
		return false
	}
	// A topic may have any name for the model. But the name of a model that only other workers serve shows that the
	// events are another engine's.
	if pool, known := snap.Pool(in.model); known && pool.Position(h) < 0 {
		feed.listener.refuse(in.peer, fmt.Errorf("topic %q names a model that worker %s does not serve", in.topic, w.URL))
		return false
	}
	if !feed.listener.reserve() {
		feed.listener.refuse(in.peer, fmt.Errorf("the streams of all connections are at most %d", feed.listener.config.MaxStreams))
		return false
	}
	s := feed.newStream(w, h, fleet.EventSource{Endpoint: "bound " + in.peer, Topic: in.topic})
	sequence := newSequence(feed.config.wire(s.ranks).withDefaults(), "", s)
	s.wire = sequence.snapshot
	f := &follower{stream: s, done: make(chan struct{}), bound: true, sequence: sequence}
	feed.supply(f)
	f.stop = func() {
		s.closing.Store(true)
		// Lock waits until the present message is applied: no block may be stored after the holder is forgotten.
		in.mu.Lock()
		defer in.mu.Unlock()
		in.close(f)
	}
	if !feed.take(f) {
		feed.listener.release()
		feed.listener.refuse(in.peer, fmt.Errorf("topic %q: another stream has the events of this engine", in.topic))
		return false
	}
	in.follower, in.sequence = f, sequence
	sequence.connect()
	s.log.Info("following KV events of an engine that dialled us", "topic", in.topic, "peer", in.peer)
	return true
}

// disconnect ends the stream when its connection ends. When the engine connects again, a new stream begins without
// history.
func (in *incoming) disconnect(err error) {
	in.mu.Lock()
	f := in.follower
	in.follower = nil
	if f == nil || f.closed() { // the holder is not known, or the feed has ended the stream
		in.mu.Unlock()
		return
	}
	in.close(f)
	in.mu.Unlock()
	in.feed.end(f, fmt.Sprintf("the engine's connection ended: %v", err))
	in.feed.fleet.SetTrust(f.holder, fleet.TrustApproximate, "no events since "+time.Now().UTC().Format(time.TimeOnly)+in.feed.config.learned(": "))
}

// take makes f the holder's follower, unless the holder already has a working one. A follower that dials counts as
// working while it is connected, and for [Config.Grace] after its connection broke. An engine of an older version does
// not report that it connects to the router, so the feed also dials its default port, in vain.
func (feed *Feed) take(f *follower) bool {
	feed.mu.Lock()
	old := feed.streams[f.holder]
	feed.mu.Unlock()
	if old != nil {
		old.mu.Lock()
		works := old.bound || old.connected || old.everUp && time.Since(old.since) < feed.config.Grace
		old.mu.Unlock()
		if works {
			return false
		}
		feed.end(old, "the engine dialled us")
	}
	return feed.insert(f)
}

// closed reports whether all goroutines of the stream have ended.
func (f *follower) closed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// close ends a follower of the stream. in.mu is held.
func (in *incoming) close(f *follower) {
	if !f.closed() {
		close(f.done)
		in.feed.listener.release()
	}
}

// workerAt returns the worker with that host and port. If the address is a host without a port, workerAt returns the
// worker at that host, provided that the host has only one.
func workerAt(snap *fleet.Snapshot, address string) *fleet.Worker {
	var byHost *fleet.Worker
	several := false
	for _, w := range snap.Workers() {
		if !strings.Contains(w.URL, address) { // most URLs are not parsed: otherwise each message of a stranger could cost the parsing of all URLs
			continue
		}
		u, err := url.Parse(w.URL)
		if err != nil {
			continue
		}
		if u.Host == address {
			return w
		}
		if u.Hostname() == address {
			several = byHost != nil
			byHost = w
		}
	}
	if several {
		return nil
	}
	return byHost
}
