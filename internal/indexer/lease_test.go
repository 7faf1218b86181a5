package indexer

import (
	"slices"
	"testing"
	"time"
)

// A worker is registered again registerEvery after the service took it, and not before: that keeps its lease alive. The
// test moves the registration into the past.
func TestARouterKeepsTheLeaseOfItsWorkersAlive(t *testing.T) {
	f := newFreezer(t)
	a := newAsker(t, f.URL, nil)
	a.stop() // only the test registers
	a.put("http://a", facts("tcp://127.0.0.1:9"))
	registered := func(age time.Duration) (n int) {
		t.Helper()
		if s, ok := a.client.registered["http://a"]; ok {
			s.at = time.Now().Add(-age)
			a.client.registered["http://a"] = s
		}
		f.mu.Lock()
		f.calls = nil
		f.mu.Unlock()
		if _, err := a.client.register(t.Context(), a.fleet.Snapshot()); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.calls)
	}
	for _, c := range []struct {
		age  time.Duration
		want int
	}{{0, 1}, {0, 0}, {registerEvery, 1}, {0, 0}, {registerLease, 1}} {
		if n := registered(c.age); n != c.want {
			t.Errorf("%v after the last registration: %d registrations, want %d", c.age, n, c.want)
		}
	}
	if 3*registerEvery > registerLease {
		t.Errorf("two of three registrations may fail: every %v, with a lease of %v", registerEvery, registerLease)
	}
}

// If there is no time for all, the workers whose last attempt is longest ago come first.
func TestTheWorkerThatWaitsLongestIsRegisteredFirst(t *testing.T) {
	a := newAsker(t, "http://127.0.0.1:1", nil)
	a.stop()
	names := []string{"http://a", "http://b", "http://c", "http://d"}
	now := time.Now()
	for i, name := range names {
		a.put(name, facts("tcp://127.0.0.1:9"))
		a.client.registered[name] = sent{tried: now.Add(-time.Duration(i) * time.Minute)}
	}
	due, _ := a.client.due(a.fleet.Snapshot(), now)
	var got []string
	for _, d := range due {
		got = append(got, d.url)
	}
	if slices.Reverse(names); !slices.Equal(got, names) {
		t.Errorf("the order is %v, want %v", got, names)
	}
}
