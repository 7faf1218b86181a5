//go:build !linux || race

package proxy

import "net"

// rawIO is not available here: connections are used through the net package. Under the race detector too, which does not
// see what a raw system call writes, nor that a write on one side happens before the read on the other.
type rawIO struct{}

func (r *rawIO) init(net.Conn)               {}
func (r *rawIO) ok() bool                    { return false }
func (r *rawIO) quiet() bool                 { panic("bug: no raw connection") }
func (r *rawIO) read(b []byte) (int, error)  { panic("bug: no raw connection") }
func (r *rawIO) write(b []byte) (int, error) { panic("bug: no raw connection") }
func (r *rawIO) writeBoth(a, b []byte) error { panic("bug: no raw connection") }
