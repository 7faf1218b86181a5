//go:build unix

package proxy

import (
	"net"
	"syscall"
)

// look reads a connection without waiting. The zero value has no connection.
type look struct {
	conn syscall.RawConn
	call func(fd uintptr) (done bool) // made once for each connection, so that quiet allocates nothing
	err  error
	buf  [1]byte
}

func (l *look) init(c net.Conn) {
	system, is := c.(syscall.Conn) // a TCP or Unix connection of this machine
	if !is {
		return
	}
	conn, err := system.SyscallConn()
	if err != nil {
		return
	}
	l.conn = conn
	l.call = func(fd uintptr) bool {
		for {
			if _, l.err = syscall.Read(int(fd), l.buf[:]); l.err != syscall.EINTR {
				return true
			}
		}
	}
}

// quiet reports whether there is nothing to read on the connection, neither bytes nor its end. It may consume a byte.
// If the system does not allow this test, quiet returns true.
func (l *look) quiet() bool {
	return l.conn == nil || l.conn.Read(l.call) == nil && l.err == syscall.EAGAIN
}
