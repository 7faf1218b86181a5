package testenv

import (
	"testing/synctest"
	"time"
)

// Pass lets the time d pass in a synctest bubble, where it takes no real time. Everything that happens until then has
// happened when it returns. Outside of a bubble it panics: there a test waits for an event, not for a time.
func Pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
