package mockengine

import (
	"fmt"
	"net"
	"strings"

	"github.com/warmpath/warmpath/internal/network"
)

// rowTries is how many times row looks for n free ports. On a machine with few sockets the first try nearly always
// succeeds.
const rowTries = 64

// rows replaces port 0 or * in each endpoint by the first of n consecutive free ports. SGLang reports one port for all
// ranks, so rank r must be at port + r. rows closes the ports before it returns, and the publishers open them later. If
// another process takes one of these ports before, the publisher returns an error.
func rows(on network.Network, n int, endpoints ...*string) error {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for _, endpoint := range endpoints {
		address, tcp := strings.CutPrefix(*endpoint, "tcp://")
		host, port, err := net.SplitHostPort(address)
		if !tcp || err != nil || port != "0" && port != "*" {
			continue // the endpoint names a port, or there is no endpoint
		}
		bind := host
		if host == "*" {
			bind = ""
		}
		first, row, err := row(on, bind, n)
		if err != nil {
			return fmt.Errorf("find ports for %s: %w", *endpoint, err)
		}
		held = append(held, row...) // kept open until rows returns, so that the next endpoint gets other ports
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		*endpoint = fmt.Sprintf("tcp://%s:%d", host, first)
	}
	return nil
}

// row opens n consecutive ports, and returns the first port and all listeners.
func row(on network.Network, host string, n int) (first int, held []net.Listener, err error) {
	for range rowTries {
		first, held, err = tryRow(on, host, n)
		if err == nil {
			return first, held, nil
		}
	}
	return 0, nil, fmt.Errorf("no %d free ports in a row: %w", n, err)
}

func tryRow(on network.Network, host string, n int) (first int, held []net.Listener, err error) {
	for i := range n {
		port := 0
		if i > 0 {
			port = first + i
		}
		var l net.Listener
		if l, err = on.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(port))); err != nil {
			for _, l := range held {
				l.Close()
			}
			return 0, nil, err
		}
		held = append(held, l)
		if i == 0 {
			first = l.Addr().(*net.TCPAddr).Port
		}
	}
	return first, held, nil
}
