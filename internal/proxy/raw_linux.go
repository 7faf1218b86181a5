//go:build !race

package proxy

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// rawIO reads and writes a TCP connection with RawSyscall inside RawConn's callbacks. The descriptor is non-blocking, so
// that the call returns at once; an ordinary one tells the scheduler that it may block, which from an idle process wakes the
// runtime's monitor thread each time (../shared/facts/proxy_prototype.md: 8 to 19 % of the proxy's CPU). Waiting, deadlines
// and Close are left to the runtime's poller as ever. One reader and one writer at a time, like a bufio.
type rawIO struct {
	conn  syscall.RawConn
	local net.Conn
	in    rawCall
	out   rawCall

	both   func(fd uintptr) (done bool)
	pieces [2]syscall.Iovec
	look   rawCall
	first  [1]byte // what look finds
}

// rawCall is one direction of a rawIO. The callback is made once per connection, so that a call allocates nothing.
type rawCall struct {
	call func(fd uintptr) (done bool)
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
	r.conn, r.local = conn, c
	r.in.call = func(fd uintptr) bool {
		return r.in.do(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(r.in.buf)), len(r.in.buf))
	}
	r.out.call = func(fd uintptr) bool {
		return r.out.do(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(r.out.buf)), len(r.out.buf))
	}
	r.look.call = func(fd uintptr) bool {
		r.look.n, r.look.err = 0, syscall.EAGAIN
		r.look.do(syscall.SYS_READ, fd, unsafe.Pointer(&r.first), len(r.first))
		return true // without waiting
	}
	r.both = func(fd uintptr) bool {
		return r.out.do(syscall.SYS_WRITEV, fd, unsafe.Pointer(&r.pieces), len(r.pieces))
	}
}

// do reads or writes once. It reports false when the call would have to wait.
func (c *rawCall) do(trap, fd uintptr, at unsafe.Pointer, length int) bool {
	for {
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(at), uintptr(length))
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			c.n, c.err = int(n), 0
		default:
			c.n, c.err = 0, errno
		}
		return true
	}
}

func (r *rawIO) ok() bool { return r.conn != nil }

// quiet reports whether there is nothing to be read, the connection's end included. What there is may be taken.
func (r *rawIO) quiet() bool {
	return r.conn.Read(r.look.call) == nil && r.look.err == syscall.EAGAIN
}

func (r *rawIO) read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	r.in.buf = b
	err := r.conn.Read(r.in.call)
	r.in.buf = nil
	switch {
	case err != nil:
		return 0, r.opError("read", err)
	case r.in.err != 0:
		return 0, r.opError("read", os.NewSyscallError("read", r.in.err))
	case r.in.n == 0:
		return 0, io.EOF
	}
	return r.in.n, nil
}

func (r *rawIO) write(b []byte) (n int, err error) {
	for n < len(b) {
		r.out.buf = b[n:]
		err := r.conn.Write(r.out.call)
		r.out.buf = nil
		switch {
		case err != nil:
			return n, r.opError("write", err)
		case r.out.err != 0:
			return n, r.opError("write", os.NewSyscallError("write", r.out.err))
		}
		n += r.out.n
	}
	return n, nil
}

// writeBoth writes a and b, neither of them empty, by one writev; what that leaves is written piece by piece.
func (r *rawIO) writeBoth(a, b []byte) error {
	r.pieces[0].Base, r.pieces[1].Base = &a[0], &b[0]
	r.pieces[0].SetLen(len(a))
	r.pieces[1].SetLen(len(b))
	err := r.conn.Write(r.both)
	r.pieces = [2]syscall.Iovec{}
	switch {
	case err != nil:
		return r.opError("write", err)
	case r.out.err != 0:
		return r.opError("write", os.NewSyscallError("writev", r.out.err))
	}
	n := r.out.n
	if n < len(a) {
		if _, err := r.write(a[n:]); err != nil {
			return err
		}
		n = len(a)
	}
	_, err = r.write(b[n-len(a):])
	return err
}

// opError returns err as the net package's own Read and Write would.
func (r *rawIO) opError(op string, err error) error {
	if raw, is := err.(*net.OpError); is {
		raw.Op = op // it says raw-read
		return raw
	}
	return &net.OpError{Op: op, Net: "tcp", Source: r.local.LocalAddr(), Addr: r.local.RemoteAddr(), Err: err}
}
