package zmq

import (
	"context"
	"fmt"
	"sync"

	"github.com/warmpath/warmpath/internal/zmtp"
)

// Subscriber follows one Source. Run may be called once; Stats at any time.
type Subscriber struct {
	src    Source
	stream *stream
}

// NewSubscriber returns a Subscriber of src that hands over to h. It starts nothing.
func NewSubscriber(src Source, cfg Config, h Handler) *Subscriber {
	return &Subscriber{src, newStream(cfg.withDefaults(), src.Replay, h)}
}

// Run follows the source until ctx ends, which is no error. An endpoint that cannot be understood is; one where nobody
// answers is tried again for ever, and told through State. When Run returns nothing of it is left running.
func (s *Subscriber) Run(ctx context.Context) error {
	if s.src.Replay != "" {
		if _, err := zmtp.New(zmtp.DEALER, s.src.Replay, zmtp.Config{}); err != nil {
			return fmt.Errorf("subscribe to %s: replay: %w", s.src.Endpoint, err)
		}
	}
	cfg := s.stream.cfg.socket()
	cfg.Topics = []string{s.src.Topic}
	cfg.OnConnect = func(*zmtp.Peer) { s.stream.connect() }
	cfg.OnMessage = func(_ *zmtp.Peer, parts [][]byte) { s.stream.receive(parts) }
	cfg.OnDisconnect = func(_ *zmtp.Peer, err error) {
		if ctx.Err() == nil {
			s.stream.disconnect(err)
		}
	}
	cfg.OnFailure = s.stream.unreachable
	socket, err := zmtp.New(zmtp.SUB, s.src.Endpoint, cfg)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", s.src.Endpoint, err)
	}
	var recovery sync.WaitGroup
	defer recovery.Wait()
	if s.src.Replay != "" {
		recovery.Go(func() { s.stream.recover(ctx) })
	}
	return socket.Run(ctx)
}

// Stats returns the counters.
func (s *Subscriber) Stats() Stats { return s.stream.snapshot() }
