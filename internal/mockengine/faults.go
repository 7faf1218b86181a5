package mockengine

import (
	"context"
	"math/rand/v2"
	"sync"
)

// faultState has the current faults, and the random numbers that decide whether a fault with a share occurs. It is safe
// for concurrent use.
type faultState struct {
	mu      sync.Mutex
	faults  Faults
	changed chan struct{} // closed and replaced when the faults change
	random  *rand.Rand
}

func newFaultState(f Faults, seed uint64) *faultState {
	return &faultState{faults: f, changed: make(chan struct{}), random: rand.New(rand.NewPCG(seed, 0x6661756c74))}
}

func (s *faultState) get() (Faults, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults, s.changed
}

func (s *faultState) set(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
	close(s.changed)
	s.changed = make(chan struct{})
}

// hits decides at random whether a fault occurs. share returns the fault's probability, given the current faults.
func (s *faultState) hits(share func(*Faults) float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := share(&s.faults)
	return p > 0 && s.random.Float64() < p
}

// below returns a random number in [0, n).
func (s *faultState) below(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

// hold waits until while returns false for the current faults. hold returns false if ctx has ended.
func (s *faultState) hold(ctx context.Context, while func(*Faults) bool) bool {
	for {
		f, changed := s.get()
		if !while(&f) {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func frozen(f *Faults) bool        { return f.Frozen }
func notStepping(f *Faults) bool   { return f.Frozen || f.Stalled }
func errorShare(f *Faults) float64 { return f.Errors }
func cutShare(f *Faults) float64   { return f.Cut }
