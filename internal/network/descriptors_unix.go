//go:build unix

package network

import "syscall"

// Descriptors returns the process's limit of open files and connections; 0 means that the limit is not known.
func Descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), 1<<30))
}
