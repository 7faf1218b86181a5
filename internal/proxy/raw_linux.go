package proxy

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// rawIO reads a TCP connection with RawSyscall inside RawConn's callback. The descriptor is non-blocking, so the call
// returns at once; an ordinary read tells the scheduler that it may block, which from an idle process wakes the runtime's
// monitor thread each time (../shared/facts/proxy_prototype.md: 8 to 19 % of the proxy's CPU). Deadlines and Close work as
// ever: waiting is left to the runtime's poller. One reader at a time.
type rawIO struct {
	conn syscall.RawConn
	call func(fd uintptr) bool // once per connection, so that a read allocates nothing
	buf  []byte
	n    int
	err  syscall.Errno
}

func (r *rawIO) init(c net.Conn) {
	tcp, is := c.(*net.TCPConn)
	if !is {
		return
	}
	conn, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	r.conn = conn
	r.call = func(fd uintptr) bool {
		for {
			n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(r.buf))), uintptr(len(r.buf)))
			switch errno {
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false
			}
			r.n, r.err = int(n), errno
			return true
		}
	}
}

func (r *rawIO) ok() bool { return r.conn != nil }

func (r *rawIO) read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	r.buf = b
	err := r.conn.Read(r.call)
	r.buf = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != 0:
		return 0, os.NewSyscallError("read", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}
