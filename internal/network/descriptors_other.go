//go:build !unix

package network

// Descriptors returns the process's limit of open files and connections; 0 means that the limit is not known.
func Descriptors() int { return 0 }
