package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Socket is one endpoint, dialled or bound, and the connections to its peers. Its methods may be called concurrently.
type Socket struct {
	typ      Type
	cfg      Config
	endpoint endpoint
	dial     func(ctx context.Context) (net.Conn, error)

	received atomic.Uint64
	sent     atomic.Uint64
	dropped  atomic.Uint64

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	running  bool
	conns    int // number of connections, including those in the handshake
	// peers are the peers whose handshake is done. A change makes a new slice, so a copy of this field may be read without
	// the lock.
	peers []*Peer
	next  uint32 // DEALER: counter that chooses the next peer; ROUTER: counter for made-up identities
}

// Stats are the counters of a socket.
type Stats struct {
	Peers    int
	Received uint64 // number of messages received
	Sent     uint64 // number of messages that Publish, Send and SendTo queued; a message to several peers counts once for each peer
	Dropped  uint64 // number of messages that Publish did not queue because a peer's queue was full; counted once for each such peer
}

// New returns a socket for an endpoint tcp://host:port or ipc://path. It opens no connection and no listener.
func New(t Type, text string, cfg Config) (*Socket, error) {
	e, err := parseEndpoint(text, cfg.Bind)
	if err != nil {
		return nil, err
	}
	if err := cfg.validate(t); err != nil {
		return nil, fmt.Errorf("configure %s: %w", text, err)
	}
	s := &Socket{typ: t, cfg: cfg.withDefaults(t), endpoint: e}
	s.dial = func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.HandshakeTimeout)
		defer cancel()
		return s.cfg.Dial(ctx, e.network, e.address)
	}
	return s, nil
}

// Stats returns the counters.
func (s *Socket) Stats() Stats {
	return Stats{len(s.snapshot()), s.received.Load(), s.sent.Load(), s.dropped.Load()}
}

// Endpoint returns the endpoint. After Listen, the endpoint of a bound socket has the real port.
func (s *Socket) Endpoint() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return s.endpoint.opened(s.listener)
	}
	return s.endpoint.text
}

// Listen opens the endpoint of a bound socket. A caller that calls Listen before Run learns early that the address
// cannot be used, and Endpoint then has the real port. After Listen the caller must call Run or Close. If the caller
// does not call Listen, Run does. Run closes the endpoint when Run ends.
func (s *Socket) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cfg.Bind || s.listener != nil {
		return nil
	}
	l, err := s.endpoint.listen(s.cfg.Listen)
	s.listener = l
	return err
}

// Close closes the endpoint that Listen opened. Only a caller that does not call Run needs Close.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil || s.running {
		return nil
	}
	l := s.listener
	s.listener = nil
	return l.Close()
}

// Run serves the socket until ctx ends, and then returns nil. A dialling socket dials again after every failure. If an
// endpoint cannot be bound, or if Run was called before, Run returns an error. When Run returns, all connections and
// goroutines of the socket have ended, and no callback runs.
func (s *Socket) Run(ctx context.Context) error {
	s.mu.Lock()
	running := s.running
	s.running = true
	s.mu.Unlock()
	if running {
		return fmt.Errorf("run %s: socket was run before", s.endpoint.text)
	}
	if s.cfg.Bind {
		return s.accept(ctx)
	}
	s.connect(ctx)
	return nil
}

// connect dials until ctx ends, and serves each connection.
func (s *Socket) connect(ctx context.Context) {
	for tries := 0; ctx.Err() == nil; tries++ {
		start := time.Now()
		conn, err := s.dial(ctx)
		if err == nil {
			_ = s.serve(ctx, conn) // OnDisconnect or OnFailure has already reported the error
		} else {
			s.failed(ctx, fmt.Errorf("connect to %s: %w", s.endpoint.text, err))
		}
		// A connection that breaks soon counts as a failed attempt, so the pauses go on growing.
		if time.Since(start) > s.cfg.BackoffMax+s.cfg.HandshakeTimeout {
			tries = 0
		}
		pause(ctx, backoff(s.cfg.BackoffMin, s.cfg.BackoffMax, tries))
	}
}

// backoff returns the pause after the given number of attempts. The pause begins with least, doubles with each attempt
// up to most, and is then changed by up to ±50 % at random. So sockets that lost the same peer do not all come back at
// the same time.
func backoff(least, most time.Duration, tries int) time.Duration {
	d := most
	if tries < 32 && least < most>>tries {
		d = least << tries
	}
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// accept serves every peer that connects.
func (s *Socket) accept(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	l := s.listener
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for tries := 0; ; {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept on %s: %w", s.endpoint.text, err)
			}
			// The process probably has no free file descriptor. The pause gives it time to close others.
			s.failed(ctx, fmt.Errorf("accept on %s: %w", s.endpoint.text, err))
			pause(ctx, backoff(s.cfg.BackoffMin, s.cfg.BackoffMax, tries))
			tries++
			continue
		}
		tries = 0
		if !s.admit() {
			conn.Close()
			s.failed(ctx, fmt.Errorf("accept on %s: more than %d peers", s.endpoint.text, s.cfg.MaxPeers))
			continue
		}
		wg.Go(func() {
			defer s.release()
			_ = s.serve(ctx, conn) // the callbacks report the error
		})
	}
}

func (s *Socket) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns >= s.cfg.MaxPeers {
		return false
	}
	s.conns++
	return true
}

func (s *Socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns--
}

// serve runs one connection from its handshake to its end.
func (s *Socket) serve(ctx context.Context, conn net.Conn) error {
	p := newPeer(s, conn)
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		p.close(context.Cause(ctx))
		close(closed)
	})
	defer func() {
		if !stop() {
			<-closed
		}
	}()
	defer conn.Close()
	if err := p.handshake(); err != nil {
		err = fmt.Errorf("shake hands with %s at %s: %w", p.name, s.endpoint.text, err)
		s.failed(ctx, err)
		return err
	}
	s.add(p)
	var writer sync.WaitGroup
	writer.Go(p.send)
	if s.cfg.OnConnect != nil {
		s.cfg.OnConnect(p)
	}
	p.close(p.receive())
	writer.Wait()
	s.remove(p)
	err := fmt.Errorf("connection to %s at %s ended: %w", p.name, s.endpoint.text, p.err)
	if s.cfg.OnDisconnect != nil {
		s.cfg.OnDisconnect(p, err)
	}
	return err
}

// failed calls OnFailure, unless the end of ctx caused the failure.
func (s *Socket) failed(ctx context.Context, err error) {
	if s.cfg.OnFailure != nil && ctx.Err() == nil {
		s.cfg.OnFailure(err)
	}
}

// add adds p to the peers. If a ROUTER already has a peer with the identity of p, that older peer is disconnected: it
// is probably a connection whose end was not noticed.
func (s *Socket) add(p *Peer) {
	s.mu.Lock()
	var before *Peer
	if s.typ == ROUTER {
		if p.identity == "" {
			s.next++
			p.identity = "\x00" + string(binary.BigEndian.AppendUint32(nil, s.next))
		}
		before = find(s.peers, p.identity)
	} else {
		p.identity = ""
	}
	s.peers = append(slices.Clone(s.peers), p)
	s.mu.Unlock()
	if before != nil {
		before.close(errors.New("its identity was taken over by a new connection"))
	}
}

func (s *Socket) remove(p *Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = slices.DeleteFunc(slices.Clone(s.peers), func(q *Peer) bool { return q == p })
}

func (s *Socket) snapshot() []*Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers
}

// DropPeers closes the connections of all peers, as a network fault does. After that a socket that dials connects
// again.
func (s *Socket) DropPeers() {
	for _, p := range s.snapshot() {
		p.Drop(errors.New("dropped on purpose"))
	}
}

// find returns the newest of the peers with the given identity, or nil if there is none.
func find(peers []*Peer, identity string) *Peer {
	for _, p := range slices.Backward(peers) {
		if p.identity == identity {
			return p
		}
	}
	return nil
}

// Publish sends a message to those peers of a PUB socket that subscribed to the first part of the message. Publish
// never waits: if the queue of a peer is full, that peer does not get the message. Publish returns the number of peers
// for which it queued the message.
func (s *Socket) Publish(parts ...[]byte) int {
	if len(parts) == 0 {
		return 0
	}
	peers := s.snapshot()
	if len(peers) == 0 {
		return 0
	}
	message := encode(parts)
	n := 0
	for _, p := range peers {
		sent, dropped := p.publish(parts[0], message)
		if sent {
			n++
		}
		if dropped {
			s.dropped.Add(1)
		}
	}
	s.sent.Add(uint64(n))
	return n
}

// Send sends a message to one peer, as DEALER sockets do: the peers take turns, and a peer whose queue is full is
// passed over.
func (s *Socket) Send(parts ...[]byte) error {
	s.mu.Lock()
	peers, turn := s.peers, int(s.next)
	s.next = (s.next + 1) & 0xffff
	s.mu.Unlock()
	err := fmt.Errorf("send to %s: %w", s.endpoint.text, ErrNoPeer)
	for i := range peers {
		if err = peers[(turn+i)%len(peers)].Send(parts...); err == nil {
			s.sent.Add(1)
			return nil
		}
	}
	return err
}

// SendTo sends a message to the peer with the given identity, as ROUTER sockets do. parts do not contain the identity.
func (s *Socket) SendTo(identity string, parts ...[]byte) error {
	p := find(s.snapshot(), identity)
	if p == nil {
		return fmt.Errorf("send to %q at %s: %w", identity, s.endpoint.text, ErrNoPeer)
	}
	if err := p.Send(parts...); err != nil {
		return err
	}
	s.sent.Add(1)
	return nil
}
