package kvfeed

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/warmpath/warmpath/internal/zmtp"
)

// topicPrefix is the beginning of the topics that a Listener reads; llm-d and AIBrix use the same form.
const topicPrefix = "kv@"

// maxTopic bounds a topic, in bytes.
const maxTopic = 1024

// Origin is the engine of a stream, as its topic `kv@<host:port>@<model>` names it.
type Origin struct {
	Topic   string // the topic as sent
	Address string // host:port of the engine's HTTP server, or its name
	Model   string
	Peer    string // the remote address of the connection
}

// ParseTopic reads `kv@<host:port>@<model>`. The model may itself contain "@".
func ParseTopic(topic string) (Origin, error) {
	rest, ok := strings.CutPrefix(topic, topicPrefix)
	address, model, ok2 := strings.Cut(rest, "@")
	if !ok || !ok2 || address == "" || model == "" {
		return Origin{}, fmt.Errorf("parse topic %q: want kv@<host:port>@<model>", topic)
	}
	return Origin{Topic: topic, Address: address, Model: model}, nil
}

// Accept decides about a new stream. A stream is one topic of one connection. So every data-parallel rank has its own,
// although their topics are equal; the rank is in the payload. A nil Handler refuses the stream. replay is the engine's
// replay endpoint, empty for none. A disconnect ends the stream; a reconnect begins a new one. Accept may be called
// concurrently, and so may the handlers of different streams.
type Accept func(o Origin) (h Handler, replay string)

// Listener binds one SUB endpoint that many engines connect to. Listen, Endpoint, Run and Stats may be called
// concurrently.
type Listener struct {
	cfg      StreamConfig
	endpoint string
	accept   Accept

	mu      sync.Mutex // guards the fields below
	socket  *zmtp.Socket
	ctx     context.Context // Run's
	links   map[*zmtp.Peer]*link
	streams int
	refused uint64
}

// link is one engine's connection.
type link struct {
	streams map[string]*sequence // by topic; nil: refused. Only the peer's callbacks use it.
	cancel  context.CancelFunc
	ctx     context.Context
	work    sync.WaitGroup // recoveries
}

// ListenerStats is a snapshot of a Listener.
type ListenerStats struct {
	Peers   int
	Streams int    // followed now
	Refused uint64 // messages of topics that are invalid, were not accepted, or exceed MaxStreams
}

// NewListener returns a Listener on endpoint, "tcp://*:5557" for example. It starts nothing.
func NewListener(endpoint string, cfg StreamConfig, accept Accept) *Listener {
	return &Listener{cfg: cfg.withDefaults(), endpoint: endpoint, accept: accept, links: make(map[*zmtp.Peer]*link)}
}

// Listen opens the endpoint, so that Endpoint is known before Run. Run must follow, since it closes the endpoint; it
// calls Listen itself if that was not called.
func (l *Listener) Listen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil {
		return nil
	}
	cfg := l.cfg.socket()
	cfg.Bind = true
	cfg.Topics = []string{topicPrefix}
	cfg.OnConnect = l.connect
	cfg.OnMessage = l.receive
	cfg.OnDisconnect = l.disconnect
	socket, err := zmtp.New(zmtp.SUB, l.endpoint, cfg)
	if err == nil {
		err = socket.Listen()
	}
	if err != nil {
		return fmt.Errorf("listen for events: %w", err)
	}
	l.socket = socket
	return nil
}

// Endpoint returns the endpoint, after Listen with its real port in place of 0 or *.
func (l *Listener) Endpoint() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket == nil {
		return l.endpoint
	}
	return l.socket.Endpoint()
}

// Run accepts engines until ctx ends; that is no error. An endpoint that cannot be bound is an error. It may be called
// once.
func (l *Listener) Run(ctx context.Context) error {
	if err := l.Listen(); err != nil {
		return err
	}
	l.mu.Lock()
	l.ctx = ctx
	l.mu.Unlock()
	return l.socket.Run(ctx)
}

// Stats returns the sequenceCounters.
func (l *Listener) Stats() ListenerStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ListenerStats{len(l.links), l.streams, l.refused}
}

func (l *Listener) connect(p *zmtp.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &link{streams: make(map[string]*sequence)}
	k.ctx, k.cancel = context.WithCancel(l.ctx)
	l.links[p] = k
}

func (l *Listener) receive(p *zmtp.Peer, parts [][]byte) {
	l.mu.Lock()
	k := l.links[p]
	l.mu.Unlock()
	s, known := k.streams[string(parts[0])]
	if !known {
		s = l.open(k, p, string(parts[0]))
	}
	if s == nil {
		l.mu.Lock()
		l.refused++
		l.mu.Unlock()
		return
	}
	s.receive(parts)
}

// open begins the stream of a topic that is new on its connection.
func (l *Listener) open(k *link, p *zmtp.Peer, topic string) *sequence {
	o, err := ParseTopic(topic)
	l.mu.Lock()
	full := err != nil || len(topic) > maxTopic || l.streams >= l.cfg.MaxStreams || len(k.streams) >= l.cfg.MaxStreams
	if !full {
		l.streams++
	}
	l.mu.Unlock()
	if full {
		return nil
	}
	o.Peer = p.Name()
	h, replay := l.accept(o)
	if h == nil {
		k.streams[topic] = nil
		l.forget(1)
		return nil
	}
	s := newSequence(l.cfg, replay, h)
	k.streams[topic] = s
	s.connect()
	if replay != "" {
		k.work.Go(func() { s.recover(k.ctx) })
	}
	return s
}

func (l *Listener) forget(streams int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams -= streams
}

func (l *Listener) disconnect(p *zmtp.Peer, err error) {
	l.mu.Lock()
	k := l.links[p]
	delete(l.links, p)
	stopping := l.ctx.Err() != nil
	l.mu.Unlock()
	k.cancel()
	k.work.Wait()
	open := 0
	for _, s := range k.streams {
		if s == nil {
			continue
		}
		open++
		if !stopping {
			s.replay = "" // the recovery has ended, so that later messages are lost
			s.disconnect(err)
		}
	}
	l.forget(open)
}
