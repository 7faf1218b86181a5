package mockengine

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/zmtp"
	"github.com/warmpath/warmpath/publish"
)

// These errors say which endpoint of a Publisher could not be opened.
var (
	ErrEvents = publish.ErrEvents
	ErrReplay = publish.ErrReplay
)

// PublisherConfig has the settings of a Publisher.
type PublisherConfig struct {
	Endpoint string // PUB endpoint to bind, such as "tcp://*:5557". Required.
	Connect  bool   // connect to Endpoint instead of binding it, for a router that binds (kvfeed.Config.Listen)
	Replay   string // ROUTER endpoint to bind; empty: no replay
	Topic    string
	// BufferSteps is the number of messages that are kept for replay. 0: 10,000, vLLM's default.
	BufferSteps int
	// ReplayWithoutTopic sends replays without the topic frame, as vLLM up to 0.25 and SGLang up to August 2026 do.
	ReplayWithoutTopic bool
	// Seed is the seed of random faults. The same seed gives the same faults.
	Seed uint64
	// Network is the network of the endpoints; nil means the machine's.
	Network network.Network
}

// PublisherFaults are faults that a Publisher makes on purpose. A share is a probability from 0 to 1.
type PublisherFaults struct {
	Drop          float64       // share of messages that subscribers do not get; a replay contains these messages
	ReplayLoss    float64       // share of a replay's messages that are left out
	ReplayLimit   int           // number of messages after which a replay stops without its end marker; 0: no limit
	ReplayEndLoss float64       // share of replays whose end marker is left out
	ReplayPause   time.Duration // pause before each message of a replay
}

// Publisher is a publish.KVPublisher that publishes payloads in any format, and makes faults on purpose. Its methods
// may be called concurrently.
type Publisher struct {
	events *publish.KVPublisher

	mu       sync.Mutex // guards the fields below; the publisher's faults take it, so nobody calls events while holding it
	faults   PublisherFaults
	dropNext int
	random   *rand.Rand
}

// NewPublisher returns a Publisher. It opens nothing and starts nothing.
func NewPublisher(cfg PublisherConfig) *Publisher {
	on := network.Of(cfg.Network)
	p := &Publisher{random: rand.New(rand.NewPCG(cfg.Seed, 0))}
	p.events = publish.New(publish.Config{
		Endpoint: cfg.Endpoint, Connect: cfg.Connect, Replay: cfg.Replay, Topic: cfg.Topic,
		BufferSteps: max(cfg.BufferSteps, 0), ReplayWithoutTopic: cfg.ReplayWithoutTopic, Dial: on.Dial, Listen: on.Listen,
		Faults: publish.Faults{Live: p.live, Replay: p.replay},
	})
	return p
}

// Listen opens the endpoints, so that Endpoint and ReplayEndpoint are known before Run. After Listen the caller must
// call Run, since Run closes the endpoints. Run calls Listen if the caller has not called it. An error wraps ErrEvents
// or ErrReplay.
func (p *Publisher) Listen() error { return p.events.Listen() }

// Endpoint returns the PUB endpoint, with its real port after Listen.
func (p *Publisher) Endpoint() string { return p.events.Endpoint() }

// ReplayEndpoint returns the ROUTER endpoint, with its real port after Listen. The result is empty if the Publisher
// serves no replay.
func (p *Publisher) ReplayEndpoint() string { return p.events.ReplayEndpoint() }

// Run serves subscribers until ctx ends, and returns nil then. If an endpoint cannot be bound, it returns an error. Run
// may be called once. When Run returns, messages that still wait for a subscriber are lost.
func (p *Publisher) Run(ctx context.Context) error { return p.events.Run(ctx) }

// Publish sends a copy of payload to the subscribers, and returns the message's sequence number. It never blocks.
// Before Listen, Publish only keeps the message for replay.
func (p *Publisher) Publish(payload []byte) uint64 { return p.events.Send(payload) }

// Stats returns the counters.
func (p *Publisher) Stats() publish.Stats { return p.events.Stats() }

// DropSubscribers cuts the connections of all subscribers.
func (p *Publisher) DropSubscribers() { p.events.DropSubscribers() }

// Answer answers a replay request of a peer of another ROUTER socket.
func (p *Publisher) Answer(peer *zmtp.Peer, request [][]byte) {
	p.events.Answer(request, peer.SendWait)
}

// SetFaults replaces all faults. The zero value ends them.
func (p *Publisher) SetFaults(f PublisherFaults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
}

// DropNext makes subscribers miss the next n messages. A replay contains these messages.
func (p *Publisher) DropNext(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropNext = n
}

// DropShare sets the share (0..1) of messages that subscribers miss. A replay contains these messages.
func (p *Publisher) DropShare(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults.Drop = share
}

// LoseReplay sets the share (0..1) of messages that are left out of every replay. LoseReplay does not change whether
// the end marker is sent: see PublisherFaults.ReplayEndLoss.
func (p *Publisher) LoseReplay(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults.ReplayLoss = share
}

// live reports whether subscribers get the next message.
func (p *Publisher) live(uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropNext > 0 || p.happens(p.faults.Drop) {
		p.dropNext = max(0, p.dropNext-1)
		return false
	}
	return true
}

// replay returns a function that reports for each message of one replay, and for its end marker, whether the reader
// gets it. The faults are those at the beginning of the replay.
func (p *Publisher) replay() func(seq uint64) bool {
	p.mu.Lock()
	faults, end := p.faults, !p.happens(p.faults.ReplayEndLoss)
	p.mu.Unlock()
	messages, stopped := 0, false
	return func(seq uint64) bool {
		if seq == publish.EndSeq {
			return end && !stopped
		}
		if stopped = stopped || faults.ReplayLimit > 0 && messages >= faults.ReplayLimit; stopped {
			return false
		}
		messages++
		p.mu.Lock()
		lost := p.happens(faults.ReplayLoss)
		p.mu.Unlock()
		if !lost && faults.ReplayPause > 0 {
			time.Sleep(faults.ReplayPause)
		}
		return !lost
	}
}

// happens returns true with the probability share. p.mu is held.
func (p *Publisher) happens(share float64) bool { return share > 0 && p.random.Float64() < share }
