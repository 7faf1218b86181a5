package ingest

import (
	"time"

	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvevent/zmq"
)

// Config tunes a [Manager]. A zero field means its default.
type Config struct {
	// Listen is a ZMQ endpoint to bind for engines that dial the router; their topic kv@<host:port>@<model> says whose
	// events they send. Default "": none.
	Listen string `yaml:"listen"`
	// Silence is how long a holder may send no events while it gets requests before that is called wrong. Default 60 s.
	Silence time.Duration `yaml:"silence"`
	// SilenceRequests is how many requests it must have answered meanwhile. Default 20: a few that were fully cached
	// send none.
	SilenceRequests int `yaml:"silence_requests"`
	// Grace is how long entries are believed after the connection broke. Default 5 s: a reconnect takes less, and
	// evictions that go unseen meanwhile are few.
	Grace time.Duration `yaml:"grace"`
	// UnremovedTTL is how long blocks count on a tier that announces what it stores and never what it drops (LMCache's
	// and Mooncake's connectors), after they were stored last. Default 5 min: the 5 GB that LMCache takes by default
	// are 40,000 tokens of an 8 B model, which a busy engine replaces within minutes. With more memory give it more.
	UnremovedTTL time.Duration `yaml:"unremoved_ttl"`
	// AssumeSalt and AssumeExtraKey say that requests carry cache_salt or extra_key though this router has not seen
	// any: because other clients reach the engines too, or because it was just started. They matter to engines whose
	// events do not tell these keys (SGLang's never tell extra_key): new blocks of such a holder are then not believed.
	// Default false: the keys count from the first request that carries one.
	AssumeSalt     bool `yaml:"assume_salt"`
	AssumeExtraKey bool `yaml:"assume_extra_key"`
	// Seeds are tried when an engine's hash chain is identified, besides vLLM's default. Default "0" and "42".
	Seeds []string `yaml:"seeds"`
	// BlockSize is the configured size of the router's own blocks, in tokens, to say when events show that it is not
	// used. Default 0: none was configured.
	BlockSize int `yaml:"-"`
	// ZMQ bounds each stream. Default zmq.DefaultConfig.
	ZMQ zmq.Config `yaml:"-"`
}

// DefaultConfig is what a zero Config means.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	if c.Silence <= 0 {
		c.Silence = time.Minute
	}
	if c.Grace <= 0 {
		c.Grace = 5 * time.Second
	}
	if c.UnremovedTTL <= 0 {
		c.UnremovedTTL = 5 * time.Minute
	}
	if c.SilenceRequests <= 0 {
		c.SilenceRequests = 20
	}
	if c.Seeds == nil {
		c.Seeds = []string{"0", "42"}
	}
	return c
}

const (
	leastPending = 1 << 20 // what one rank's stream may always keep back, in bytes: some hundred messages
	leastMessage = 8 << 20 // what one rank's message may always have, in bytes: a million tokens have five million
)

// wire bounds one stream of a worker with so many ranks: the ranks divide the memory that one worker may take.
func (c *Config) wire(ranks int) zmq.Config {
	cfg := c.ZMQ
	if cfg.PendingBytes <= 0 {
		cfg.PendingBytes = zmq.DefaultConfig.PendingBytes
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = zmq.DefaultConfig.MaxMessage
	}
	cfg.PendingBytes = max(cfg.PendingBytes/ranks, min(cfg.PendingBytes, leastPending))
	cfg.MaxMessage = max(cfg.MaxMessage/ranks, min(cfg.MaxMessage, leastMessage))
	return cfg
}

func (c *Config) assumed() kvevent.Keys {
	var k kvevent.Keys
	if c.AssumeSalt {
		k |= kvevent.KeySalt
	}
	if c.AssumeExtraKey {
		k |= kvevent.KeyExtra
	}
	return k
}
