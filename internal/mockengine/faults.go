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
	deaths  [numMoments]death // of the engine, each at most once
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

// moment is a moment of a transfer at which a fault can end the engine.
type moment uint8

const (
	afterPrefill moment = iota // the answer to a prefill leg is sent
	inTransfer                 // another engine has half of the blocks

	numMoments
)

// death is an order to end the engine at a moment.
type death struct {
	due   bool
	order order
}

// plan sets the order that ends the engine at a moment. A nil order ends no engine.
func (s *faultState) plan(at moment, o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths[at] = death{}
	if o != nil {
		s.deaths[at] = death{due: true, order: *o}
	}
}

// due returns the order that ends the engine now, if there is one, and removes it.
func (s *faultState) due(at moment) *order {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.deaths[at]
	s.deaths[at] = death{}
	if !d.due {
		return nil
	}
	return &d.order
}

func wrongRoom(f *Faults) float64      { return f.WrongRoom }
func transferHeld(f *Faults) bool      { return f.Frozen || f.HoldTransfers }
func prefillErrors(f *Faults) float64  { return f.PrefillErrors }
func decodeRefusals(f *Faults) float64 { return f.DecodeRefusals }

func frozen(f *Faults) bool        { return f.Frozen }
func notStepping(f *Faults) bool   { return f.Frozen || f.Stalled }
func errorShare(f *Faults) float64 { return f.Errors }
func cutShare(f *Faults) float64   { return f.Cut }
