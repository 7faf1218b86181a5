package sharedindex

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
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
			p := newProxy(t, s.Address)
			h := start(t, func(c *Config) { c.URL, c.TTL = "valkey://"+p.address, 2*time.Second })
			h.store(0, 1)
			h.store(1, 2)
			h.exact(0, 1)
			h.exact(1, 2)
			p.stop()
			testenv.Until(t, "the server is empty", func() bool { return command(t, s, "DBSIZE") == ":0\r\n" })
		})
	}
}

// Nothing changes, so nothing but the refresh keeps the entries.
func TestIdleEntriesOfALivingWriterNeverExpire(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := testenv.StartValkey(t, kind)
			w := start(t, func(c *Config) { c.URL, c.TTL, c.ClientCache = "valkey://"+s.Address, 6*time.Second, 0 })
			w.store(0, 1)
			w.exact(0, 1)
			keys := w.hasher.Append(nil, w.hasher.Root(block.Scope{}), 0, w.tokens(1), nil)
			record := w.reader.table.Load().names.record(keys[0], keys[0])
			last, rises := left(t, s, record), 0
			if last < 0 || last > 6000 {
				t.Fatalf("a record lives for %d ms, the TTL is 6 s", last)
			}
			testenv.Until(t, "the record was written again, twice", func() bool {
				now := left(t, s, record)
				if now < 0 {
					t.Fatalf("the record is gone: PTTL %d, and %d before", now, last)
				}
				if now > last {
					rises++
				}
				last = now
				return rises == 2
			})
			w.exact(0, 1)
		})
	}
}
