//go:build unix

package network

import "syscall"

// Descriptors returns how many files and connections the process may have open, 0 when that is not known.
func Descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), 1<<30))
}
