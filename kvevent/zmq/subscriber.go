package zmq

import "context"

// Subscriber follows one Source. Run may be called once; Stats at any time.
type Subscriber struct{}

// NewSubscriber returns a Subscriber of src that hands over to h. It starts nothing.
func NewSubscriber(src Source, cfg Config, h Handler) *Subscriber { return &Subscriber{} }

// Run follows the source until ctx ends, which is no error. An endpoint that cannot be understood is.
func (s *Subscriber) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Stats returns the counters.
func (s *Subscriber) Stats() Stats { return Stats{} }
