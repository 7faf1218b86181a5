package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Type is a socket's type.
type Type uint8

// The socket types.
const (
	SUB Type = iota
	PUB
	DEALER
	ROUTER
)

// typeTable has the name of each type on the wire, and the types of the peers that the type can talk to (RFC 28, RFC
// 29).
var typeTable = [...]struct {
	name  string
	peers []string
}{
	SUB:    {"SUB", []string{"PUB", "XPUB"}},
	PUB:    {"PUB", []string{"SUB", "XSUB"}},
	DEALER: {"DEALER", []string{"ROUTER", "DEALER", "REP"}},
	ROUTER: {"ROUTER", []string{"DEALER", "REQ", "ROUTER"}},
}

// String returns the type's name on the wire.
func (t Type) String() string {
	if int(t) >= len(typeTable) {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return typeTable[t].name
}

// Config has the settings of a socket. The callbacks of one peer are called one at a time, in the order OnConnect,
// OnMessage…, OnDisconnect. Callbacks of different peers may run concurrently. A callback may block: the socket then
// reads no message of that peer until the callback returns.
type Config struct {
	// Bind makes the socket listen at the endpoint. Without Bind the socket dials the endpoint, and dials again after
	// each failure and each lost connection, until Run's context ends.
	Bind bool
	// Topics has the prefixes that a SUB socket subscribes to. The empty prefix means every message. If Topics is empty,
	// the socket receives no message.
	Topics []string
	// Identity is the name that a DEALER or ROUTER socket sends to its peers. If Identity is empty, a ROUTER peer makes up
	// a name. Identity has at most 255 bytes, and its first byte is not zero.
	Identity string

	// Dial and Listen open connections and listeners. nil means the functions of package net. The end of the context of
	// Dial ends the attempt to connect, but not a connection that was made.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(network, address string) (net.Listener, error)

	// OnMessage is called for each message, except on PUB sockets, which read messages as subscriptions. parts and the
	// bytes of parts are valid only during the call.
	OnMessage func(p *Peer, parts [][]byte)
	// OnConnect is called after a handshake, when the subscriptions have been sent.
	OnConnect func(p *Peer)
	// OnDisconnect is called once after each OnConnect, with the reason.
	OnDisconnect func(p *Peer, err error)
	// OnFailure is called with the reason when a connection fails before its OnConnect. There are four cases: a peer could
	// not be reached; a handshake failed; a bound socket could not accept a connection; a bound socket refused a
	// connection because it already had MaxPeers connections.
	OnFailure func(err error)

	// HandshakeTimeout bounds two durations: the time to connect, and the time of the handshake. 0 means 5 s for each of
	// the two.
	HandshakeTimeout time.Duration
	// HeartbeatInterval is how long a peer may send nothing before the socket sends a PING to the peer. 0 means that the
	// socket sends no PING. A peer with ZMTP 3.0 gets no PING. The socket answers the PINGs of a peer in any case.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is how long a peer may send nothing after the PING before the socket disconnects the peer. 0 means
	// 2 × HeartbeatInterval.
	HeartbeatTimeout time.Duration
	// WriteTimeout is how long a peer may take to accept one write. A write has at most 256 KiB. If the peer takes longer,
	// the socket disconnects the peer. 0 means 30 s.
	WriteTimeout time.Duration
	// BackoffMin and BackoffMax are the first and the longest pause between two attempts to connect, or to accept. The
	// pause doubles after each attempt. Then the pause is changed by up to ±50 % at random. 0 means 100 ms (libzmq's
	// reconnect interval) for BackoffMin. For BackoffMax, 0 means 2 s, or BackoffMin if that is longer.
	BackoffMin time.Duration
	BackoffMax time.Duration

	// MaxFrame and MaxMessage (in bytes) and MaxParts bound the messages that are read. A peer that exceeds a bound is
	// disconnected. The memory of a message grows with the bytes that arrive, never with a length that a peer only
	// announces. MaxFrame 0 means 64 MiB for SUB and DEALER. For PUB and ROUTER, which read only subscriptions and
	// requests, MaxFrame 0 means 64 KiB. MaxMessage 0 means MaxFrame. MaxParts 0 means 64.
	MaxFrame   int
	MaxMessage int
	MaxParts   int
	// MaxPeers bounds the connections of a bound socket. The socket closes a connection beyond the bound immediately. 0
	// means 4096.
	MaxPeers int

	// SendQueue and SendQueueBytes bound the number and the bytes of the messages that wait to be written to one peer. 0
	// means 1000 messages (libzmq's default) and 64 MiB. A message that is larger than SendQueueBytes is still sent if no
	// other message waits.
	SendQueue      int
	SendQueueBytes int
}

func (c Config) withDefaults(t Type) Config {
	frame := 64 << 20
	if t == PUB || t == ROUTER {
		frame = 64 << 10
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	setDefault(&c.MaxFrame, frame)
	setDefault(&c.MaxMessage, c.MaxFrame)
	setDefault(&c.MaxParts, 64)
	setDefault(&c.MaxPeers, 4096)
	setDefault(&c.SendQueue, 1000)
	setDefault(&c.SendQueueBytes, 64<<20)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.HeartbeatTimeout, 2*c.HeartbeatInterval)
	setDefault(&c.WriteTimeout, 30*time.Second)
	setDefault(&c.BackoffMin, 100*time.Millisecond)
	setDefault(&c.BackoffMax, max(2*time.Second, c.BackoffMin))
	return c
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

func (c Config) validate(t Type) error {
	var errs []error
	if int(t) >= len(typeTable) {
		errs = append(errs, fmt.Errorf("unknown socket type %d", uint8(t)))
	}
	if len(c.Topics) > 0 && t != SUB {
		errs = append(errs, fmt.Errorf("a %v socket has no topics", t))
	}
	if len(c.Identity) > maxIdentity || (c.Identity != "" && c.Identity[0] == 0) {
		errs = append(errs, fmt.Errorf("identity %q is longer than %d bytes or begins with a zero byte", c.Identity, maxIdentity))
	}
	return errors.Join(errs...)
}
