//go:build !amd64

package kvindex

import "unsafe"

// prefetch does nothing where it is not known how it is done.
func prefetch(unsafe.Pointer) {}
