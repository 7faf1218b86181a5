package network

import (
	"errors"
	"syscall"
)

// Local reports whether err is a failure of this machine: no file descriptor, port, buffer or memory is free. Such an
// error says nothing about the other end of the connection.
func Local(err error) bool {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return false
	}
	switch no {
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.EADDRNOTAVAIL, syscall.ENOMEM:
		return true
	}
	return false
}
