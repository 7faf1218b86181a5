package replica

import (
	"context"
	"iter"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// adminListener is where this router's operators are served.
type adminListener struct {
	address string // host:port; the host may stand for all interfaces
	tls     bool
}

// SetAdmin sets the address at which this router's operators are served, as HOST:PORT. Peers read this router's index
// there, and their operators see it. An address on all interfaces is told as the address by which this machine reaches
// NATS, or another router's server.
func (s *Sync) SetAdmin(address string, tls bool) { s.admin.Store(&adminListener{address, tls}) }

// machine names this machine or container.
func machine() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// reach returns the URL of the admin listener for other routers; "" if there is none, or if no address of this machine
// is known.
func (s *Sync) reach() string {
	l := s.admin.Load()
	if l == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(l.address)
	if err != nil || at.Port() == 0 {
		return ""
	}
	host := at.Addr()
	if host.IsUnspecified() {
		over, ok := s.link.(*natsLink)
		if !ok {
			return ""
		}
		if host = over.local(); !host.IsValid() {
			return ""
		}
	}
	scheme := "http://"
	if l.tls {
		scheme = "https://"
	}
	return scheme + netip.AddrPortFrom(host.Unmap(), at.Port()).String()
}

// localAddress returns this machine's address on the way to a remote one, IP:PORT. It sends nothing.
func localAddress(remote string) netip.Addr {
	if _, err := netip.ParseAddrPort(remote); err != nil {
		return netip.Addr{} // a name: looking it up could take long
	}
	conn, err := net.Dial("udp", remote)
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().WithZone("")
}

// Admins returns the addresses of the peers' admin listeners from which this router can read an index, as
// http://HOST:PORT. Without a key there are none: anybody could tell an address. An address with TLS is left out,
// since nothing says which certificate to trust. So is a loopback address of another machine, and the address of a
// router without an index of its own.
func (s *Sync) Admins() (all []string) {
	if s.cfg.Key == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if s.usable(&p.heartbeat) {
			all = append(all, p.heartbeat.admin)
		}
	}
	slices.Sort(all)
	return all
}

// usable reports whether this router can read an index at the address in h.
func (s *Sync) usable(h *heartbeat) bool {
	text, plain := strings.CutPrefix(h.admin, "http://")
	at, err := netip.ParseAddrPort(text)
	if h.noIndex || !plain || err != nil || at.Addr().IsUnspecified() {
		return false
	}
	return !at.Addr().IsLoopback() || h.machine != "" && h.machine == s.machine
}

const (
	// firstPeer bounds how long FirstAdmins waits. Embedded servers need some 200 ms to find each other. A router that
	// gets no index of its peers reads the engines' histories so much later.
	firstPeer = 600 * time.Millisecond
	// firstAnswer is the same once the connection is there: all routers answer the first heartbeat at once.
	firstAnswer = 250 * time.Millisecond
)

// FirstAdmins yields the addresses of Admins, each once, while a router that has just started hears of them: for 600 ms
// at most, and for 250 ms at most once there is a connection. What it hears while the caller uses an address comes
// after that. Without a key there are none.
func (s *Sync) FirstAdmins(ctx context.Context) iter.Seq[string] {
	return func(yield func(address string) bool) {
		if s.cfg.Key == "" {
			return
		}
		limit, end := time.NewTimer(firstPeer), time.Now().Add(firstPeer)
		defer limit.Stop()
		joined, yielded := s.joined, map[string]bool{}
		for over := false; ; {
			fresh := false
			for _, address := range s.Admins() {
				if yielded[address] {
					continue
				}
				if fresh, yielded[address] = true, true; !yield(address) {
					return
				}
			}
			switch {
			case fresh: // it may have heard of others meanwhile
				continue
			case over:
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-limit.C:
				over = true
			case <-s.found:
			case <-joined:
				joined = nil
				limit.Reset(min(firstAnswer, time.Until(end)))
			}
		}
	}
}

// closeOnce closes c, unless it is closed. Calls must not overlap.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
