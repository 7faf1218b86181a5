package kvfeed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// Subscriber follows one event source of an engine. It calls a [Handler] with each message once, in order, and asks the
// engine to replay missing messages. Run may be called once, Stats at any time.
type Subscriber struct {
	src    fleet.EventSource
	stream *sequence
}

// NewSubscriber returns a Subscriber that follows src and calls h. It starts nothing.
func NewSubscriber(src fleet.EventSource, cfg StreamConfig, h Handler) *Subscriber {
	return &Subscriber{src, newSequence(cfg.withDefaults(), src.Replay, h)}
}

// Run follows the source until ctx ends, and returns nil then. An invalid endpoint is an error. If nothing answers at
// an endpoint, Run tries again for ever, and reports each failure through [Handler.State]. When Run returns, all its
// goroutines have ended.
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
func (s *Subscriber) Stats() StreamStats { return s.stream.snapshot() }

// StreamStats is a snapshot of one stream's counters since Run began.
type StreamStats struct {
	Connected   bool      `json:"events_connected"`
	Since       time.Time `json:"-"`             // when Connected last changed; zero before the first change
	Sequence    uint64    `json:"last_sequence"` // number of the last message that the handler got; valid if HasSequence
	HasSequence bool      `json:"-"`
	Messages    uint64    `json:"messages"`   // messages that the handler got, live or replayed
	Gaps        uint64    `json:"gaps"`       // times that messages were missing between two live messages of a connection
	Replays     uint64    `json:"replays"`    // replay requests for missing messages
	Checks      uint64    `json:"checks"`     // replay requests that find out whether messages are missing
	Replayed    uint64    `json:"replayed"`   // messages that replays brought first: the handler got them, or they were kept until it could
	Duplicates  uint64    `json:"duplicates"` // repeated live messages, which the handler did not get
	Lost        uint64    `json:"lost"`       // messages given up: no replay brought them
	Restarts    uint64    `json:"restarts"`   // times that the engine's stream began again
	// Malformed is the number of messages that were dropped for their frames. A live message has topic, sequence number
	// and payload, or topic and payload, and all live messages of a connection have the same form. A replayed message
	// has an empty frame, perhaps a topic, then sequence number and payload.
	Malformed uint64 `json:"-"`
	// ReplayError says why a replay was last given up; nil: no replay was given up.
	ReplayError error `json:"-"`
}
