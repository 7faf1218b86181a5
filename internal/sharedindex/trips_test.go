package sharedindex

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// recorded is the machine's network. It records the commands that are sent to a server.
type recorded struct {
	network.Network
	mu   sync.Mutex // guards sent
	sent []string   // the names of commands
}

func (n *recorded) Dial(ctx context.Context, net, address string) (net.Conn, error) {
	conn, err := network.Machine.Dial(ctx, net, address)
	return &recordedConn{Conn: conn, network: n}, err
}

// take returns the commands since the last call, without the client's signs of life.
func (n *recorded) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	sent := slices.DeleteFunc(n.sent, func(name string) bool { return name == "PING" })
	n.sent = nil
	return sent
}

type recordedConn struct {
	net.Conn
	network *recorded
	open    []byte // the beginning of a command
}

// Write is called by one goroutine at a time.
func (c *recordedConn) Write(b []byte) (int, error) {
	c.open = append(c.open, b...)
	for {
		name, rest, ok := cutCommand(c.open)
		if !ok {
			break
		}
		c.open = rest
		c.network.mu.Lock()
		c.network.sent = append(c.network.sent, name)
		c.network.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// cutCommand cuts the first command off: an array of strings. ok is false if it is not complete.
func cutCommand(b []byte) (name string, rest []byte, ok bool) {
	words, rest, ok := cutNumber(b, '*')
	for i := range words {
		var n int
		if n, rest, ok = cutNumber(rest, '$'); !ok || len(rest) < n+2 {
			return "", nil, false
		}
		if i == 0 {
			name = strings.ToUpper(string(rest[:n]))
		}
		rest = rest[n+2:]
	}
	return name, rest, ok
}

func cutNumber(b []byte, kind byte) (n int, rest []byte, ok bool) {
	line, rest, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok || len(line) == 0 || line[0] != kind {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(line[1:]))
	return n, rest, err == nil
}

// Prompts of 512 blocks at 8 holders have 20 blocks in common, so they leave a record in its middle. Each command of a
// lookup waits for the answer to the one before.
func TestALookupTakesTwoRoundTripsAtMost(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		for _, cache := range []int64{0, 64 << 20} {
			t.Run(fmt.Sprintf("%s/cache %d", kind, cache), func(t *testing.T) {
				m, prompts := filled(t, kind, 3)
				w := recordReader(t, m, cache)
				all := slices.Repeat([]uint32{512}, 8)
				for _, what := range []string{"cold", "again"} {
					for i, keys := range prompts {
						if blocks := w.look(what, keys); !slices.Equal(blocks, all) {
							t.Errorf("%s: holders have %d blocks of prompt %d", what, blocks, i)
						}
					}
				}
				m.index.Forget(3)
				w.sees("a holder was emptied", prompts, slices.Repeat([]uint32{512}, 7))
				beginning := kvindex.Stored{Tokens: make([]block.Token, 20*16), BlockSize: 16}
				for i := range uint64(20) {
					beginning.Hashes = append(beginning.Hashes, 1<<32+i)
				}
				m.index.Store(3, &beginning)
				w.sees("a holder got blocks", prompts, []uint32{512, 512, 512, 20, 512, 512, 512, 512})
				if w.most != 2 {
					t.Errorf("the longest lookup took %d round trips: the prompts test less than two", w.most)
				}
			})
		}
	}
}

// Writers and learned placements are asked for at the same time.
func TestALookupOfLearnedPlacementsTakesNoMoreRoundTrips(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		for _, cache := range []int64{0, 64 << 20} {
			t.Run(fmt.Sprintf("%s/cache %d", kind, cache), func(t *testing.T) {
				m, prompts := filled(t, kind, 3)
				learn(t, m, prompts)
				w := recordReader(t, m, cache)
				for _, what := range []string{"cold", "again"} {
					for i, keys := range prompts {
						if blocks := w.look(what, keys); !slices.Equal(blocks, slices.Repeat([]uint32{512}, 10)) {
							t.Errorf("%s: holders have %d blocks of prompt %d", what, blocks, i)
						}
					}
				}
				if w.most != 2 {
					t.Errorf("the longest lookup took %d round trips: the prompts test less than two", w.most)
				}
			})
		}
	}
}

// recordedReader is a reader whose commands are recorded. Nothing but lookups uses its connections.
type recordedReader struct {
	*testing.T
	mirrored *mirrored
	reader   *Reader
	wire     *recorded
	most     int // the most commands of a lookup
}

// recordReader returns another reader of what m's writer writes.
func recordReader(t *testing.T, m *mirrored, cache int64) *recordedReader {
	t.Helper()
	w := &recordedReader{T: t, mirrored: m, wire: &recorded{}}
	cfg, parts := m.reader.config, m.reader.parts
	cfg.URL, cfg.ClientCache, parts.Network = "valkey://"+m.bench.server.Address, cache, w.wire
	w.reader = NewReader(cfg, parts)
	client, err := w.reader.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.reader.client.Store(&client)
	w.reader.open(t.Context(), client)
	return w
}

// look returns how many blocks of a prompt each holder has.
func (w *recordedReader) look(what string, keys []block.Key) (blocks []uint32) {
	w.Helper()
	w.reader.table.Store(w.mirrored.reader.table.Load())
	w.wire.take()
	counted := w.reader.Stats().RoundTrips
	q := warmpath.Lookup{BlockSize: 16, Algorithm: block.XXH3, Keys: keys}
	if err := w.reader.Match(context.Background(), &q); err != nil {
		w.Fatal(err)
	}
	sent := w.wire.take()
	if counted = w.reader.Stats().RoundTrips - counted; len(sent) > 2 || int64(len(sent)) != counted {
		w.Errorf("%s: the lookup sent %q, and counted %d round trips", what, sent, counted)
	}
	w.most = max(w.most, len(sent))
	for _, m := range q.Matches {
		blocks = append(blocks, m.Blocks)
	}
	return blocks
}

// sees lets the writer write, and waits until lookups find it. The server tells the reader's cache of changes, which
// takes a moment.
func (w *recordedReader) sees(what string, prompts [][]block.Key, want []uint32) {
	w.Helper()
	w.mirrored.settle()
	for _, keys := range prompts {
		testenv.Until(w, "lookups see that "+what, func() bool { return slices.Equal(w.look(what, keys), want) })
	}
}

// While a connection is closed, the server tells nobody of the changes of what was read through it. A lookup that finds
// all in the cache does not notice.
func TestALostConnectionEmptiesTheCache(t *testing.T) {
	m, prompts := filled(t, "valkey", 1)
	cable := testenv.NewCable(t, m.bench.server.Address)
	cfg := m.reader.config
	cfg.URL, cfg.ClientCache = "valkey://"+cable.Address(), 64<<20
	reader := NewReader(cfg, m.reader.parts)
	client, err := reader.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	reader.client.Store(&client)
	look := func() (blocks []uint32) {
		reader.table.Store(m.reader.table.Load())
		q := warmpath.Lookup{BlockSize: 16, Algorithm: block.XXH3, Keys: prompts[0]}
		if err := reader.Match(context.Background(), &q); err != nil {
			return nil
		}
		for _, m := range q.Matches {
			blocks = append(blocks, m.Blocks)
		}
		return blocks
	}
	testenv.Until(t, "a lookup finds all in the cache", func() bool {
		before := reader.Stats().RoundTrips
		return slices.Equal(look(), slices.Repeat([]uint32{512}, 8)) && reader.Stats().RoundTrips == before
	})
	cable.Cut()
	gone := make([]uint64, 256)
	for i := range gone {
		gone[i] = uint64(3*512 + 256 + i + 1) // the upper half of what holder 3 has
	}
	m.index.Remove(3, block.TierGPU, 0, gone)
	m.settle()
	cable.Mend()
	testenv.Until(t, "lookups see what changed meanwhile", func() bool {
		return slices.Equal(look(), []uint32{512, 512, 512, 256, 512, 512, 512, 512})
	})
}
