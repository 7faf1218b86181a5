package kvfeed

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// Config are the settings of a [Feed]. A zero field means its default. The tags are the names in the section "events"
// of the configuration file of warmpath serve.
type Config struct {
	// Listen is a ZMQ endpoint to bind for engines that connect to the router. Their topic kv@<host:port>@<model> names
	// the worker. Default "": none.
	Listen string `yaml:"listen"`
	// Silence is how long a holder may send no events while it gets requests. After this time the log has a warning,
	// and the holder counts as silent until its next event. If the holder has announced no block yet, its trust is then
	// approximate. Otherwise its trust is degraded if the worker has no replay endpoint, and stays as it is if the
	// worker has one: the replays have shown that no event is missing. Default 60 s.
	Silence time.Duration `yaml:"silence"`
	// SilenceRequests is how many requests must have ended since the holder's last event before the holder counts as
	// silent. Default 20: a few requests whose prompts are fully cached cause no events.
	SilenceRequests int `yaml:"silence_requests"`
	// Grace is how long the holder's entries in the index are believed, with trust degraded, after its connection
	// broke. Then the trust is none. Default 5 s: a reconnect takes less, and in this time the router misses few
	// evictions.
	Grace time.Duration `yaml:"grace"`
	// UnremovedTTL is how long a block counts as cached after it was stored on a tier that announces no removals
	// (LMCache's and Mooncake's connectors). Default 5 min: LMCache's default memory of 5 GB holds 40,000 tokens of an
	// 8 B model, which a busy engine replaces within minutes. Set it higher if the tier has more memory.
	UnremovedTTL time.Duration `yaml:"unremoved_ttl"`
	// AssumeSalt and AssumeExtraKey tell the feed that requests carry cache_salt or extra_key, even if this router has
	// not seen such a request. Set them when other clients use the engines too. The settings matter for engines whose
	// events do not contain these keys (SGLang's events never contain extra_key): new blocks of such an engine are then
	// not stored, unless the feed finds the keys by the blocks' hashes. Default false: blocks are stored until this
	// router sees the first request with such a key.
	AssumeSalt     bool `yaml:"assume_salt"`
	AssumeExtraKey bool `yaml:"assume_extra_key"`
	// Seeds are values of an engine's PYTHONHASHSEED. The feed tries them, and vLLM's default, to find out how the engine
	// hashes its blocks. The result is only shown. Default "0" and "42".
	Seeds []string `yaml:"seeds"`
	// BlockSize is the value of warmpath.Options.BlockSize, in tokens. It is used only for a warning: if an engine's
	// blocks are smaller, the router uses the smaller size, but at least 16, and the log has a line about it. Default
	// 0: no warning.
	BlockSize int `yaml:"-"`
	// Elsewhere says that another process follows the events, and that the router asks that process's index. The feed then
	// follows no engine and sets no trust. It still forgets what the router learned of holders that left.
	Elsewhere bool `yaml:"-"`
	// Unrouted says that this process sends no requests to the engines, and so learns nothing from requests. It changes
	// the words of reasons and warnings.
	Unrouted bool `yaml:"-"`
	// Stream has the settings of each stream: times, retries, and bounds of memory. PendingBytes and MaxMessage are
	// divided among the ranks of a worker. Default [DefaultStreamConfig].
	Stream StreamConfig `yaml:"-"`
}

// DefaultConfig returns a Config with each default in its field, except that Stream is zero, which means
// [DefaultStreamConfig]. It means the same as Config{}.
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
	leastPending = 1 << 20 // lowest PendingBytes of one rank: room for some hundred messages
	leastMessage = 8 << 20 // lowest MaxMessage of one rank: an event of a million tokens takes 5 MB
)

// wire returns the settings of one stream of a worker. The ranks of a worker share the memory that one worker may take.
func (c *Config) wire(ranks int) StreamConfig {
	cfg := c.Stream
	if cfg.PendingBytes <= 0 {
		cfg.PendingBytes = DefaultStreamConfig().PendingBytes
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = DefaultStreamConfig().MaxMessage
	}
	cfg.PendingBytes = max(cfg.PendingBytes/ranks, min(cfg.PendingBytes, leastPending))
	cfg.MaxMessage = max(cfg.MaxMessage/ranks, min(cfg.MaxMessage, leastMessage))
	return cfg
}

// learned ends the reason of a trust that the router makes up for by what it learns from its own requests.
func (c *Config) learned(separator string) string {
	if c.Unrouted {
		return ""
	}
	return separator + fleet.LearnedFromRequests
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
