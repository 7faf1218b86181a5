package mockengine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// endSeq is the sequence number of a replay's end marker, whose payload is empty.
const endSeq = math.MaxUint64

// These errors say which endpoint of a Publisher could not be opened.
var (
	ErrEvents = errors.New("publish events")
	ErrReplay = errors.New("publish events: replay")
)

// maxUnsent is the largest number of messages that wait for one slow subscriber. Further messages to this subscriber
// are dropped. The value is the default of vLLM's setting hwm.
const maxUnsent = 100_000

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

// Publisher publishes one engine's KV events as vLLM's ZmqEventPublisher does. It numbers messages from 0, keeps the
// last messages for replay, and drops messages for slow subscribers. Its methods may be called concurrently.
type Publisher struct {
	cfg PublisherConfig

	mu       sync.Mutex // guards the fields below; Publish holds it while sending, so that messages stay in order
	pub      *zmtp.Socket
	router   *zmtp.Socket // nil: no replay is served
	next     uint64       // sequence number of the next message
	buffer   [][]byte     // payload of the message with number seq, at index seq % BufferSteps
	faults   PublisherFaults
	dropNext int
	random   *rand.Rand
	stats    PublisherStats
}

// PublisherStats is a snapshot of a Publisher's counters.
type PublisherStats struct {
	Published   uint64 // number of published messages, which is also the next sequence number
	Subscribers int
	Sent        uint64 // number of messages written to subscribers; a message counts once for each subscriber
	Slow        uint64 // number of messages dropped for slow subscribers; a message counts once for each of them
	Replays     uint64 // number of answered replay requests
	Replayed    uint64 // number of messages in the answers to replay requests
	Malformed   uint64 // number of replay requests that were not understood
}

// NewPublisher returns a Publisher. It opens nothing and starts nothing.
func NewPublisher(cfg PublisherConfig) *Publisher {
	if cfg.BufferSteps <= 0 {
		cfg.BufferSteps = 10_000
	}
	return &Publisher{cfg: cfg, random: rand.New(rand.NewPCG(cfg.Seed, 0))}
}

// Listen opens the endpoints, so that Endpoint and ReplayEndpoint are known before Run. After Listen the caller must
// call Run, since Run closes the endpoints. Run calls Listen if the caller has not called it. An error wraps ErrEvents
// or ErrReplay.
func (p *Publisher) Listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub != nil {
		return nil
	}
	on := network.Of(p.cfg.Network)
	pub, err := zmtp.New(zmtp.PUB, p.cfg.Endpoint, zmtp.Config{
		Bind: !p.cfg.Connect, SendQueue: maxUnsent, SendQueueBytes: 256 << 20, Dial: on.Dial, Listen: on.Listen,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEvents, err)
	}
	var router *zmtp.Socket
	if p.cfg.Replay != "" {
		router, err = zmtp.New(zmtp.ROUTER, p.cfg.Replay, zmtp.Config{Bind: true, OnMessage: p.Answer, Listen: on.Listen})
		if err == nil {
			err = router.Listen()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReplay, err)
		}
	}
	if err := pub.Listen(); err != nil {
		err = fmt.Errorf("%w: %w", ErrEvents, err)
		if router != nil {
			err = errors.Join(err, router.Close())
		}
		return err
	}
	p.pub, p.router = pub, router
	return nil
}

// Endpoint returns the PUB endpoint, with its real port after Listen.
func (p *Publisher) Endpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub == nil {
		return p.cfg.Endpoint
	}
	return p.pub.Endpoint()
}

// ReplayEndpoint returns the ROUTER endpoint, with its real port after Listen. The result is empty if the Publisher
// serves no replay.
func (p *Publisher) ReplayEndpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.router == nil {
		return p.cfg.Replay
	}
	return p.router.Endpoint()
}

// Run serves subscribers until ctx ends, and returns nil then. If an endpoint cannot be bound, it returns an error. Run
// may be called once. When Run returns, messages that still wait for a subscriber are lost.
func (p *Publisher) Run(ctx context.Context) error {
	if err := p.Listen(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var replayErr error
	if p.router != nil {
		wg.Go(func() {
			defer cancel()
			replayErr = p.router.Run(ctx)
		})
	}
	err := p.pub.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, replayErr)
}

// Publish sends a copy of payload to the subscribers, and returns the message's sequence number. It never blocks.
// Before Listen, Publish only keeps the message for replay.
func (p *Publisher) Publish(payload []byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.next
	p.next++
	payload = bytes.Clone(payload)
	if slot := int(seq % uint64(p.cfg.BufferSteps)); slot < len(p.buffer) {
		p.buffer[slot] = payload
	} else {
		p.buffer = append(p.buffer, payload)
	}
	if p.dropNext > 0 || p.happens(p.faults.Drop) {
		p.dropNext = max(0, p.dropNext-1)
		return seq
	}
	if p.pub != nil {
		var number [8]byte
		binary.BigEndian.PutUint64(number[:], seq)
		p.pub.Publish([]byte(p.cfg.Topic), number[:], payload)
	}
	return seq
}

// happens returns true with the probability share.
func (p *Publisher) happens(share float64) bool { return share > 0 && p.random.Float64() < share }

// Stats returns the counters.
func (p *Publisher) Stats() PublisherStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	st.Published = p.next
	if p.pub != nil {
		s := p.pub.Stats()
		st.Subscribers, st.Sent, st.Slow = s.Peers, s.Sent, s.Dropped
	}
	return st
}

// DropSubscribers cuts the connections of all subscribers.
func (p *Publisher) DropSubscribers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub != nil {
		p.pub.DropPeers()
	}
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

// Answer answers a request `["", start]` with the kept messages from start on, and the end marker. It ignores other
// requests, as vLLM does. Answer waits for a slow reader. vLLM does not wait: it loses replies beyond its send limit,
// and the faults of replays imitate this loss.
func (p *Publisher) Answer(peer *zmtp.Peer, parts [][]byte) {
	if len(parts) != 2 || len(parts[0]) != 0 || len(parts[1]) > 8 {
		p.mu.Lock()
		p.stats.Malformed++
		p.mu.Unlock()
		return
	}
	var start uint64 // big-endian, in up to 8 bytes: vLLM does not require all 8
	for _, b := range parts[1] {
		start = start<<8 | uint64(b)
	}
	first, payloads, end := p.kept(start)
	p.mu.Lock()
	pause := p.faults.ReplayPause
	p.mu.Unlock()
	for i, payload := range payloads {
		if payload == nil {
			continue
		}
		time.Sleep(pause)
		if err := peer.SendWait(p.reply(first+uint64(i), payload)...); err != nil {
			return // an error means that the peer is gone
		}
	}
	if end {
		_ = peer.SendWait(p.reply(endSeq, nil)...) // an error means that the peer is gone
	}
}

// kept returns the payloads to replay and the sequence number of the first payload. A payload is nil if a fault drops
// the message. end reports whether the replay has an end marker.
func (p *Publisher) kept(start uint64) (first uint64, payloads [][]byte, end bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Replays++
	first = max(start, p.next-min(p.next, uint64(p.cfg.BufferSteps)))
	end = !p.happens(p.faults.ReplayEndLoss)
	for seq := first; seq < p.next; seq++ {
		if limit := p.faults.ReplayLimit; limit > 0 && len(payloads) >= limit {
			return first, payloads, false
		}
		payload := p.buffer[seq%uint64(p.cfg.BufferSteps)]
		if payload == nil {
			payload = []byte{}
		}
		if p.happens(p.faults.ReplayLoss) {
			payload = nil
		} else {
			p.stats.Replayed++
		}
		payloads = append(payloads, payload)
	}
	return first, payloads, end
}

// reply returns the frames of one message of a replay. The end marker has an empty topic.
func (p *Publisher) reply(seq uint64, payload []byte) [][]byte {
	number := binary.BigEndian.AppendUint64(nil, seq)
	if p.cfg.ReplayWithoutTopic {
		return [][]byte{nil, number, payload}
	}
	if seq == endSeq {
		return [][]byte{nil, nil, number, payload}
	}
	return [][]byte{nil, []byte(p.cfg.Topic), number, payload}
}
