package proxy

import "net"

// RawListener returns l with connections that are read and written in the way that costs least (see rawIO), for the
// clients' side of a gateway. Where that is not possible, it returns connections as they are. Under TLS it goes below:
// tls.NewListener(RawListener(l), cfg).
func RawListener(l net.Listener) net.Listener { return rawListener{l} }

type rawListener struct{ net.Listener }

// Accept returns the next connection.
func (l rawListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, is := c.(*net.TCPConn)
	if !is {
		return c, nil
	}
	k := &rawConn{TCPConn: tcp}
	if k.raw.init(tcp); !k.raw.ok() {
		return c, nil
	}
	return k, nil
}

// rawConn is a TCP connection with all its abilities.
type rawConn struct {
	*net.TCPConn
	raw rawIO
}

func (k *rawConn) Read(b []byte) (int, error)  { return k.raw.read(b) }
func (k *rawConn) Write(b []byte) (int, error) { return k.raw.write(b) }
