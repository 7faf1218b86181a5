package publish

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a component until the test ends, or until stop is called.
func run(t testing.TB, component func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- component(ctx) }() // ends when ctx ends; stop waits
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t testing.TB, cfg Config) *KVPublisher {
	t.Helper()
	p := New(cfg)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	return p
}

// reader is a handler that keeps what a kvfeed.Subscriber hands over.
type reader struct {
	mu       sync.Mutex
	blocked  chan struct{} // not nil: Message waits until it is closed
	payloads map[uint64]string
	next     uint64
	complete bool
	lost     uint64
	restarts int
}

func (r *reader) Message(seq uint64, payload []byte) {
	if r.blocked != nil {
		<-r.blocked
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.payloads[seq], r.next = string(payload), seq+1
}
func (r *reader) Restarted(string) { r.mu.Lock(); r.restarts++; r.mu.Unlock() }
func (r *reader) Lost(from, to uint64) {
	r.mu.Lock()
	r.lost += max(to, from+1) - from
	r.mu.Unlock()
}
func (r *reader) Behind(bool)       {}
func (r *reader) Complete()         { r.mu.Lock(); r.complete = true; r.mu.Unlock() }
func (r *reader) Unnumbered()       {}
func (r *reader) State(bool, error) {}

// has reports whether the reader has the messages before next, and believes that nothing is missing.
func (r *reader) has(next uint64) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.next == next && r.complete
	}
}

func follow(t testing.TB, p *KVPublisher, r *reader) *kvfeed.Subscriber {
	t.Helper()
	r.payloads = map[uint64]string{}
	s := kvfeed.NewSubscriber(fleet.EventSource{Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), Topic: p.cfg.Topic}, kvfeed.StreamConfig{}, r)
	run(t, s.Run)
	return s
}

func TestASubscriberHasEveryMessage(t *testing.T) {
	p := listen(t, Config{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*", Topic: "kv@a", BlockSize: 2})
	run(t, p.Run)
	for i := range 3 { // before anybody listens: only the replay has these messages
		if seq, err := p.PublishStored(Stored{TokenIDs: []block.Token{1, 2}, BlockHashes: []Hash{Hash(i)}}); err != nil || seq != uint64(i) {
			t.Fatalf("message %d, error %v", seq, err)
		}
	}
	var r reader
	s := follow(t, p, &r)
	testenv.Until(t, "the subscriber has the first messages", r.has(3))
	p.DropSubscribers()
	if _, err := p.PublishRemoved(Removed{BlockHashes: []Hash{0, 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.PublishCleared(); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, "the subscriber has all messages", r.has(5))
	var d kvevent.Decoder
	var b kvevent.Batch
	if err := d.Decode([]byte(r.payloads[3]), &b); err != nil || len(b.Events) != 1 || b.Events[0].Kind != kvevent.Removed || len(b.Events[0].Hashes) != 2 {
		t.Errorf("message 3 is %+v, %v", b.Events, err)
	}
	if now := float64(time.Now().UnixMicro()) / 1e6; b.Time > now || b.Time < now-60 {
		t.Errorf("message 3 has time %f, now is %f", b.Time, now)
	}
	if st := p.Stats(); st.Published != 5 || st.Kept != 5 || st.Replays == 0 || st.Malformed != 0 || s.Stats().Restarts != 0 {
		t.Errorf("stats %+v, %+v", st, s.Stats())
	}
}

// A subscriber that reads nothing costs others nothing. Messages beyond its queue are dropped and counted, and it has
// them by replay when it reads again.
func TestASlowSubscriberCostsOnlyItself(t *testing.T) {
	p := listen(t, Config{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*", QueueMessages: 4, QueueBytes: 1 << 20})
	run(t, p.Run)
	slow := reader{blocked: make(chan struct{})}
	followed := follow(t, p, &slow)
	payload := make([]byte, 256<<10)
	testenv.Until(t, "messages for the slow subscriber are dropped", func() bool {
		p.Send(payload)
		return p.Stats().Dropped > 0
	})
	var quick reader
	follow(t, p, &quick)
	n := p.Stats().Published
	testenv.Until(t, "the quick subscriber has all messages", quick.has(n))
	close(slow.blocked)
	p.Send(payload) // shows the gap
	testenv.Until(t, "the slow subscriber has all messages", slow.has(n+1))
	if st := followed.Stats(); st.Lost != 0 || st.Replays == 0 {
		t.Errorf("the slow subscriber: %+v", st)
	}
}

func TestTheReplayBufferIsBounded(t *testing.T) {
	p := New(Config{Endpoint: "tcp://127.0.0.1:*", BufferSteps: 5, BufferBytes: 100})
	replay := func(start uint64) (seqs []uint64) {
		p.Answer([][]byte{nil, binary.BigEndian.AppendUint64(nil, start)}, func(parts ...[]byte) error {
			seqs = append(seqs, binary.BigEndian.Uint64(parts[2]))
			return nil
		})
		return seqs
	}
	expect := func(start, first, next uint64) {
		t.Helper()
		got := replay(start)
		if len(got) != int(next-first)+1 || got[len(got)-1] != EndSeq || got[0] != first && first != next {
			t.Errorf("from %d: messages %d, want %d to %d and the end", start, got, first, next)
		}
	}
	expect(0, 0, 0)
	for range 12 {
		p.Send(make([]byte, 10))
	}
	expect(0, 7, 12)
	expect(9, 9, 12)
	expect(12, 12, 12)
	p.Send(make([]byte, 65)) // leaves room for three of ten bytes
	expect(0, 9, 13)
	p.Send(make([]byte, 500)) // the last message is always kept
	expect(0, 13, 14)
	for range 7 {
		p.Send(nil)
	}
	expect(0, 16, 21)
	if st := p.Stats(); st.Kept != 5 || p.kept.bytes != 0 {
		t.Errorf("stats %+v, %d bytes", st, p.kept.bytes)
	}
	p.Answer([][]byte{[]byte("x"), nil}, nil)
	p.Answer([][]byte{nil, make([]byte, 9)}, nil)
	if st := p.Stats(); st.Malformed != 2 {
		t.Errorf("%d malformed requests", st.Malformed)
	}
}

// A replay that its reader takes slowly has the messages that are still kept when the reader comes to them. The reader
// sees the gap by the numbers.
func TestASlowReplayPinsNoMemory(t *testing.T) {
	p := New(Config{Endpoint: "tcp://127.0.0.1:*", BufferSteps: 200})
	for range 200 {
		p.Send([]byte("x"))
	}
	var seqs []uint64
	p.Answer([][]byte{nil, {0}}, func(parts ...[]byte) error {
		if seqs = append(seqs, binary.BigEndian.Uint64(parts[2])); len(seqs) == 1 {
			for range 150 {
				p.Send([]byte("y"))
			}
		}
		return nil
	})
	if seqs[63] != 63 || seqs[64] != 150 || len(seqs) != 64+50+1 {
		t.Errorf("messages %d", seqs)
	}
	gone, n := errors.New("gone"), 0
	p.Answer([][]byte{nil, {0}}, func(...[]byte) error { n++; return gone })
	if n != 1 {
		t.Errorf("%d messages were sent to a reader that is gone", n)
	}
}

func TestEachRankHasItsPorts(t *testing.T) {
	for _, c := range []struct{ endpoint, replay, want, wantReplay string }{
		{"tcp://*:5557", "tcp://127.0.0.1:5657", "tcp://*:5560", "tcp://127.0.0.1:5660"},
		{"tcp://[::1]:5557", "", "tcp://[::1]:5560", ""},
		{"tcp://127.0.0.1:*", "tcp://*:0", "tcp://127.0.0.1:*", "tcp://*:0"},
	} {
		p := New(Config{Endpoint: c.endpoint, Replay: c.replay, Rank: 3})
		if p.Endpoint() != c.want || p.ReplayEndpoint() != c.wantReplay || p.invalid != nil {
			t.Errorf("%+v: %s, %s, %v", c, p.Endpoint(), p.ReplayEndpoint(), p.invalid)
		}
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	busy := listen(t, Config{Endpoint: "tcp://127.0.0.1:*"})
	run(t, busy.Run)
	ipc := "ipc://" + filepath.Join(t.TempDir(), "s")
	for _, c := range []struct {
		cfg  Config
		want string
		is   error
	}{
		{Config{}, "tcp://", ErrEvents},
		{Config{Endpoint: "udp://a:1"}, "udp", ErrEvents},
		{Config{Endpoint: "tcp://*:1", Replay: "nonsense"}, "nonsense", ErrReplay},
		{Config{Endpoint: busy.Endpoint()}, "in use", ErrEvents},
		{Config{Endpoint: "tcp://127.0.0.1:*", Replay: busy.Endpoint()}, "in use", ErrReplay},
		{Config{Endpoint: "tcp://*:5557", Connect: true}, "dialled", ErrEvents},
		{Config{Endpoint: ipc, Rank: 1}, "no port", ErrEvents},
		{Config{Endpoint: "tcp://*:65535", Rank: 1}, "leaves no port", ErrEvents},
		{Config{Endpoint: "tcp://*:1", Rank: -1}, "rank", ErrEvents},
		{Config{Endpoint: "tcp://*:1", BlockSize: -1}, "block size", nil},
		{Config{Endpoint: "tcp://*:1", BufferSteps: -1, QueueBytes: -5}, "buffer steps -1 is negative\nqueue bytes -5", nil},
		{Config{Endpoint: "tcp://*:1", Topic: "\xff"}, "topic", nil},
	} {
		p := New(c.cfg)
		err := p.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	if _, err := New(Config{Endpoint: "tcp://*:1", BlockSize: -1}).PublishCleared(); err == nil {
		t.Error("a publisher with wrong settings publishes")
	}
	if _, err := New(Config{Endpoint: "tcp://*:1"}).PublishStored(Stored{TokenIDs: make([]block.Token, 0), BlockHashes: make([]Hash, 8<<20)}); !errors.Is(err, nil) {
		t.Errorf("eight million hashes: %v", err)
	}
	many := make([]Hash, 9<<20)
	for i := range many {
		many[i] = 1 << 63
	}
	if _, err := New(Config{Endpoint: "tcp://*:1"}).PublishRemoved(Removed{BlockHashes: many}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("81 MB of hashes: %v", err)
	}
	if _, err := HashBlocks(nil, 0, nil, "", ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("blocks of no tokens: %v", err)
	}
	if _, err := HashBlocks(nil, 1, []byte{1}, "", ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("a parent of one byte: %v", err)
	}
}

func TestTheLibrariesHaveOneVersion(t *testing.T) {
	versions := map[string]string{}
	for path, pattern := range map[string]string{
		"python/src/warmpath_publish/__init__.py": `(?m)^__version__ = "(.*)"$`,
		"c/include/warmpath_kv.h":                 `(?m)^#define WARMPATH_KV_VERSION "(.*)"$`,
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(pattern).FindSubmatch(text); m != nil {
			versions[string(m[1])] = path
		}
	}
	if len(versions) != 1 {
		t.Errorf("versions %v", versions)
	}
}

// Publishing allocates for the payload that is kept, not for the events.
func BenchmarkPublishStored(b *testing.B) {
	p := New(Config{Endpoint: "tcp://127.0.0.1:*", BlockSize: 16})
	tokens := make([]block.Token, 16*32)
	for i := range tokens {
		tokens[i] = block.Token(i * 97)
	}
	hashes := make([]Hash, 32)
	b.SetBytes(32)
	b.ReportAllocs()
	for b.Loop() {
		hashes[0]++
		if _, err := p.PublishStored(Stored{TokenIDs: tokens, BlockHashes: hashes}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAnAddressOfAnotherMachineIsExplained(t *testing.T) {
	for _, c := range []Config{{Endpoint: "tcp://192.0.2.1:5557"}, {Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://192.0.2.1:5657"}} {
		if err := New(c).Listen(); err == nil || !strings.Contains(err.Error(), "write tcp://*:PORT") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
