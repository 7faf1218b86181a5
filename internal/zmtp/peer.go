package zmtp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Errors of sending.
var (
	ErrQueueFull = errors.New("send queue is full")
	ErrClosed    = errors.New("connection is closed")
	ErrNoPeer    = errors.New("no such peer is connected")
)

// errSilent is the reason for the end of a connection whose peer sent nothing for too long.
var errSilent = errors.New("peer is silent: no answer to a heartbeat")

const (
	// writeBatch is the number of bytes that are collected for one write. It is large enough that the cost of the system
	// call does not matter.
	writeBatch = 64 << 10
	// copyBelow is the size in bytes up to which a message is copied into the batch of a write. A larger message is
	// written without a copy.
	copyBelow = 16 << 10
	// maxControl bounds the commands that wait to be written to a peer, in bytes. If a peer sends PINGs and does not read
	// the answers, this bound is exceeded, and the peer is disconnected.
	maxControl = 16 << 10
)

// Peer is one connection, from its OnConnect to its OnDisconnect. Its methods may be called concurrently.
type Peer struct {
	socket   *Socket
	conn     net.Conn
	reader   *reader
	name     string
	identity string
	minor    byte          // minor version; 0: ZMTP 3.0, which has no heartbeats and sends subscriptions as messages
	ttl      time.Duration // time limit in the last PING of the peer (see parsePing); 0: none. Only the reading goroutine uses it.

	mu      sync.Mutex // guards the fields below
	wake    sync.Cond  // signals that there is something to write, or that the peer was closed
	room    sync.Cond  // signals that the queue has room, or that the peer was closed
	control []byte     // encoded commands, written before the messages
	queue   queue
	subs    subscriptions
	closed  bool
	err     error // why the connection was closed
}

func newPeer(s *Socket, conn net.Conn) *Peer {
	p := &Peer{socket: s, conn: conn, name: conn.RemoteAddr().String()}
	if p.name == "" || p.name == "@" { // the dialling side of a Unix socket has no name
		p.name = s.Endpoint()
	}
	size := 64 << 10
	if s.typ == PUB || s.typ == ROUTER {
		size = 1 << 10
	}
	p.reader = newReader(conn, size, limits{s.cfg.MaxFrame, s.cfg.MaxMessage, s.cfg.MaxParts})
	p.reader.onCommand = p.command
	p.wake.L, p.room.L = &p.mu, &p.mu
	return p
}

// Name returns the peer's network address, for log lines and errors.
func (p *Peer) Name() string { return p.name }

// Identity returns the name that identifies the peer on a ROUTER socket. If the peer sent no name, the ROUTER made one
// up. On other sockets the identity is empty.
func (p *Peer) Identity() string { return p.identity }

// Drop closes the connection. After that OnDisconnect is called with err as the reason, and a socket that dials
// connects again.
func (p *Peer) Drop(err error) { p.close(err) }

// Send queues a copy of the message and does not wait. If the queue is full, Send returns ErrQueueFull. After the end
// of the connection, Send returns ErrClosed.
func (p *Peer) Send(parts ...[]byte) error {
	return p.enqueue(encode(parts), false)
}

// SendWait queues a copy of the message. If the queue is full, SendWait waits until there is room, or until the
// connection ends.
func (p *Peer) SendWait(parts ...[]byte) error {
	return p.enqueue(encode(parts), true)
}

func encode(parts [][]byte) []byte {
	return appendMessage(make([]byte, 0, messageSize(parts)), parts...)
}

// enqueue queues an encoded message. The caller must not change the message afterwards. If the queue is full, enqueue
// waits for room if wait is true, and returns ErrQueueFull if wait is false.
func (p *Peer) enqueue(message []byte, wait bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && p.queue.full(len(message), p.socket.cfg.SendQueue, p.socket.cfg.SendQueueBytes) {
		if !wait {
			return fmt.Errorf("send to %s at %s: %w", p.name, p.socket.endpoint.text, ErrQueueFull)
		}
		p.room.Wait()
	}
	if p.closed {
		return fmt.Errorf("send to %s at %s: %w", p.name, p.socket.endpoint.text, ErrClosed)
	}
	p.queue.push(message)
	p.wake.Signal()
	return nil
}

// publish queues an encoded message if the peer subscribed to the topic. It never waits: if the queue is full, the
// message is dropped, and dropped is true.
func (p *Peer) publish(topic, message []byte) (sent, dropped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.subs.matches(topic) {
		return false, false
	}
	if p.queue.full(len(message), p.socket.cfg.SendQueue, p.socket.cfg.SendQueueBytes) {
		return false, true
	}
	p.queue.push(message)
	p.wake.Signal()
	return true, false
}

// sendCommand queues a command. Queued commands are written before queued messages.
func (p *Peer) sendCommand(name string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.control) > maxControl {
		return errors.New("peer sends heartbeats and reads nothing")
	}
	p.control = appendCommand(p.control, name, data)
	p.wake.Signal()
	return nil
}

// close ends the connection with the reason err. If close is called more than once, the reason of the first call stays.
func (p *Peer) close(err error) {
	p.mu.Lock()
	if !p.closed {
		p.closed, p.err = true, err
	}
	p.wake.Broadcast()
	p.room.Broadcast()
	p.mu.Unlock()
	p.conn.Close()
}

// handshake exchanges greetings with the peer. A SUB socket then sends its subscriptions.
func (p *Peer) handshake() error {
	cfg := &p.socket.cfg
	if err := p.conn.SetDeadline(time.Now().Add(cfg.HandshakeTimeout)); err != nil {
		return err
	}
	minor, meta, err := shakeHands(p.conn, p.reader, p.socket.typ, cfg.Identity)
	if err != nil {
		return err
	}
	p.minor, p.identity = minor, meta.identity
	if wire := p.subscribe(cfg.Topics); len(wire) > 0 {
		if _, err := p.conn.Write(wire); err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
	}
	// After the handshake the reader reads through fill, which sends heartbeats when the peer is silent.
	p.reader.src = fill{p}
	return p.conn.SetDeadline(time.Time{})
}

// subscribe encodes the subscriptions in the form that the version of the peer requires (RFC 23 or RFC 37).
func (p *Peer) subscribe(topics []string) (wire []byte) {
	for _, topic := range topics {
		if p.minor == 0 {
			wire = appendFrame(wire, 0, append([]byte{1}, topic...))
			continue
		}
		wire = appendCommand(wire, "SUBSCRIBE", []byte(topic))
	}
	return wire
}

// receive reads messages until the connection ends.
func (p *Peer) receive() error {
	s := p.socket
	for {
		parts, err := p.reader.next()
		if err != nil {
			return err
		}
		s.received.Add(1)
		switch {
		case s.typ == PUB:
			if err := p.legacySubscription(parts); err != nil {
				return err
			}
		case s.cfg.OnMessage != nil:
			s.cfg.OnMessage(p, parts)
		}
	}
}

// command handles a command frame. It ignores other commands, such as PONG.
func (p *Peer) command(body []byte) error {
	name, data, err := splitCommand(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case "PING":
		ttl, context, err := parsePing(data)
		if err != nil {
			return err
		}
		p.ttl = ttl
		return p.sendCommand("PONG", context)
	case "SUBSCRIBE", "CANCEL":
		return p.changeSubscription(name[0] == 'S', data)
	case "ERROR":
		return parseError(data)
	}
	return nil
}

// legacySubscription reads a subscription in the form of ZMTP 3.0: a message with one part, whose first byte is 1
// (subscribe) or 0 (cancel). Other messages are ignored.
func (p *Peer) legacySubscription(parts [][]byte) error {
	if len(parts) != 1 || len(parts[0]) == 0 || parts[0][0] > 1 {
		return nil
	}
	return p.changeSubscription(parts[0][0] == 1, parts[0][1:])
}

func (p *Peer) changeSubscription(add bool, prefix []byte) error {
	if p.socket.typ != PUB {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if add {
		return p.subs.add(prefix)
	}
	p.subs.cancel(prefix)
	return nil
}

// send writes queued messages until the connection ends.
func (p *Peer) send() {
	var batch, large []byte
	for {
		var ok bool
		if batch, large, ok = p.gather(batch[:0]); !ok {
			return
		}
		if err := p.write(batch, large); err != nil {
			p.close(fmt.Errorf("write: %w", err))
			return
		}
	}
}

// gather waits until there is something to write. It then collects commands and after them messages in batch. The first
// message that is larger than copyBelow ends the batch: gather returns this message as large, and does not copy it.
func (p *Peer) gather(batch []byte) (_, large []byte, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && len(p.control) == 0 && p.queue.len() == 0 {
		p.wake.Wait()
	}
	if p.closed {
		return nil, nil, false
	}
	batch = append(batch, p.control...)
	p.control = p.control[:0]
	for p.queue.len() > 0 && len(batch) < writeBatch && large == nil {
		if m := p.queue.pop(); len(m) > copyBelow {
			large = m
		} else {
			batch = append(batch, m...)
		}
	}
	p.room.Broadcast()
	return batch, large, true
}

func (p *Peer) write(batch, large []byte) error {
	for _, b := range [2][]byte{batch, large} {
		// A large message is written in pieces, and each piece has its own time limit. So a slow peer has enough time, while
		// a peer that accepts nothing is disconnected.
		for len(b) > 0 {
			if err := p.conn.SetWriteDeadline(time.Now().Add(p.socket.cfg.WriteTimeout)); err != nil {
				return err
			}
			n, err := p.conn.Write(b[:min(len(b), 4*writeBatch)])
			if err != nil {
				return err
			}
			b = b[n:]
		}
	}
	return nil
}

// fill is the io.Reader of a connected peer. If the peer is silent for some time, fill sends a PING. If the silence
// continues, fill ends the connection. The time of callbacks does not count as silence, because the clock starts with
// each read.
type fill struct{ p *Peer }

func (f fill) Read(buf []byte) (int, error) {
	p := f.p
	cfg := &p.socket.cfg
	beats := cfg.HeartbeatInterval > 0 && p.minor > 0
	pinged := false
	for start := time.Now(); ; {
		wait := p.ttl
		if beats {
			wait = cfg.HeartbeatInterval
			if pinged {
				wait += cfg.HeartbeatTimeout
			}
			if p.ttl > 0 {
				wait = min(wait, p.ttl)
			}
		}
		var deadline time.Time
		if wait > 0 {
			deadline = start.Add(wait)
		}
		if err := p.conn.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		n, err := p.conn.Read(buf)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if pinged || !beats || (p.ttl > 0 && time.Since(start) >= p.ttl) {
			return 0, errSilent
		}
		pinged = true
		if err := p.sendCommand("PING", []byte{0, 0}); err != nil {
			return 0, err
		}
	}
}
