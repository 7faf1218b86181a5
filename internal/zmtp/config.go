package zmtp

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/network"
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

// typeTable holds each type's name on the wire and the types it may talk to (RFC 28, RFC 29).
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

// Config describes a socket. The callbacks of one peer are called one at a time, in the order OnConnect, OnMessage…,
// OnDisconnect; those of different peers may run concurrently. A callback may block: that peer is then not read.
type Config struct {
	// Bind waits for peers at the endpoint; false dials it, again and again until Run's context ends.
	Bind bool
	// Topics are the prefixes a SUB socket subscribes to; one empty string means every message, none means no message.
	Topics []string
	// Identity is announced to ROUTER peers, which otherwise invent one. At most 255 bytes, not beginning with a zero byte.
	Identity string

	// Network is the network on which the endpoint is bound or dialled; nil means the machine's.
	Network network.Network

	// OnMessage receives each message. parts and its bytes are valid only during the call.
	OnMessage func(p *Peer, parts [][]byte)
	// OnConnect is called when a handshake is done (and the subscriptions are sent).
	OnConnect func(p *Peer)
	// OnDisconnect is called once after each OnConnect, with the reason.
	OnDisconnect func(p *Peer, err error)
	// OnFailure is called when a peer could not be reached or the handshake with it did not succeed.
	OnFailure func(err error)

	// HandshakeTimeout bounds connecting and, again, the handshake. 0 means 5 s.
	HandshakeTimeout time.Duration
	// HeartbeatInterval is the silence after which a PING is sent; 0 sends none. A PING is always answered.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is how long a peer may stay silent after a PING before it is dropped. 0 means 2 × HeartbeatInterval.
	HeartbeatTimeout time.Duration
	// WriteTimeout drops a peer that takes nothing of what is written to it for so long. 0 means 30 s.
	WriteTimeout time.Duration
	// BackoffMin and BackoffMax are the first and the longest pause between attempts, doubled in between and spread by
	// ±50 %. 0 means 100 ms (libzmq's reconnect interval) and 2 s.
	BackoffMin time.Duration
	BackoffMax time.Duration

	// MaxFrame, MaxMessage (bytes) and MaxParts bound what is read; a peer that exceeds them is dropped. Memory grows with
	// the bytes that arrive, never with a length that is only announced. 0 means 64 MiB for SUB and DEALER, 64 KiB for PUB and
	// ROUTER (which read subscriptions and requests), and 64 parts. MaxMessage 0 means MaxFrame.
	MaxFrame   int
	MaxMessage int
	MaxParts   int
	// MaxPeers bounds the connections of a bound socket; further ones are closed at once. 0 means 4096.
	MaxPeers int
	// MaxSubscriptions bounds the prefixes one peer of a PUB socket may hold. 0 means 1024.
	MaxSubscriptions int

	// SendQueue and SendQueueBytes bound what waits to be written to one peer. 0 means 1000 messages (libzmq's default) and
	// 64 MiB. A message larger than the bound is still sent when nothing else waits.
	SendQueue      int
	SendQueueBytes int
}

func (c Config) withDefaults(t Type) Config {
	frame := 64 << 20
	if t == PUB || t == ROUTER {
		frame = 64 << 10
	}
	setDefault(&c.MaxFrame, frame)
	setDefault(&c.MaxMessage, c.MaxFrame)
	setDefault(&c.MaxParts, 64)
	setDefault(&c.MaxPeers, 4096)
	setDefault(&c.MaxSubscriptions, 1024)
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
