package doctor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
)

// streams are the event streams of one worker, one for each rank. Any goroutine may use them.
type streams struct {
	all     []*stream
	changed chan struct{} // gets a value after a change; has room for one
	stop    func()        // ends all subscribers and waits for them; may be called again
}

// stream records what one event stream shows. The subscriber calls it as a kvfeed.Handler.
type stream struct {
	source     fleet.EventSource
	subscriber *kvfeed.Subscriber
	changed    chan struct{}

	mu         sync.Mutex // guards the fields below
	failure    error      // why the last connection failed or ended
	whole      bool       // the history was replayed from the first message on
	lost       bool       // messages were lost, or the replay does not begin with the first message
	unnumbered bool
	bad        error // why a message could not be decoded
	decoder    kvevent.Decoder
	batch      kvevent.Batch
	window     []block.Token // tokens of the first prompt that the events must contain; nil: not known
	tail       []block.Token // the last tokens of the stream, at least as many as window
	ours       *announced    // the announcement of the first prompt; nil: not seen
	live       int           // messages since the first prompt was sent
}

// announced is what an event said of the first prompt.
type announced struct {
	made, came time.Time // by the engine's clock, by this machine's clock
	blockSize  int
	sample     block.EngineSample // the beginning of the prompt's chain; without blocks if it is not known
}

// listen subscribes to all event sources that the probe found.
func (e *exam) listen(ctx context.Context) *streams {
	ctx, cancel := context.WithCancel(ctx)
	s := &streams{changed: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	s.stop = func() {
		cancel()
		wg.Wait()
	}
	// Until a replay is given up, newer messages are kept back. So it is given up before the wait for events ends.
	cfg := kvfeed.StreamConfig{ReplayTime: e.options.Listen / 2, Dial: network.Of(e.options.Network).Dial, Listen: network.Of(e.options.Network).Listen}
	for _, source := range e.report.Facts.Events {
		one := &stream{source: source, changed: s.changed}
		one.subscriber = kvfeed.NewSubscriber(source, cfg, one)
		s.all = append(s.all, one)
		wg.Go(func() { // ends with stop
			if err := one.subscriber.Run(ctx); err != nil {
				one.State(false, err)
			}
		})
	}
	return s
}

// await waits until done returns true, at most for the time of Options.Listen. It tells the number of messages once a
// second.
func (e *exam) await(ctx context.Context, s *streams, what string, done func() bool) {
	if len(s.all) == 0 {
		return
	}
	end := time.NewTimer(e.options.Listen)
	defer end.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	e.tell("listening: %s", what)
	for !done() {
		select {
		case <-s.changed:
		case <-second.C:
			e.tell("listening: %s, %d messages so far", what, s.messages())
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *streams) messages() (n uint64) {
	for _, one := range s.all {
		n += one.subscriber.Stats().Messages
	}
	return n
}

// subscribing is how long a new connection without a replay socket gets before the prompts are sent. The engine drops
// messages until it has read the subscription, and no replay would bring them.
const subscribing = 500 * time.Millisecond

// settled reports whether all streams are connected, and their replays have ended.
func (s *streams) settled() bool {
	return !slices.ContainsFunc(s.all, func(one *stream) bool {
		stats := one.subscriber.Stats()
		one.mu.Lock()
		defer one.mu.Unlock()
		if one.source.Replay == "" {
			return !stats.Connected || time.Since(stats.Since) < subscribing
		}
		return !stats.Connected || !one.whole && !one.lost && !one.unnumbered
	})
}

// complete reports whether one of the streams announced the first prompt, or, if its ids are not known, anything.
func (s *streams) complete() bool {
	return slices.ContainsFunc(s.all, func(one *stream) bool {
		one.mu.Lock()
		defer one.mu.Unlock()
		return one.ours != nil || one.window == nil && one.live > 0
	})
}

// expect sets the prompt whose announcement is awaited. The part of the prompt that is compared is its second block, or
// a few more tokens if blocks are small.
func (s *streams) expect(ids []block.Token, size int) {
	w := max(size, 8)
	for _, one := range s.all {
		one.mu.Lock()
		one.live = 0
		if len(ids) >= 3*w {
			one.window = ids[w : 2*w]
		}
		one.mu.Unlock()
	}
}

func (s *stream) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Message implements kvfeed.Handler.
func (s *stream) Message(_ uint64, payload []byte) {
	came := time.Now()
	defer s.wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live++
	if err := s.decoder.Decode(payload, &s.batch); err != nil {
		s.bad = err
		return
	}
	for more := true; more; more = s.decoder.Next(&s.batch) {
		for i := range s.batch.Events {
			s.event(&s.batch.Events[i], s.batch.Time, came)
		}
	}
}

// event looks for the tokens of the first prompt. The caller holds s.mu.
func (s *stream) event(e *kvevent.Event, made float64, came time.Time) {
	if e.Kind != kvevent.Stored || s.window == nil || s.ours != nil {
		return
	}
	s.tail = append(s.tail, e.Tokens...)
	if contains(s.tail, s.window) {
		s.ours = &announced{made: time.UnixMicro(int64(made * 1e6)), came: came, blockSize: e.BlockSize}
		if !e.HasParent && e.Aligned() && !e.Bigram && len(e.Ahead) == 0 {
			s.ours.sample = block.EngineSample{Size: e.BlockSize, Tokens: slices.Clone(e.Tokens), Hashes: slices.Clone(e.Hashes)}
		}
	}
	if n := len(s.tail) - 2*len(s.window); n > 0 {
		s.tail = slices.Delete(s.tail, 0, n)
	}
}

// contains reports whether part is a run of consecutive tokens of all.
func contains(all, part []block.Token) bool {
	for i := 0; i+len(part) <= len(all); i++ {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// set changes the stream under its mutex, and wakes the examination.
func (s *stream) set(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	s.wake()
}

// Restarted implements kvfeed.Handler.
func (s *stream) Restarted(string) { s.set(func() { s.whole = false }) }

// Lost implements kvfeed.Handler.
func (s *stream) Lost(uint64, uint64) { s.set(func() { s.lost = true }) }

// Behind implements kvfeed.Handler.
func (s *stream) Behind(bool) {}

// Complete implements kvfeed.Handler.
func (s *stream) Complete() { s.set(func() { s.whole = true }) }

// Unnumbered implements kvfeed.Handler.
func (s *stream) Unnumbered() { s.set(func() { s.unnumbered = true }) }

// State implements kvfeed.Handler.
func (s *stream) State(_ bool, err error) { s.set(func() { s.failure = err }) }
