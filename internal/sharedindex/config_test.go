package sharedindex

import (
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

func TestSettingsAreChecked(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*Config)
		want   string // "": valid
	}{
		{"Valkey", func(c *Config) { c.URL = "valkey://host" }, ""},
		{"Redis with TLS and a user", func(c *Config) { c.URL = "rediss://user:word@host:6380" }, ""},
		{"a socket", func(c *Config) { c.URL = "unix:///run/valkey.sock" }, ""},
		{"a cluster", func(c *Config) { c.URL, c.Cluster = "redis://a:1,b:2", true }, ""},
		{"hosts without a cluster", func(c *Config) { c.URL = "redis://a,b" }, "url: several hosts are a cluster: set index.valkey.cluster: true"},
		{"hosts with ports without a cluster", func(c *Config) { c.URL = "redis://a:1,b:2" }, "url: several hosts are a cluster"},
		{"no address", func(c *Config) { c.URL = "" }, "url: the address of the server is missing"},
		{"another scheme", func(c *Config) { c.URL = "http://host" }, "url: the scheme"},
		{"no host", func(c *Config) { c.URL = "redis://" }, "url: the host is missing"},
		{"no path", func(c *Config) { c.URL = "unix://" }, "url: the path of the socket is missing"},
		{"a database in the URL", func(c *Config) { c.URL = "redis://host/3" }, "database"},
		{"options in the URL", func(c *Config) { c.URL = "redis://host?db=3" }, "url: it has a query"},
		{"two users", func(c *Config) { c.URL, c.Username = "redis://a:b@host", "c" }, "url: it has a user"},
		{"TLS without TLS", func(c *Config) { c.TLS = network.PeerTLS{ServerName: "x"} }, "tls: "},
		{"half a certificate", func(c *Config) { c.URL = "rediss://h"; c.TLS.CertFile = "x" }, "tls: cert_file and key_file"},
		{"a hash tag", func(c *Config) { c.Prefix = "a{b}" }, "prefix: "},
		{"a database of a cluster", func(c *Config) { c.Cluster, c.Database = true, 1 }, "database: a cluster has only"},
		{"a socket of a cluster", func(c *Config) { c.URL, c.Cluster = "unix:///x", true }, "cluster: "},
		{"a short life", func(c *Config) { c.TTL = time.Second }, "ttl: "},
		{"no lease", func(c *Config) { c.Lease = 0 }, "lease: "},
		{"no wait", func(c *Config) { c.Timeout = -1 }, "lookup_timeout: "},
		{"three connections", func(c *Config) { c.Connections = 3 }, "connections: "},
		{"a negative cache", func(c *Config) { c.ClientCache = -1 }, "client_cache: "},
		{"no queue", func(c *Config) { c.Queue = 0 }, "queue: "},
	} {
		cfg := DefaultConfig()
		cfg.URL = "valkey://host:6379"
		c.change(&cfg)
		switch err := cfg.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestNoErrorShowsThePassword(t *testing.T) {
	const secret = "corv1d-canary"
	for _, url := range []string{"redis://a:" + secret + "@h:x", "http://a:" + secret + "@h", "redis://a:" + secret + "@h/1", "://" + secret} {
		cfg := DefaultConfig()
		cfg.URL = url
		if err := cfg.Validate(); err == nil || strings.Contains(err.Error(), secret) || strings.Contains(cfg.Address(), secret) {
			t.Errorf("%s: %v, %s", url, err, cfg.Address())
		}
	}
}

// docs/shared-index.md gives reasons for these values.
func TestTheDefaultsAreThoseOfTheDocumentation(t *testing.T) {
	want := Config{
		Prefix: "warmpath:", TTL: time.Hour, Lease: 5 * time.Second, Timeout: 20 * time.Millisecond, Connections: 4, ClientCache: 16 << 20, Queue: 65536,
	}
	if c := DefaultConfig(); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	if network.MostLate != 8 || beatsPerLease != 10 {
		t.Errorf("%d late lookups, %d signs of life in a lease", network.MostLate, beatsPerLease)
	}
	if p := NewPlacements(want, PlacementsParts{}); p.patience != 3*time.Second || maxPlaced != 1<<16 || maxPlacedKeys != 1<<23 {
		t.Errorf("placements wait %v, at most %d with %d keys", p.patience, maxPlaced, maxPlacedKeys)
	}
	if n := newNames(want); n.lastSlot != 1<<24-1 {
		t.Errorf("the last slot is %d", n.lastSlot)
	}
}
