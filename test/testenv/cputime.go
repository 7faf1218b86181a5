//go:build unix

package testenv

import (
	"syscall"
	"testing"
	"time"
)

// CPUTime returns the CPU time of this process. On a shared machine only CPU time is repeatable.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatalf("read the CPU time: %v", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
