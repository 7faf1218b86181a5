//go:build unix

package tokenizer

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time of this process. On a shared machine only CPU time is repeatable.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
