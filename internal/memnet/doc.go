// Package memnet is a network in memory for tests: hosts that listen and dial, connections with deadlines, half-close
// and bounded buffers, and the faults of real networks on demand. It is built on mutexes, conditions and timers alone.
// In a bubble of testing/synctest all of its waiting is durable, so that a whole application runs over it in virtual
// time.
//
// It knows TCP's behaviour as programs see it: bytes in order, EOF after the other side's last byte, a reset for
// bytes sent to a closed socket, refused and timed-out connects. It refuses to know bandwidth and names: addresses
// are literal.
//
//	n := memnet.New()
//	l, err := n.Host("10.0.0.1").Listen("tcp", "10.0.0.1:80")
//	c, err := n.Host("10.0.0.2").Dial(ctx, "tcp", "10.0.0.1:80")
//	n.Host("10.0.0.1").Cut(80)
package memnet
