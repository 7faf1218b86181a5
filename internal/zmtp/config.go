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

// typeTable has each type's name on the wire and the types of its peers (RFC 28, RFC 29).
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

// Config are the settings of a socket. The callbacks of one peer are called one at a time, in the order OnConnect,
// OnMessage…, OnDisconnect. Callbacks of different peers may run concurrently. A callback may block: meanwhile no
// message of that peer is read.
type Config struct {
	// Bind makes the socket listen at the endpoint. Without Bind the socket dials the endpoint, and dials again after
	// each failure and each lost connection, until Run's context ends.
	Bind bool
	// Topics has the prefixes that a SUB socket subscribes to. The empty prefix means every message. Without a prefix
	// the socket receives no message.
	Topics []string
	// Identity is sent to ROUTER peers. If it is empty, a ROUTER makes up an identity. Identity has at most 255
	// bytes, and its first byte is not zero.
	Identity string

	// Dial and Listen open connections and listeners; nil means package net. The end of Dial's context ends the attempt,
	// not the connection.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(network, address string) (net.Listener, error)

	// OnMessage receives each message. parts and its bytes are valid only during the call.
	OnMessage func(p *Peer, parts [][]byte)
	// OnConnect is called after a handshake, when the subscriptions have been sent.
	OnConnect func(p *Peer)
	// OnDisconnect is called once after each OnConnect, with the reason.
	OnDisconnect func(p *Peer, err error)
	// OnFailure is called when a peer could not be reached, or when a handshake failed.
	OnFailure func(err error)

	// HandshakeTimeout bounds two durations: the time to connect, and the time of the handshake. 0 means 5 s for each.
	HandshakeTimeout time.Duration
	// HeartbeatInterval is the silence after which a PING is sent; 0 means that no PING is sent. The PINGs of a peer
	// are always answered.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is the silence after a PING after which the peer is disconnected. 0 means 2 × HeartbeatInterval.
	HeartbeatTimeout time.Duration
	// WriteTimeout is how long a peer may accept no byte before it is disconnected. 0 means 30 s.
	WriteTimeout time.Duration
	// BackoffMin and BackoffMax are the first and the longest pause between two attempts to connect. The pause doubles
	// after each attempt, and varies by ±50 %. 0 means 100 ms (libzmq's reconnect interval) for BackoffMin, and 2 s for
	// BackoffMax.
	BackoffMin time.Duration
	BackoffMax time.Duration

	// MaxFrame and MaxMessage (in bytes) and MaxParts bound the messages that are read. A peer that exceeds a bound is
	// disconnected. Memory grows with the bytes that arrive, never with a length that is only announced. MaxFrame 0
	// means 64 MiB for SUB and DEALER, and 64 KiB for PUB and ROUTER, which read subscriptions and requests. MaxMessage
	// 0 means MaxFrame. MaxParts 0 means 64.
	MaxFrame   int
	MaxMessage int
	MaxParts   int
	// MaxPeers bounds the connections of a bound socket. A connection beyond the bound is closed immediately. 0 means
	// 4096.
	MaxPeers int

	// SendQueue and SendQueueBytes bound the messages that wait to be written to one peer. 0 means 1000 messages
	// (libzmq's default) and 64 MiB. A message that is larger than the bound is still sent if no other message waits.
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
