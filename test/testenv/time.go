package testenv

import (
	"testing/synctest"
	"time"
)

// Pass lets the virtual time d pass in a synctest bubble. This takes no real time. When Pass returns, everything that
// was due within d has happened. Outside of a bubble Pass panics: a test outside of a bubble must wait for an event,
// not for a time.
func Pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
