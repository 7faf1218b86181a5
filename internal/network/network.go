// Package network opens listeners and connections, on the machine's network or on a network that a test provides. With
// a network in memory, a test runs the whole application in virtual time.
//
// It also reads the certificates of listeners ([Certificates]).
//
// A [Peer] is a server with the settings for calls: TLS, a Unix socket, a key. [Transport] sends the requests of
// net/http clients to peers.
//
// The package does not know which requests are sent. Every component that listens or dials takes a [Network]; nil means
// [Machine]:
//
//	conn, err := network.Of(cfg.Network).Dial(ctx, "tcp", "10.0.0.7:8000")
package network

import (
	"context"
	"net"
)

// Network opens listeners and connections. Its methods may be called from any goroutine. The parameters network and
// address have the same form as in package net.
type Network interface {
	// Listen opens an address.
	Listen(network, address string) (net.Listener, error)
	// Dial connects to an address. The end of ctx ends the attempt to connect. A connection that was made stays open.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Machine is the network of the machine that the process runs on.
var Machine Network = machine{}

// Of returns n, or Machine when n is nil.
func Of(n Network) Network {
	if n == nil {
		return Machine
	}
	return n
}

type machine struct{}

func (machine) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (machine) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}
