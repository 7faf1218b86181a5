package testenv

import (
	"testing/synctest"
	"time"
)

// Pass lets d pass in a synctest bubble, where it takes no real time, and lets all that happens until then end. It
// panics outside a bubble: there a test waits for an event, not for a time.
func Pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
