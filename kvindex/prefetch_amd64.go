package kvindex

import "unsafe"

// prefetch lets the processor fetch a cache line, and the next one, and goes on. A load would do the same, but whoever loads does not get far
// ahead: what comes after a load waits for it once the processor's window of some hundred instructions is full.
//
//go:noescape
func prefetch(p unsafe.Pointer)
