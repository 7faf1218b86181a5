package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// secondAfter is how long after the first signal another one counts as the second. GNU timeout signals its child and
// then its process group, so that the child gets two signals a few milliseconds apart. A person who waits in vain takes
// longer than this.
const secondAfter = time.Second

// onSecond calls atOnce with the second signal. It returns when signals is closed.
func onSecond(signals <-chan os.Signal, atOnce func(os.Signal)) {
	var first time.Time
	for s := range signals {
		if first.IsZero() {
			first = time.Now()
		} else if time.Since(first) >= secondAfter {
			atOnce(s)
		}
	}
}

// endAtOnce says on stderr that the process ends at once, and ends it as the signal does by default.
func endAtOnce(stderr io.Writer, s os.Signal) {
	written := make(chan struct{})
	go func() { // ends with the write, or with the process
		defer close(written)
		fmt.Fprintf(stderr, "warmpath: ends at once: a second signal came (%v). What was under way is lost\n", s)
	}()
	select {
	case <-written:
	case <-time.After(time.Second): // somebody holds the standard error and does not read it
	}
	signal.Reset(s)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Signal(s)
		time.Sleep(time.Second) // until the signal arrives
	}
	os.Exit(exitFailed)
}
