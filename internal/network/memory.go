package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// backlog is how many connections may wait for a listener's Accept. Further dials to this listener wait until there is
	// room. 128 is the default of Linux before 5.4.
	backlog = 128
	// window is how many bytes of one direction of a connection may be written and not yet read. When a window is full,
	// Write waits. 64 KiB is as small as the first window of real sockets, so that tests often meet a full window.
	window = 64 << 10
	// connectPatience bounds how long a dial takes if the host does not answer. Linux gives up after the same time: it
	// repeats the SYN six times, with pauses from 1 s to 64 s.
	connectPatience = 127 * time.Second
	// firstPort is the lowest port that the network chooses itself: for the dialling side of a connection, and for a
	// listener that asks for port 0.
	firstPort = 32768
)

// Memory is a network in memory for tests. Memory has hosts that listen and dial, and connections with deadlines,
// half-close and bounded buffers. Tests can cause the faults of real networks. Memory waits only with conditions,
// channels and timers. So in a bubble of testing/synctest, a goroutine that waits for the network is durably blocked,
// and a whole application runs in virtual time.
//
// Programs see the behaviour of TCP: bytes arrive in order; EOF follows the last byte of the other side; bytes that are
// sent to a closed socket are answered by a reset; a connect may be refused or time out. Memory does not model
// bandwidth. It does not resolve names: addresses are IP addresses.
//
//	n := network.NewMemory()
//	l, err := n.Host("10.0.0.1").Listen("tcp", "10.0.0.1:80")
//	c, err := n.Host("10.0.0.2").Dial(ctx, "tcp", "10.0.0.1:80")
//	n.Host("10.0.0.1").Cut(80)
//
// The methods of Memory may be called from any goroutine.
type Memory struct {
	mu        sync.Mutex // guards the fields below; locked before a direction's mu
	hosts     map[netip.Addr]*Host
	listeners map[netip.AddrPort]*listener
	conns     []*pair       // connections that at least one side has not closed, oldest first
	changed   chan struct{} // closed, and replaced, when a waiting dial may continue
	port      uint16        // the port that freePort returned last
}

// NewMemory returns a network without hosts.
func NewMemory() *Memory {
	return &Memory{hosts: map[netip.Addr]*Host{}, listeners: map[netip.AddrPort]*listener{}, changed: make(chan struct{}), port: firstPort}
}

// Host is one address of the network. It implements [Network]: an application listens on it and dials from it.
type Host struct {
	network *Memory
	ip      netip.Addr
	lost    atomic.Bool  // true: packets to and from this host are lost
	delay   atomic.Int64 // time that each packet to or from the host takes, in nanoseconds
}

// Host returns the host with the given IP address. The first call with an address creates the host.
func (n *Memory) Host(ip string) *Host {
	addr := netip.MustParseAddr(ip)
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[addr]
	if h == nil {
		h = &Host{network: n, ip: addr}
		n.hosts[addr] = h
	}
	return h
}

// Open returns the number of connections that at least one side has not closed.
func (n *Memory) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// Lose starts (true) or ends (false) a loss of all packets to and from the host. Bytes that are sent during the loss
// arrive after it, because TCP retransmits them. A dial waits until the end of the loss.
func (h *Host) Lose(on bool) {
	h.lost.Store(on)
	h.network.stir()
}

// Delay sets how long each packet to or from the host is delayed. Packets that are already under way are not affected.
func (h *Host) Delay(d time.Duration) { h.delay.Store(int64(d)) }

// Cut resets the connections that the host accepted at a port, at both ends, and returns their number. Port 0 means all
// ports.
func (h *Host) Cut(port uint16) int {
	return h.each(port, func(p *pair) {
		p.up.cut()
		p.down.cut()
	})
}

// HalfClose ends one direction of the connections that the host accepted at a port: the direction to the dialling side.
// After that the dialling side reads EOF, and the accepting side cannot write. HalfClose returns the number of these
// connections. Port 0 means all ports.
func (h *Host) HalfClose(port uint16) int {
	return h.each(port, func(p *pair) { p.down.end() })
}

// each calls f for each connection that the host accepted at a port, and returns their number. Port 0 means all ports.
func (h *Host) each(port uint16, f func(*pair)) int {
	h.network.mu.Lock()
	defer h.network.mu.Unlock()
	n := 0
	for _, p := range h.network.conns {
		if p.server.Addr() == h.ip && (port == 0 || p.server.Port() == port) {
			f(p)
			n++
		}
	}
	return n
}

// stir wakes all calls that wait for the network: dials, reads and writes.
func (n *Memory) stir() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stirred()
	for _, p := range n.conns {
		p.up.cond.Broadcast()
		p.down.cond.Broadcast()
	}
}

// stirred wakes only the waiting dials. The caller holds n.mu.
func (n *Memory) stirred() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// Listen opens an address of the host. Port 0 takes a free port. An address without a host, or with 0.0.0.0, means this
// host.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	at, err := h.parse(address)
	if err == nil && (at.Addr() != h.ip) {
		err = os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
	}
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && at.Port() == 0 {
		at = netip.AddrPortFrom(h.ip, n.freePort())
	}
	if err == nil && n.listeners[at] != nil {
		err = os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	l := &listener{network: n, at: at}
	l.cond.L = &l.mu
	n.listeners[at] = l
	n.stirred()
	return l, nil
}

func (n *Memory) freePort() uint16 {
	if n.port++; n.port < firstPort {
		n.port = firstPort
	}
	return n.port
}

func (h *Host) parse(address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" || host == "0.0.0.0" {
		host = h.ip.String()
	}
	return netip.ParseAddrPort(net.JoinHostPort(host, port))
}

// Dial connects from the host to an address. It does not resolve names.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := h.parse(address)
	var c *conn
	if err == nil {
		c, err = h.connect(ctx, to)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return c, nil
}

func (h *Host) connect(ctx context.Context, to netip.AddrPort) (*conn, error) {
	n := h.network
	target := n.Host(to.Addr().String())
	patience := time.NewTimer(connectPatience)
	defer patience.Stop()
	wait := func(changed <-chan struct{}) error {
		select {
		case <-changed:
			return nil
		case <-patience.C:
			return os.NewSyscallError("connect", syscall.ETIMEDOUT)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return os.ErrDeadlineExceeded // a timeout error, as package net reports it
			}
			return ctx.Err()
		}
	}
	if d := 2 * pathDelay(h, target); d > 0 {
		timer := make(chan struct{})
		t := time.AfterFunc(d, func() { close(timer) })
		defer t.Stop()
		if err := wait(timer); err != nil {
			return nil, err
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, wait(nil)
		}
		n.mu.Lock()
		changed := n.changed
		if h.lost.Load() || target.lost.Load() {
			n.mu.Unlock()
			if err := wait(changed); err != nil {
				return nil, err
			}
			continue
		}
		l := n.listeners[to]
		if l == nil {
			n.mu.Unlock()
			return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
		}
		from := netip.AddrPortFrom(h.ip, n.freePort())
		p := newPair(h, target, from, to)
		if l.offer(p) {
			n.conns = append(n.conns, p)
			n.mu.Unlock()
			return &conn{pair: p, in: p.down, out: p.up, local: from, remote: to}, nil
		}
		n.mu.Unlock()
		if err := wait(changed); err != nil {
			return nil, err
		}
	}
}

func pathDelay(a, b *Host) time.Duration {
	return time.Duration(a.delay.Load() + b.delay.Load())
}

// forget drops a connection that both sides have closed.
func (n *Memory) forget(p *pair) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = slices.DeleteFunc(n.conns, func(q *pair) bool { return q == p })
}

// listener is an address at which a host accepts connections.
type listener struct {
	network *Memory
	at      netip.AddrPort

	mu     sync.Mutex // guards the fields below; locked after the network's mu
	cond   sync.Cond  // signals a new connection, or the end of the listener
	queue  []*pair
	closed bool
}

// offer queues a connection for Accept. If the backlog is full, it returns false.
func (l *listener) offer(p *pair) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) >= backlog {
		return false
	}
	l.queue = append(l.queue, p)
	l.cond.Signal()
	return true
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	for len(l.queue) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		l.mu.Unlock()
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	p := l.queue[0]
	l.queue = l.queue[1:]
	full := len(l.queue) == backlog-1
	l.mu.Unlock()
	if full {
		l.network.stir()
	}
	return &conn{pair: p, in: p.up, out: p.down, local: p.server, remote: p.client}, nil
}

// Close closes the address, and resets the connections that wait for Accept.
func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[l.at] == l {
		delete(l.network.listeners, l.at)
	}
	l.network.stirred()
	l.network.mu.Unlock()
	l.mu.Lock()
	closed, queue := l.closed, l.queue
	l.closed, l.queue = true, nil
	l.cond.Broadcast()
	l.mu.Unlock()
	for _, p := range queue {
		p.up.cut()
		p.down.cut()
		p.leave()
	}
	if closed {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	return nil
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }
