package sharedindex

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// left returns how long a key at the server still lives, in milliseconds: -2 is gone, and -1 is for ever.
func left(t *testing.T, s *testenv.ValkeyServer, key string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(command(t, s, "PTTL", key), ":")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The writer's connections are cut off, as when its machine dies: it can not tidy up.
func TestAWriterThatDiesLeavesNothing(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := testenv.StartValkey(t, kind)
			cable := testenv.NewCable(t, s.Address)
			h := start(t, func(c *Config) { c.URL, c.TTL = "valkey://"+cable.Address(), 2*time.Second })
			h.store(0, 1)
			h.store(1, 2)
			h.exact(0, 1)
			h.exact(1, 2)
			cable.Cut()
			testenv.Until(t, "the server is empty", func() bool { return command(t, s, "DBSIZE") == ":0\r\n" })
		})
	}
}

// Nothing changes, so nothing but the refresh keeps the entries. The test moves the time of the refresh, so that it
// does not depend on how busy the machine is.
func TestIdleEntriesOfALivingWriterNeverExpire(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		m, _, prompt, keys := pair(t, s)
		m.index.Store(0, prompt)
		m.settle()
		ttl := m.writer.config.TTL
		if again := time.Until(m.writer.again); again > ttl/2 {
			t.Fatalf("everything is written again in %v, the TTL is %v", again, ttl)
		}
		names := []string{m.writer.names.record(keys[0], keys[0]), m.writer.names.record(keys[16], keys[16])}
		for round := range 3 {
			for _, name := range names {
				if lives := time.Duration(left(t, s, name)) * time.Millisecond; lives <= ttl/2 || lives > ttl {
					t.Errorf("round %d: a record lives for %v, the TTL is %v", round, lives, ttl)
				}
				command(t, s, "PEXPIRE", name, strconv.FormatInt((ttl/2).Milliseconds(), 10)) // half of the TTL is over
			}
			m.writer.again = time.Now()
			m.settle()
		}
		if got := m.match(keys, nil); len(got) != 1 || got[0].Blocks != 20 {
			t.Errorf("%v", got)
		}
		if again := time.Until(m.writer.again); again > ttl/2 || again < ttl/4 {
			t.Errorf("everything is written again in %v, the TTL is %v", again, ttl)
		}
	})
}
