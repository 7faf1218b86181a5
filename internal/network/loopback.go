package network

import (
	"net"
	"net/netip"
)

// Loopback reports whether an address (host:port) can be reached only from this machine.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && LoopbackHost(host)
}

// LoopbackHost reports whether a host is this machine by name or address.
func LoopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
