package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestTwoSignalsInARowAreOne: a second signal ends the process only if it comes a second after the first or later.
func TestTwoSignalsInARowAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, ended := make(chan os.Signal), 0
		go onSecond(signals, func(os.Signal) { ended++ }) // ends with signals
		send := func(after time.Duration) {
			<-time.After(after) // in the test's own time
			signals <- syscall.SIGTERM
			synctest.Wait()
		}
		send(time.Hour)
		send(3 * time.Millisecond)
		send(secondAfter - 4*time.Millisecond)
		if ended != 0 {
			t.Error("a signal that came with the first one ends the process")
		}
		send(time.Millisecond)
		if ended != 1 {
			t.Error("a second signal does not end the process")
		}
		close(signals)
	})
}
