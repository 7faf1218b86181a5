package zmq

import "context"

// PublisherConfig describes a Publisher. Zero fields mean what is said.
type PublisherConfig struct {
	Endpoint string // PUB endpoint, bound; "tcp://*:5557". Required.
	Connect  bool   // connect to Endpoint (a Listener's) in place of binding it
	Replay   string // ROUTER endpoint, bound; empty: no replay
	Topic    string
	// BufferSteps is how many messages can be replayed; 0 means vLLM's default 10,000.
	BufferSteps int
	// HWM is how many messages may wait for one slow subscriber before the next are dropped; 0 means vLLM's 100,000.
	HWM int
	// ReplayWithoutTopic answers replays as vLLM up to 0.25 and SGLang up to 2026-08 do, without the topic frame.
	ReplayWithoutTopic bool
	// Seed makes the faults repeatable.
	Seed uint64
}

// Publisher publishes one engine's KV events as vLLM's ZmqEventPublisher does. Its methods may be called concurrently.
type Publisher struct{}

// NewPublisher returns a Publisher. It starts nothing.
func NewPublisher(cfg PublisherConfig) *Publisher { return &Publisher{} }

// Listen opens the endpoints, so that Endpoint and ReplayEndpoint are known before Run. Run does it when it was not done.
func (p *Publisher) Listen() error { return nil }

// Endpoint returns the PUB endpoint as opened, with its port.
func (p *Publisher) Endpoint() string { return "" }

// ReplayEndpoint returns the ROUTER endpoint as opened, with its port; empty without replay.
func (p *Publisher) ReplayEndpoint() string { return "" }

// Run serves subscribers until ctx ends, which is no error.
func (p *Publisher) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Publish sends a copy of payload to the subscribers and returns its sequence number. It never blocks.
func (p *Publisher) Publish(payload []byte) uint64 { return 0 }

// DropNext makes the next n messages vanish on their way to subscribers; they can be replayed.
func (p *Publisher) DropNext(n int) {}

// DropShare makes a share (0..1) of the messages vanish on their way to subscribers; they can be replayed.
func (p *Publisher) DropShare(share float64) {}

// LoseReplay makes a share (0..1) of the messages of every replay vanish; its end marker too, with the same chance.
func (p *Publisher) LoseReplay(share float64) {}
