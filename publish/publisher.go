package publish

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/warmpath/warmpath/internal/zmtp"
)

// These errors say which endpoint of a KVPublisher could not be opened.
var (
	ErrEvents = errors.New("publish events")
	ErrReplay = errors.New("publish events: replay")
)

// Config has the settings of a KVPublisher. Only Endpoint is required.
type Config struct {
	// Endpoint is the PUB endpoint, such as "tcp://*:5557" or "ipc:///run/engine". Port 0 or * is any free port.
	Endpoint string
	// Connect makes the publisher connect to Endpoint instead of binding it, for a router that binds.
	Connect bool
	// Replay is the ROUTER endpoint to bind, such as "tcp://*:5657"; "": no replay. A router needs it to know a cache
	// exactly: without it, a lost message makes the router forget the cache.
	Replay string
	// Topic is the first frame of each message. Subscribers choose messages by the beginning of their topic.
	Topic string
	// Rank is the data-parallel rank, which the batches carry. As vLLM does, the publisher adds it to the ports of
	// Endpoint and Replay, so that all ranks of an engine can have the same settings.
	Rank int
	// BlockSize is the number of tokens in a block, for events without a block size of their own.
	BlockSize int
	// BufferSteps and BufferBytes bound the messages that are kept for replay, and the bytes of their payloads. The last
	// message is always kept. 0 means 10,000 messages (vLLM's buffer_steps) and 256 MiB.
	BufferSteps int
	BufferBytes int
	// QueueMessages and QueueBytes bound the messages that wait for one slow subscriber. Further messages to this
	// subscriber are dropped and counted (Stats.Dropped). 0 means 100,000 messages (vLLM's hwm) and 256 MiB.
	QueueMessages int
	QueueBytes    int
	// ReplayWithoutTopic sends replays without the topic frame, as vLLM up to 0.25 does.
	ReplayWithoutTopic bool
	// Dial and Listen open connections and listeners. nil means those of package net.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(network, address string) (net.Listener, error)
	// Faults lose messages on purpose, for tests of subscribers. The zero value loses none.
	Faults Faults
}

// EndSeq is the sequence number of a replay's end marker, whose payload is empty.
const EndSeq = 1<<64 - 1

// Faults lose messages on purpose. Its functions may be nil, which loses nothing. They must not call the publisher.
type Faults struct {
	// Live reports whether subscribers get a message. A replay has each message. It is called once for each message, in
	// order.
	Live func(seq uint64) bool
	// Replay is called at the beginning of each replay. Its result reports, for each message of this replay and then for
	// EndSeq, whether the reader gets it. The result may wait: it holds up only its own replay.
	Replay func() func(seq uint64) bool
}

// validate returns all problems of the settings, and the settings with their defaults and the rank's ports.
func (c Config) validate() (Config, error) {
	var errs []error
	for _, n := range []struct {
		name  string
		value *int
		usual int
	}{
		{"buffer steps", &c.BufferSteps, 10_000}, {"buffer bytes", &c.BufferBytes, 256 << 20},
		{"queue messages", &c.QueueMessages, 100_000}, {"queue bytes", &c.QueueBytes, 256 << 20},
	} {
		if *n.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d is negative", n.name, *n.value))
		} else if *n.value == 0 {
			*n.value = n.usual
		}
	}
	if c.BlockSize < 0 || c.BlockSize > maxBlockSize {
		errs = append(errs, fmt.Errorf("block size %d is not within 0..%d", c.BlockSize, maxBlockSize))
	}
	if err := checkTexts(c.Topic); err != nil {
		errs = append(errs, fmt.Errorf("topic: %w", err))
	}
	var err error
	if c.Endpoint, err = rankEndpoint(c.Endpoint, c.Rank); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrEvents, err))
	}
	if c.Replay != "" {
		if c.Replay, err = rankEndpoint(c.Replay, c.Rank); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w", ErrReplay, err))
		}
	}
	return c, errors.Join(errs...)
}

// rankEndpoint returns the endpoint with rank added to its port. Any free port stays any free port.
func rankEndpoint(endpoint string, rank int) (string, error) {
	if rank == 0 {
		return endpoint, nil
	}
	e, err := zmtp.ParseEndpoint(endpoint)
	switch {
	case err != nil:
		return "", err
	case rank < 0 || rank > 1<<16:
		return "", fmt.Errorf("data-parallel rank %d is not within 0..%d", rank, 1<<16)
	case e.Path != "":
		return "", fmt.Errorf("%q has no port to add rank %d to: give each rank a tcp endpoint", endpoint, rank)
	case e.Port == 0:
		return endpoint, nil
	case e.Port+rank > 65535:
		return "", fmt.Errorf("%q leaves no port for rank %d", endpoint, rank)
	}
	e.Port += rank
	return e.String(), nil
}

// KVPublisher publishes the KV cache events of one engine, or of one data-parallel rank of it. It numbers messages from
// 0, keeps the last of them for replay, and drops messages for slow subscribers: these see a gap in the numbers, and
// ask for a replay. Its methods may be called concurrently, and none of them waits for a subscriber.
type KVPublisher struct {
	cfg     Config
	invalid error // the problem of the settings; Listen and Run return it

	mu      sync.Mutex // guards the fields below; Send holds it while sending, so that messages stay in order
	pub     *zmtp.Socket
	router  *zmtp.Socket // nil: no replay is served
	kept    kept
	encoder encoder
	stats   Stats
}

// Stats is a snapshot of a KVPublisher's counters.
type Stats struct {
	Published   uint64 // number of published messages, which is also the next sequence number
	Subscribers int
	Sent        uint64 // number of messages queued for subscribers; a message counts once for each subscriber
	Dropped     uint64 // number of messages dropped for slow subscribers; a message counts once for each of them
	Kept        int    // number of messages that a replay can have
	Replays     uint64 // number of answered replay requests
	Replayed    uint64 // number of messages in the answers to replay requests
	Malformed   uint64 // number of replay requests that were not understood
}

// New returns a KVPublisher. It opens nothing and starts nothing. Problems of the settings are errors of Listen and
// Run.
func New(cfg Config) *KVPublisher {
	cfg, err := cfg.validate()
	return &KVPublisher{cfg: cfg, invalid: err, kept: kept{steps: max(cfg.BufferSteps, 1), most: cfg.BufferBytes}}
}

// Listen opens the endpoints, so that Endpoint and ReplayEndpoint are known before Run. After Listen the caller must
// call Run, since Run closes the endpoints. Run calls Listen if the caller has not called it. The error says which
// setting is wrong, or wraps ErrEvents or ErrReplay.
func (p *KVPublisher) Listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.invalid != nil {
		return p.invalid
	}
	if p.pub != nil {
		return nil
	}
	pub, err := zmtp.New(zmtp.PUB, p.cfg.Endpoint, zmtp.Config{
		Bind: !p.cfg.Connect, SendQueue: p.cfg.QueueMessages, SendQueueBytes: p.cfg.QueueBytes, Dial: p.cfg.Dial, Listen: p.cfg.Listen,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEvents, err)
	}
	var router *zmtp.Socket
	if p.cfg.Replay != "" {
		router, err = zmtp.New(zmtp.ROUTER, p.cfg.Replay, zmtp.Config{Bind: true, Listen: p.cfg.Listen,
			OnMessage: func(peer *zmtp.Peer, request [][]byte) { p.Answer(request, peer.SendWait) }})
		if err == nil {
			err = router.Listen()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReplay, explained(err))
		}
	}
	if err := pub.Listen(); err != nil {
		err = fmt.Errorf("%w: %w", ErrEvents, explained(err))
		if router != nil {
			err = errors.Join(err, router.Close())
		}
		return err
	}
	p.pub, p.router = pub, router
	return nil
}

// explained adds advice to the error of an endpoint whose address is not one of this machine.
func explained(err error) error {
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.As(err, new(*net.DNSError)) {
		return fmt.Errorf("%w; the address must be one of this machine: write tcp://*:PORT", err)
	}
	return err
}

// Endpoint returns the PUB endpoint, with its real port after Listen.
func (p *KVPublisher) Endpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub == nil {
		return p.cfg.Endpoint
	}
	return p.pub.Endpoint()
}

// ReplayEndpoint returns the ROUTER endpoint, with its real port after Listen. The result is empty if the publisher
// serves no replay.
func (p *KVPublisher) ReplayEndpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.router == nil {
		return p.cfg.Replay
	}
	return p.router.Endpoint()
}

// Run serves subscribers until ctx ends, and returns nil then. If an endpoint cannot be opened, it returns an error.
// Run may be called once. When Run returns, all goroutines of the publisher have ended, and messages that still wait
// for a subscriber are lost.
func (p *KVPublisher) Run(ctx context.Context) error {
	if err := p.Listen(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var replayErr error
	if p.router != nil {
		wg.Go(func() { // ends with ctx; wg.Wait waits
			defer cancel()
			replayErr = p.router.Run(ctx)
		})
	}
	err := p.pub.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, replayErr)
}

// PublishStored publishes a batch with one event, and returns the number of its message.
func (p *KVPublisher) PublishStored(e Stored) (seq uint64, err error) {
	return p.PublishBatch(Event{Stored: &e})
}

// PublishRemoved publishes a batch with one event, and returns the number of its message.
func (p *KVPublisher) PublishRemoved(e Removed) (seq uint64, err error) {
	return p.PublishBatch(Event{Removed: &e})
}

// PublishCleared publishes that the engine emptied its cache, and returns the number of the message.
func (p *KVPublisher) PublishCleared() (seq uint64, err error) {
	return p.PublishBatch(Event{Cleared: true})
}

// PublishBatch publishes events in one message, with the present time, and returns the number of the message. A reader
// applies the events in their order. Before Listen, the message is only kept for replay. The error wraps ErrInvalid or
// ErrTooLarge; then nothing was published. The publisher does not keep the events.
func (p *KVPublisher) PublishBatch(events ...Event) (seq uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.invalid != nil {
		return 0, fmt.Errorf("publish: %w", p.invalid)
	}
	payload, err := p.encoder.encode(float64(time.Now().UnixMicro())/1e6, p.cfg.Rank, p.cfg.BlockSize, events)
	if err != nil {
		return 0, fmt.Errorf("publish: %w", err)
	}
	return p.send(payload), nil
}

// Send publishes a copy of a payload that the caller has encoded (see [Append]), and returns the number of its message.
func (p *KVPublisher) Send(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(payload)
}

func (p *KVPublisher) send(payload []byte) (seq uint64) {
	payload = bytes.Clone(payload)
	seq = p.kept.add(payload)
	if live := p.cfg.Faults.Live; live != nil && !live(seq) || p.pub == nil {
		return seq
	}
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], seq)
	p.pub.Publish([]byte(p.cfg.Topic), number[:], payload)
	return seq
}

// Stats returns the counters.
func (p *KVPublisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	st.Published, st.Kept = p.kept.next, int(p.kept.next-p.kept.first)
	if p.pub != nil {
		s := p.pub.Stats()
		st.Subscribers, st.Sent, st.Dropped = s.Peers, s.Sent, s.Dropped
	}
	return st
}

// DropSubscribers cuts the connections of all subscribers, for tests. Subscribers connect again.
func (p *KVPublisher) DropSubscribers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub != nil {
		p.pub.DropPeers()
	}
}
