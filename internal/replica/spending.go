package replica

import (
	"time"

	"github.com/warmpath/warmpath/internal/tenant"
)

const (
	// repeatInterval is the time between two repetitions of what tenants have spent. A lost message then limits a tenant
	// wrongly for about a second.
	repeatInterval = 3 * heartbeatInterval
	// repeatFor is how long what a tenant has spent is repeated after its last change. It is longer than deadAfter: after
	// a longer silence the others ask for all.
	repeatFor = 2 * deadAfter
	// mostRepeated bounds the tenants of one repetition: 100 KB or so. The others are likely to have a turn in the next.
	mostRepeated = 4096
)

// spending says which tenants are told again. The digests of packets do not cover what tenants have spent, so nobody
// asks for it if a message is lost.
type spending struct {
	changed  map[string]time.Time // when what a tenant has spent changed last, of the tenants that are told again
	repeated time.Time            // when they were told again last
}

// tellSpent sends what tenants have spent, if it changed.
func (w *sender) tellSpent() {
	if records := w.appendSpent(nil, false); len(records) > 0 {
		w.flush(func(to []byte) []byte { return append(to, records...) })
	}
}

// appendSpent appends what tenants have spent: all tenants, or those for which it changed since the last call.
func (w *sender) appendSpent(to []byte, all bool) []byte {
	if w.s.parts.Tenants == nil {
		return to
	}
	now := time.Now()
	w.s.parts.Tenants.Spent(all, func(name string, t tenant.Spent) {
		to = appendSpentBy(to, name, t)
		if !all {
			w.spending.changed[name] = now
		}
	})
	return to
}

// repeatSpent appends again what tenants have spent, if it is time: those for which it changed lately, and those that
// have requests under way. Without a connection nobody is told, so the tenants stay for the next time.
func (w *sender) repeatSpent(to []byte, now time.Time) []byte {
	if len(w.spending.changed) == 0 || now.Sub(w.spending.repeated) < repeatInterval-lookInterval/2 || !w.s.link.connected() {
		return to
	}
	w.spending.repeated = now
	left := mostRepeated
	for name, changed := range w.spending.changed {
		if !changed.Before(now) {
			continue // told a moment ago
		}
		if left--; left < 0 {
			break
		}
		t, ok := w.s.parts.Tenants.SpentBy(name)
		if ok {
			to = appendSpentBy(to, name, t)
		}
		if !ok || t.Active == 0 && now.Sub(changed) > repeatFor {
			delete(w.spending.changed, name)
		}
	}
	return to
}

func appendSpentBy(to []byte, name string, t tenant.Spent) []byte {
	told := spent{name, t.Requests, t.Tokens, t.Active}
	return appendRecord(to, recordSpent, told.append)
}
