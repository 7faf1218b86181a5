package mockengine

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/network"
)

// rank is one data-parallel rank: an engine model, the goroutine that runs its steps, and its publisher.
type rank struct {
	id        int
	life      *life
	publisher *Publisher    // nil: the rank publishes no events
	wake      chan struct{} // signals a new request

	mu     sync.Mutex // guards engine
	engine *engine.Engine

	batch batch // used only by the goroutine of run, because only this goroutine publishes
}

// engineConfig returns the configuration of the engine model of one rank.
func engineConfig(c *Config) engine.Config {
	cfg := engine.DefaultConfig()
	cfg.BlockSize, cfg.Blocks = c.BlockSize, c.Blocks
	cfg.MaxModelLen, cfg.MaxBatchTokens, cfg.MaxSequences = c.MaxModelLen, c.MaxBatchTokens, c.MaxSequences
	cfg.CPUBlocks, cfg.Offload, cfg.Describe = c.CPUBlocks, c.Offload, !c.Placeholders
	cfg.Hash = engineHash(c)
	return cfg
}

// startRanks creates the ranks, opens their event sockets and starts the ranks. After a restart, the sockets get the
// addresses of the earlier life. startRanks returns the addresses of the ranks' events.
func (l *life) startRanks(known []EventSource) ([]EventSource, error) {
	var sources []EventSource
	events, replay := l.cfg.Events, l.cfg.Replay
	if l.cfg.Kind == SGLang && l.cfg.Ranks > 1 && known == nil {
		if err := rows(network.Of(l.cfg.Network), l.cfg.Ranks, &events, &replay); err != nil {
			return nil, err
		}
	}
	for id := range l.cfg.Ranks {
		model, err := engine.New(engineConfig(l.cfg))
		if err != nil {
			return nil, err
		}
		r := &rank{id: id, life: l, engine: model, wake: make(chan struct{}, 1)}
		if l.cfg.Events != "" && !l.cfg.NoPrefixCaching {
			source, err := r.openPublisher(known, events, replay)
			if err != nil {
				return nil, err
			}
			sources = append(sources, source)
		}
		l.ranks = append(l.ranks, r)
	}
	for _, r := range l.ranks {
		l.work.Add(1)
		go func() { // ends when the life's context ends
			defer l.work.Done()
			r.run(l.ctx)
		}()
	}
	f, _ := l.server.faults.get()
	l.applyEventFaults(f)
	return sources, nil
}

// openPublisher opens the rank's sockets. After a restart it uses the addresses of the earlier life. At the first start
// it adds the rank's number to the ports in events and replay.
func (r *rank) openPublisher(known []EventSource, events, replay string) (EventSource, error) {
	cfg := r.life.cfg
	config := PublisherConfig{
		Topic:              cfg.Topic,
		BufferSteps:        cfg.BufferSteps,
		ReplayWithoutTopic: r.life.server.wire.oldReplay,
		Seed:               cfg.Seed + uint64(r.id),
		Network:            cfg.Network,
	}
	if len(known) > r.id {
		config.Endpoint, config.Replay = known[r.id].Endpoint, known[r.id].Replay
	} else {
		var err error
		if config.Endpoint, err = offsetPort(events, r.id); err != nil {
			return EventSource{}, err
		}
		if config.Replay, err = offsetPort(replay, r.id); err != nil {
			return EventSource{}, err
		}
	}
	p := NewPublisher(config)
	if err := patiently(r.life.ctx, r.life.restarted, p.Listen); err != nil {
		return EventSource{}, fmt.Errorf("open event sockets of rank %d: %w", r.id, err)
	}
	r.publisher = p
	r.life.work.Add(1)
	go func() { // ends when the life's context ends
		defer r.life.work.Done()
		if err := p.Run(r.life.ctx); err != nil && r.life.ctx.Err() == nil {
			r.life.fail(fmt.Errorf("publish events of rank %d: %w", r.id, err))
		}
	}()
	return EventSource{Rank: r.id, Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), Topic: cfg.Topic}, nil
}

// offsetPort adds rank to the port of a tcp endpoint, as engines do. For port 0 or * it returns port 0, with which each
// rank takes a free port. It does not change other endpoints.
func offsetPort(endpoint string, rank int) (string, error) {
	address, tcp := strings.CutPrefix(endpoint, "tcp://")
	if endpoint == "" || !tcp {
		return endpoint, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("read endpoint %q: %w", endpoint, err)
	}
	if port == "*" {
		port = "0"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("read endpoint %q: port: %w", endpoint, err)
	}
	if n != 0 {
		n += uint64(rank)
	}
	if n > 65535 {
		return "", fmt.Errorf("endpoint %q leaves no port for rank %d", endpoint, rank)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("tcp://%s:%d", host, n), nil
}

// run runs the model's steps until ctx ends. If Config.Speed is not 0, a step takes time. The results of a step become
// visible at the end of the step: first events, then tokens.
func (r *rank) run(ctx context.Context) {
	var step engine.Step
	pace := newPace(r.life.cfg.Speed)
	defer pace.stop()
	for r.life.server.faults.hold(ctx, notStepping) && !r.life.isDead() {
		r.mu.Lock()
		busy := r.engine.Step(&step)
		r.mu.Unlock()
		if !busy {
			r.announceReset(&step)
			select {
			case <-r.wake:
				pace.restart()
				continue
			case <-ctx.Done():
				return
			}
		}
		r.startTransfers(&step)
		if step.Tokens > 0 && !pace.wait(ctx, step.Duration) {
			return
		}
		r.publish(step.Events)
		for i := range step.Outputs {
			o := &step.Outputs[i]
			if o.Last && o.Request.Pin {
				p := o.Request.Owner.(*progress)
				if p.room != nil { // the sequence ends when the reader has the blocks
					r.life.exchange.pin(p.room.key, r, o.Request, forever)
					continue
				}
				r.life.exchange.leaseOut(r, o.Request)
			}
			o.Request.Owner.(*progress).advance(o.Last)
		}
		if step.Tokens > 0 || len(step.Awaiting) > 0 {
			continue
		}
		// The waiting requests have no room, because leases and transfers hold the blocks.
		select {
		case <-r.wake:
			pace.restart()
		case <-ctx.Done():
			return
		}
	}
}

// pace spreads steps over real time without drift: a late step does not make the next steps late.
type pace struct {
	speed float64
	due   time.Time
	timer *time.Timer
}

func newPace(speed float64) *pace {
	p := &pace{speed: speed, timer: time.NewTimer(time.Hour)}
	p.timer.Stop()
	return p
}

func (p *pace) restart() { p.due = time.Now() }
func (p *pace) stop()    { p.timer.Stop() }

// wait waits until the end of a step that takes the modelled time d and began when the step before ended. It returns
// false if ctx has ended.
func (p *pace) wait(ctx context.Context, d time.Duration) bool {
	if p.speed == 0 {
		return ctx.Err() == nil
	}
	now := time.Now()
	// If the process was stopped for more than a second, do not make later steps shorter to win back the lost time.
	if now.Sub(p.due) > time.Second {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(float64(d) / p.speed))
	if p.due.Before(now) {
		return ctx.Err() == nil
	}
	p.timer.Reset(p.due.Sub(now))
	select {
	case <-p.timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// submit queues the requests of one HTTP request together, so that the next step sees all of them.
func (r *rank) submit(requests []*engine.Request) error {
	r.mu.Lock()
	for i, q := range requests {
		if err := r.engine.Submit(q); err != nil {
			for _, other := range requests[:i] {
				r.engine.Cancel(other)
			}
			r.mu.Unlock()
			return err
		}
	}
	r.mu.Unlock()
	r.rouse()
	return nil
}

func (r *rank) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// cancel removes the requests that have not finished.
func (r *rank) cancel(requests []*engine.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range requests {
		r.engine.Cancel(q)
	}
	r.rouse()
}

// startTransfers signals to the requests that got their blocks in a step that their transfers may begin. With the step,
// the engine also sends the notices that waited for a step.
func (r *rank) startTransfers(step *engine.Step) {
	for _, q := range step.Awaiting {
		q.Owner.(*progress).awaits <- struct{}{} // has room, because a request awaits a transfer once
	}
	if r.life.exchange != nil {
		r.life.exchange.sendNotices()
	}
}

// missing returns the order for the blocks that the rank's cache lacks, among the given blocks of another engine, and
// the number of tokens in them.
func (r *rank) missing(q *engine.Request, blocks []int32) (o *readOrder, tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := r.life.cfg.BlockSize
	first := q.Computed() / size
	last := first + (q.External+size-1)/size
	full := first + q.External/size
	o = &readOrder{BlockSize: size, Tokens: min(q.Computed()+q.External, len(q.Prompt))}
	o.Digest = digest(q.Prompt[:o.Tokens])
	if hashes := q.Hashes(); full <= len(hashes) && first <= full {
		o.Hashes = append(o.Hashes, hashes[first:full]...)
	}
	o.First = first
	if n := last - first; n <= len(blocks) { // vLLM takes the end of the list (base_worker.py)
		o.Blocks = append(o.Blocks, blocks[len(blocks)-n:]...)
	}
	return o, q.External
}

// holds reports whether the blocks begin with blocks of these hashes.
func (r *rank) holds(blocks []int32, hashes []engine.Hash) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(blocks) < len(hashes) {
		return false
	}
	for i, h := range hashes {
		if !r.engine.Holds(blocks[i], h) {
			return false
		}
	}
	return true
}

// digest returns a hash of tokens.
func digest(tokens []block.Token) uint64 {
	raw := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	return xxh3.Hash(raw)
}

// has reports whether a request has the blocks of an order: it begins with the tokens that the reader has, and the
// blocks with the order's numbers, if it names some, are at their place.
func (r *rank) has(q *engine.Request, o *readOrder) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	tokens, blocks := q.Tokens(), q.BlockIDs()
	if o.Tokens < 0 || o.Tokens > len(tokens) || digest(tokens[:o.Tokens]) != o.Digest {
		return false
	}
	if len(o.Blocks) == 0 {
		return true
	}
	return o.First >= 0 && o.First+len(o.Blocks) <= len(blocks) && slices.Equal(o.Blocks, blocks[o.First:o.First+len(o.Blocks)])
}

// caches reports whether the rank has a block with the hash on some tier.
func (r *rank) caches(h engine.Hash) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Caches(h)
}

// arrive lets a request continue when its first n missing tokens have arrived.
func (r *rank) arrive(q *engine.Request, n int) {
	r.mu.Lock()
	r.engine.Arrive(q, n)
	r.mu.Unlock()
	r.rouse()
}

// release lets go of the blocks of a lease.
func (r *rank) release(q *engine.Request) {
	r.mu.Lock()
	r.engine.Release(q)
	r.mu.Unlock()
	r.rouse()
}

// leased returns the blocks of a request that has ended, and the number of tokens in them.
func (r *rank) leased(q *engine.Request) (blocks []int32, tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(q.BlockIDs()), q.Computed()
}

// reset empties the prefix cache, and returns false if requests run. SGLang announces a reset immediately, vLLM with
// its next step.
func (r *rank) reset() bool {
	r.mu.Lock()
	ok := r.engine.Reset()
	r.mu.Unlock()
	r.rouse()
	return ok
}

// announceReset publishes the event of a reset immediately if the engine is SGLang, which does not wait for the next
// step.
func (r *rank) announceReset(s *engine.Step) {
	if r.life.cfg.Kind != SGLang {
		return
	}
	r.mu.Lock()
	r.engine.TakeEvents(s)
	r.mu.Unlock()
	r.publish(s.Events)
}

// publish encodes events as one batch and sends it.
func (r *rank) publish(events []engine.Event) {
	if r.life.cfg.Transfer.Connector == Shared {
		r.life.exchange.put(events)
	}
	if r.publisher != nil && len(events) > 0 {
		r.publisher.Publish(r.life.server.wire.encode(&r.batch, r.id, events))
	}
}

func (r *rank) stats() engine.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Stats()
}

func (r *rank) cachedHashes(t block.Tier) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	hashes := []uint64{}
	r.engine.CachedHashes(t, func(h engine.Hash) bool {
		hashes = append(hashes, uint64(h))
		return true
	})
	return hashes
}

// progress counts the generated tokens of one sequence. The rank increases the count, and the HTTP handler waits for
// the signal. All sequences of one HTTP request share the signal.
type progress struct {
	adapter string // path of the request's adapter, which is a part of vLLM's hashes

	transferID string        // id of the sequence for other engines; "": the sequence takes part in no transfer
	decoder    bool          // other engines read its blocks, if at all, for a conversation's next turn
	awaits     chan struct{} // capacity 1; has a value when the engine has blocks for what another engine sends
	mode       string        // transfer_mode in the params; "": the answer has none
	leaseKey   string        // key of the lease of the blocks; "": transferID
	moving     atomic.Bool   // a transfer into the blocks is under way
	room       *room         // where the reader of the sequence's blocks comes; nil: nowhere
	cached     int           // of a sequence whose blocks came from a room: tokens that the other engine had cached
	params     []byte        // kv_transfer_params of the answer, written before the last advance; empty: null

	tokens atomic.Int64
	signal chan struct{} // capacity 1; has a value if tokens grew after the last receive
	lasts  bool          // true: signal only at the end of the sequence
}

func (p *progress) advance(last bool) {
	p.tokens.Add(1)
	if p.lasts && !last {
		return
	}
	select {
	case p.signal <- struct{}{}:
	default:
	}
}
