package sharedindex

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// world is a writer and a reader that run, each with a fleet of its own, and the writer's index.
type world struct {
	*testing.T
	hasher         *block.Hasher
	index          *kvindex.Index
	writer         *Writer
	reader         *Reader
	writing, asked *fleet.Fleet
	log            testenv.Buffer
	hash           uint64
}

// start runs a writer and a reader until the test ends.
func start(t *testing.T, change func(*Config), prepare ...func(*world)) *world {
	t.Helper()
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.Lease, cfg.Timeout = 2*time.Second, 300*time.Millisecond
	change(&cfg)
	valid := cfg
	valid.TTL = max(valid.TTL, time.Minute) // tests have no time for more
	if err := valid.Validate(); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, hasher: h, writing: fleetOf(3), asked: fleetOf(3)}
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.writer = NewWriter(cfg, WriterParts{Fleet: w.writing, Algorithm: block.XXH3, Log: log,
		TellAgain: func(_ uint64, holder fleet.Holder, from int) int { return w.index.TellAgain(holder, from) }})
	w.reader = NewReader(cfg, ReaderParts{Fleet: w.asked, Keying: anyKeys, Log: log})
	w.index = kvindex.New(h, kvindex.Config{Changed: w.writer.IndexChanged(warmpath.MadeIndex{Model: "m", BlockSize: 16, Generation: 1})})
	for holder := range fleet.Holder(3) {
		w.writing.SetTrust(holder, fleet.TrustExact, "")
	}
	for _, f := range prepare {
		f(w)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.writer.Run(ctx) })
	running.Go(func() { _ = w.reader.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return w
}

// tokens returns the tokens of a prompt of 40 blocks.
func (w *world) tokens(seed uint64) []block.Token {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]block.Token, 40*16)
	for i := range out {
		out[i] = r.Uint32()
	}
	return out
}

func (w *world) store(holder fleet.Holder, seed uint64) (hashes []uint64) {
	for range 40 {
		w.hash++
		hashes = append(hashes, w.hash)
	}
	w.index.Store(holder, &kvindex.Stored{Hashes: hashes, Tokens: w.tokens(seed), BlockSize: 16, Origin: kvindex.OriginNew})
	return hashes
}

// blocks returns how many blocks of a prompt the shared index claims for a holder, -1 without an answer.
func (w *world) blocks(holder fleet.Holder, seed uint64) int {
	q := warmpath.Lookup{Model: "m", BlockSize: 16, Keys: w.hasher.Append(nil, w.hasher.Root(block.Scope{}), 0, w.tokens(seed), nil)}
	if err := w.reader.Match(context.Background(), &q); err != nil {
		return -1
	}
	for _, m := range q.Matches {
		if m.Holder == holder {
			return int(m.Blocks)
		}
	}
	return 0
}

// answer returns what blocks returns, once the shared index answers: this machine may be so busy that a lookup is late.
func (w *world) answer(holder fleet.Holder, seed uint64) (n int) {
	w.Helper()
	testenv.Until(w, "the shared index answers", func() bool {
		n = w.blocks(holder, seed)
		return n >= 0
	})
	return n
}

func (w *world) trust(holder fleet.Holder) fleet.Trust {
	level, _ := w.asked.Snapshot().Trust(holder)
	return level
}

// table returns what the reader knows now. Tests wait for it, because a busy machine may have lost the connection.
func (w *world) table() (now *table) {
	w.Helper()
	testenv.Until(w, "the reader reads", func() bool {
		now = w.reader.table.Load()
		return now != nil
	})
	return now
}

// exact waits until the reader knows that a holder has a prompt, and trusts it.
func (w *world) exact(holder fleet.Holder, seed uint64) {
	w.Helper()
	testenv.Until(w, fmt.Sprintf("holder %d has prompt %d", holder, seed), func() bool {
		return w.blocks(holder, seed) == 40 && w.trust(holder) == fleet.TrustExact
	})
}

func TestReadersFollowWriters(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		w := start(t, func(c *Config) { c.URL = "redis://" + s.Address })
		hashes := w.store(0, 1)
		w.store(1, 1)
		w.exact(0, 1)
		w.exact(1, 1)
		testenv.Until(t, "a holder is known to be empty", func() bool { return w.blocks(2, 1) == 0 && w.trust(2) == fleet.TrustExact })
		w.index.Remove(0, block.TierGPU, 0, hashes[25:])
		testenv.Until(t, "blocks that were removed are gone", func() bool { return w.blocks(0, 1) == 25 })
		w.index.Forget(1)
		testenv.Until(t, "a holder that was forgotten is gone", func() bool { return w.blocks(1, 1) == 0 })
		w.writing.SetTrust(0, fleet.TrustDegraded, "events are missing")
		testenv.Until(t, "the trust of the writer is that of the reader", func() bool { return w.trust(0) == fleet.TrustDegraded })
	})
}

func TestASocketServesLikeAPort(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	w := start(t, func(c *Config) { c.URL = "unix://" + s.Socket; c.ClientCache = 0; c.Connections = 1 })
	w.store(0, 1)
	w.exact(0, 1)
}

func TestAServerThatIsGoneCostsTrustAndNothingElse(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address })
		w.store(0, 1)
		w.exact(0, 1)
		s.Kill()
		testenv.Until(t, "nobody is trusted", func() bool { return w.blocks(0, 1) == -1 && w.trust(0) == fleet.TrustNone })
		w.store(0, 2) // while the server is gone
		s.Restart()   // it is empty
		w.exact(0, 2)
		w.exact(0, 1)
		if w.writer.Stats().Sessions < 2 {
			t.Errorf("%d sessions", w.writer.Stats().Sessions)
		}
	})
}

func TestAFrozenServerHoldsNoRequestForLong(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address; c.ClientCache = 0 })
	w.store(0, 1)
	w.exact(0, 1)
	s.Pause()
	resume := sync.OnceFunc(s.Resume)
	defer resume()
	for range network.MostLate {
		if n := w.blocks(0, 1); n != -1 {
			t.Errorf("%d blocks from a frozen server", n)
		}
	}
	if w.trust(0) != fleet.TrustNone {
		t.Errorf("trust %v after %d late answers", w.trust(0), network.MostLate)
	}
	began := time.Now()
	for range 100 {
		w.blocks(0, 1) // they do not ask a server that does not answer
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("100 lookups took %v", took)
	}
	resume()
	w.exact(0, 1)
}

func TestAServerThatWasEmptiedIsFilledAgain(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address })
	w.store(0, 1)
	w.exact(0, 1)
	command(t, s, "FLUSHALL")
	testenv.Until(t, "the writer sees it", func() bool { return w.writer.Stats().Sessions > 1 })
	w.exact(0, 1)
}

// A server that evicts may evict the keys by which the index is found.
func TestALostKeyNamesEvictionAsAReason(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address })
	w.store(0, 1)
	for _, c := range []struct{ key, says string }{
		{"warmpath:slots", "counts slots anew"},
		{"warmpath:writer:" + w.writer.id, "lost the writer's description"},
	} {
		testenv.Until(t, c.key+" is missed, and the log says why it may be", func() bool {
			command(t, s, "DEL", c.key)
			for line := range strings.Lines(w.log.String()) {
				if strings.Contains(line, c.says) && strings.Contains(line, "it evicts keys (then raise its maxmemory)") {
					return true
				}
			}
			return false
		})
		w.exact(0, 1)
	}
}

// command sends one inline command to a server.
func command(t *testing.T, s *testenv.ValkeyServer, words ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(c, "$%d\r\n%s\r\n", len(word), word)
	}
	answer := make([]byte, 64<<10)
	n, err := c.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer[:n])
}

// All connections are cut, and slowed down.
func TestConnectionsThatAreCutAndSlow(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	cable := testenv.NewCable(t, s.Address)
	w := start(t, func(c *Config) { c.URL = "valkey://" + cable.Address() })
	gone := w.store(0, 1)
	w.store(1, 1)
	w.exact(0, 1)
	for round := range 3 {
		cable.Cut()
		cable.Mend()
		if round == 0 {
			w.index.Remove(0, block.TierGPU, 0, gone[10:])
		}
		w.store(1, uint64(10+round))
	}
	w.exact(1, 12)
	testenv.Until(t, "blocks that were removed during a cut are gone", func() bool { return w.blocks(0, 1) == 10 })
	cable.SetDelay(20 * time.Millisecond)
	w.store(2, 3)
	w.exact(2, 3)
	cable.SetDelay(2 * time.Second)
	testenv.Until(t, "a server that is too slow is not trusted", func() bool { return w.blocks(2, 3) == -1 && w.trust(2) == fleet.TrustNone })
	cable.SetDelay(0)
	w.exact(2, 3)
}

func TestAFullServerLosesBlocksAndClaimsNone(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address })
		w.store(0, 1)
		w.exact(0, 1)
		hashes := w.store(0, 2)
		w.exact(0, 2)
		command(t, s, "CONFIG", "SET", "maxmemory", "1mb") // less than the server has
		w.store(0, 3)
		testenv.Until(t, "the server refuses blocks", func() bool { return w.writer.Stats().Refused > 0 && w.trust(0) == fleet.TrustDegraded })
		if n := w.blocks(0, 3); n > 0 {
			t.Errorf("%d blocks that the server refused", n)
		}
		w.index.Remove(0, block.TierGPU, 0, hashes[5:])
		testenv.Until(t, "a full server still drops blocks", func() bool { return w.blocks(0, 2) == 5 })
		w.index.Forget(0)
		testenv.Until(t, "a full server forgets holders", func() bool { return w.blocks(0, 2) == 0 })
		command(t, s, "CONFIG", "SET", "maxmemory", "0")
		w.store(0, 3)
		w.exact(0, 3)
	})
}

func TestAPasswordIsAskedForAndNeverShown(t *testing.T) {
	const secret = "corv1d-canary"
	s := testenv.StartValkey(t, "valkey", "--requirepass", secret)
	w := start(t, func(c *Config) { c.URL = "valkey://:" + secret + "@" + s.Address })
	w.store(0, 1)
	w.exact(0, 1)
	if strings.Contains(w.log.String(), secret) {
		t.Errorf("the log has the password:\n%s", w.log.String())
	}
	wrong := start(t, func(c *Config) { c.URL = "valkey://" + s.Address; c.Password = secret + "x" })
	testenv.Until(t, "the log says what is wrong", func() bool { return strings.Contains(wrong.log.String(), "WRONGPASS") })
	if strings.Contains(wrong.log.String(), secret) || wrong.blocks(0, 1) != -1 {
		t.Errorf("%d blocks with a wrong password; the log:\n%s", wrong.blocks(0, 1), wrong.log.String())
	}
}

func TestHostileValuesAreLeftOut(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	// A writer that stood still for a lease would write the values anew.
	w := start(t, func(c *Config) { c.URL, c.ClientCache, c.Lease = "valkey://"+s.Address, 0, 20*time.Second })
	w.store(0, 1)
	w.exact(0, 1)
	keys := w.hasher.Append(nil, w.hasher.Root(block.Scope{}), 0, w.tokens(1), nil)
	first := w.table().names.record(keys[0], keys[0])
	for _, value := range []string{"x", "\x00", "\xff", strings.Repeat("\x10", 100_000), "\x10abc", "\x01\x00\x00\x01\xff\xff\xff"} {
		command(t, s, "SET", first, value)
		if n := w.answer(0, 1); n != 0 {
			t.Errorf("%d blocks with %.10q in the place of a record", n, value)
		}
	}
	command(t, s, "DEL", first)
	command(t, s, "LPUSH", first, "a") // another type
	if n := w.answer(0, 1); n != 0 {
		t.Errorf("%d blocks with a list in the place of a record", n)
	}
	w.index.Forget(0)
	w.store(0, 1) // writers write over what is not theirs
	w.exact(0, 1)
	for i, text := range []string{"{", "null", `{"version":99}`, `{"version":2,"holders":[{"url":"http://worker-1","slot":99999999999}]}`,
		`{"version":2,"holders":[{"url":"http://worker-1","slot":16777216}]}`, `{"version":2,"holders":[{"url":"http://worker-1","slot":3,"block_size":-1}]}`} {
		id := fmt.Sprint("evil", i)
		command(t, s, "SET", "warmpath:writer:"+id, text)
		command(t, s, "ZADD", "warmpath:writers", fmt.Sprint(time.Now().UnixMilli()), id)
	}
	command(t, s, "LPUSH", "warmpath:writer:list", "a")
	testenv.Until(t, "bad descriptions are counted", func() bool { return w.reader.Stats().Invalid > 5 })
	w.exact(0, 1)
}

// Two writers know the same worker. When one of them dies, the entries of the other count, and after its lease nothing
// of it counts.
func TestTwoWritersOfOneWorkerDoNotDisturbEachOther(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	b := newBench(t, s, 3)
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	one, two := b.mirror(h, kvindex.Config{}), b.mirror(h, kvindex.Config{})
	two.writer.names, two.reader.names = one.writer.names, one.reader.names
	tokens := make([]block.Token, 320)
	keys := h.Append(nil, h.Root(block.Scope{}), 0, tokens, nil)
	stored := kvindex.Stored{Tokens: tokens, BlockSize: 16}
	for i := range uint64(20) {
		stored.Hashes = append(stored.Hashes, i+1)
	}
	want := func(what string, blocks uint32) {
		t.Helper()
		one.settle()
		two.settle()
		got := uint32(0)
		for _, m := range two.match(keys, nil) {
			got = m.Blocks
		}
		if got != blocks {
			t.Errorf("%s: %d blocks, want %d", what, got, blocks)
		}
	}
	one.index.Store(0, &stored)
	two.index.Store(0, &stored)
	want("both know it", 20)
	one.index.Remove(0, block.TierGPU, 0, stored.Hashes[8:])
	two.index.Remove(0, block.TierGPU, 0, stored.Hashes[8:])
	want("both dropped blocks", 8)
	one.index.Forget(0)
	want("one forgot it", 8)
	one.index.Store(0, &stored)
	two.index.Forget(0)
	want("the other forgot it", 20)
	one.writer.leave(context.Background(), b.client)
	if err := two.reader.follow(context.Background(), b.client); err != nil {
		t.Fatal(err)
	}
	if m := two.match(keys, nil); len(m) != 0 {
		t.Errorf("a writer that left still counts: %v", m)
	}
}

// A shard of a cluster that failed may give a slot twice.
func TestASlotThatAnotherWriterHasIsGivenUp(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	m, _, prompt, keys := pair(t, s)
	m.index.Store(0, prompt)
	m.settle()
	slot := m.writer.mirror.copies()[0].slot
	other := description{Version: descriptionVersion, Serial: 1, Series: []byte(m.writer.names.series), Holders: []holderEntry{{URL: "http://elsewhere", Slot: slot, BlockSize: 16}}}
	text, err := json.Marshal(&other)
	if err != nil || slot == 0 {
		t.Fatal(err, slot)
	}
	command(t, s, "SET", m.writer.names.writer("other"), string(text))
	command(t, s, "ZADD", m.writer.names.writers(), fmt.Sprint(time.Now().UnixMilli()), "other")
	m.writer.listed = time.Time{} // it looks at the other writers
	m.settle()
	m.settle() // a writer that runs is woken
	if now := m.writer.mirror.copies()[0].slot; now == slot || now == 0 {
		t.Errorf("the holder has slot %d, and another writer has slot %d", now, slot)
	}
	if got := m.match(keys, nil); len(got) != 1 || got[0].Blocks != 20 {
		t.Errorf("%v", got)
	}
}

// Entries of dead slots do not stay in records that live on.
func TestRecordsInUseDoNotGrow(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	b := newBench(t, s, 3)
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	m := b.mirror(h, kvindex.Config{})
	tokens := make([]block.Token, 16*16)
	keys := h.Append(nil, h.Root(block.Scope{}), 0, tokens, nil)
	stored := kvindex.Stored{Tokens: tokens, BlockSize: 16}
	for i := range uint64(16) {
		stored.Hashes = append(stored.Hashes, i+1)
	}
	for range 20 {
		m.index.Store(0, &stored)
		m.index.Store(1, &stored)
		m.settle()
		m.index.Forget(0)
	}
	value, err := b.client.Do(context.Background(), b.client.B().Get().Key(m.writer.names.record(keys[0], keys[0])).Build()).ToString()
	if rec, ok := decodeRecord(value); err != nil || !ok || rec.blocks != 16 || len(rec.entries) > 3*entryBytes {
		t.Errorf("a record of %d bytes: %v", len(value), err)
	}
}

func TestTheCacheHearsOfChanges(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address; c.ClientCache = 1 << 20 })
		hashes := w.store(0, 1)
		w.exact(0, 1)
		testenv.Until(t, "a lookup finds all in the cache", func() bool {
			before := w.reader.Stats()
			return w.blocks(0, 1) == 40 && w.reader.Stats().CacheMiss == before.CacheMiss
		})
		w.index.Remove(0, block.TierGPU, 0, hashes[2:])
		testenv.Until(t, "the cache forgets blocks that were removed", func() bool { return w.blocks(0, 1) == 2 })
		w.store(1, 1)
		w.exact(1, 1)
	})
}

func TestAServerHasItsOwnTLS(t *testing.T) {
	authority := testenv.NewAuthority(t)
	dir, port := t.TempDir(), strconv.Itoa(testenv.FreePort(t))
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	authority.Issue(cert, key, 2, "cache.internal")
	testenv.StartValkey(t, "redis", "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority.File)
	secured := func(files network.PeerTLS) *world {
		return start(t, func(c *Config) { c.URL, c.TLS = "rediss://127.0.0.1:"+port, files })
	}
	w := secured(network.PeerTLS{CAFile: authority.File, CertFile: cert, KeyFile: key, ServerName: "cache.internal"})
	w.store(0, 1)
	w.exact(0, 1)
	for what, files := range map[string]network.PeerTLS{
		"signed by unknown authority": {CertFile: cert, KeyFile: key},
		"not other.internal":          {CAFile: authority.File, CertFile: cert, KeyFile: key, ServerName: "other.internal"},
		"certificate required":        {CAFile: authority.File},
	} {
		w := secured(files)
		testenv.Until(t, "the log says: "+what, func() bool { return strings.Contains(w.log.String(), what) })
		if n := w.blocks(0, 1); n != -1 {
			t.Errorf("%s: %d blocks", what, n)
		}
	}
}

func TestADatabaseIsThatOfTheConfiguration(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		w := start(t, func(c *Config) { c.URL, c.Database = "valkey://"+s.Address, 3 })
		other := start(t, func(c *Config) { c.URL, c.Database = "valkey://"+s.Address, 4 })
		w.store(0, 1)
		other.store(1, 2)
		w.exact(0, 1)
		other.exact(1, 2)
		if a, b := w.answer(1, 2), other.answer(0, 1); a != 0 || b != 0 {
			t.Errorf("%d and %d blocks of another database", a, b)
		}
		if info := command(t, s, "INFO", "keyspace"); strings.Contains(info, "db0:") || !strings.Contains(info, "db3:") {
			t.Errorf("the databases in use:\n%s", info)
		}
	})
}

// Three servers with a third of the slots each. A row is at one of them, and descriptions and counters are at others.
func TestAClusterOfThreeServersServesLikeOne(t *testing.T) {
	var all []*testenv.ValkeyServer
	var buses []string
	for range 3 {
		bus := strconv.Itoa(testenv.FreePort(t))
		all = append(all, testenv.StartValkey(t, "valkey", "--cluster-enabled", "yes", "--cluster-port", bus))
		buses = append(buses, bus)
	}
	for i, slots := range [][2]string{{"0", "5460"}, {"5461", "10922"}, {"10923", "16383"}} {
		command(t, all[i], "CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1])
		host, port, _ := net.SplitHostPort(all[i].Address)
		command(t, all[0], "CLUSTER", "MEET", host, port, buses[i])
	}
	for _, s := range all {
		testenv.Until(t, "the cluster is ready", func() bool {
			info := command(t, s, "CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	w := start(t, func(c *Config) {
		c.URL, c.Cluster = "valkey://"+all[0].Address+","+all[1].Address, true
		c.Timeout = 5 * time.Second
	})
	var hashes [20][]uint64
	for seed := range uint64(20) {
		hashes[seed] = w.store(0, seed)
	}
	for seed := range uint64(20) {
		w.exact(0, seed)
		w.index.Remove(0, block.TierGPU, 0, hashes[seed][21:])
	}
	testenv.Until(t, "blocks that were removed are gone", func() bool {
		for seed := range uint64(20) {
			if w.blocks(0, seed) != 21 {
				return false
			}
		}
		return true
	})
	for i, s := range all {
		if command(t, s, "KEYS", "warmpath:b*") == "*0\r\n" {
			t.Errorf("server %d has no record", i)
		}
	}
}

// In a cluster a row is at one shard, and a command has the keys of one row only.
func TestAClusterServesLikeOneServer(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		t.Run(kind, func(t *testing.T) {
			s := clusterOfOne(t, kind)
			w := start(t, func(c *Config) { c.URL, c.Cluster = "valkey://"+s.Address, true })
			hashes := w.store(0, 1)
			w.exact(0, 1)
			w.index.Remove(0, block.TierGPU, 0, hashes[21:])
			testenv.Until(t, "blocks that were removed are gone", func() bool { return w.blocks(0, 1) == 21 })
		})
	}
}

// clusterOfOne starts a server that is a cluster.
func clusterOfOne(t *testing.T, kind string) *testenv.ValkeyServer {
	t.Helper()
	s := testenv.StartValkey(t, kind, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(testenv.FreePort(t)))
	command(t, s, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	testenv.Until(t, "the cluster is ready", func() bool { return strings.Contains(command(t, s, "CLUSTER", "INFO"), "cluster_state:ok") })
	return s
}
