package tokens

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what finding tokens may cost.
type Config struct {
	// Discover has the router find the models' files by itself, at the path that an engine reports, in this machine's
	// Hugging Face cache, and on the hub where hub.allow is set. They are used once their ids equal the engine's in
	// every probe. False asks engines for the ids of every model that is not under models.
	Discover bool `yaml:"discover"`
	// Budget is how long a request waits for its token ids at most before it is matched by its text. It waits for a
	// tenth of what a match is expected to save (its prompt's length times what a token takes to compute times the
	// chance that anything is cached), 10 ms at least: an engine answers in 3–5 ms when it is not busy
	// (facts/engines.md §9.3). 500 ms is what a prompt of 100,000 tokens waits that takes 5 s to compute; a longer wait
	// would be felt. 0 asks nobody: only ids in the body and those that are made here count.
	Budget time.Duration `yaml:"budget"`
	// MaxPromptBytes is the longest request body for which an engine is asked: each question copies it, and a megabyte
	// takes a tokenizer longer than Budget. 4 MiB are some million tokens. What is longer is matched by its text. All
	// questions under way take at most 16 times as much; what finds no room is matched by its text, too.
	MaxPromptBytes int64 `yaml:"max_prompt_bytes"`
	// CacheBytes bounds the memory of remembered prompts and of the beginnings that they have in common; questions that
	// nobody waits for take up to an eighth of it beside. 64 MiB hold 16 million ids: 2,000 prompts of 8,000 tokens.
	CacheBytes int64 `yaml:"cache_bytes"`
	// Failures is how many calls to a worker must fail in a row before it is left alone for Pause: refused connections,
	// 5xx, answers that are none, no answer within 10 s. A slower answer than usual is no failure. Where all were 500 or
	// no answer to prompts of one client, it is left alone for that client. 3: one or two happen when an engine is
	// restarted.
	Failures int `yaml:"failures"`
	// Pause is how long a failing worker is left alone before one call tries it again. 5 s, as often as health checks.
	Pause time.Duration `yaml:"pause"`
	// Service is a tokenizer service that is asked before any engine: unix:///run/tokenizer.sock or http://host:port,
	// as `vllm launch render` serves it (docs/api.md has the protocol). Its ids are taken at their word. Empty is none.
	Service string `yaml:"service"`
	// Forward is off, or auto: an engine then gets the ids in place of the text where that is proven to lose nothing
	// (docs/api.md has the rule), so that it does not tokenize again. Off by default: bodies pass byte for byte.
	Forward string `yaml:"forward"`
}

// The values of Config.Forward.
const (
	ForwardOff  = "off"
	ForwardAuto = "auto"
)

// DefaultConfig waits up to 500 ms and remembers 64 MiB.
func DefaultConfig() Config {
	return Config{Discover: true, Budget: 500 * time.Millisecond, MaxPromptBytes: 4 << 20, CacheBytes: 64 << 20, Failures: 3, Pause: 5 * time.Second,
		Forward: ForwardOff}
}

// Validate returns all problems of c, each beginning with the name of its field.
func (c Config) Validate() error {
	var problems []error
	if c.Budget < 0 || c.Budget > 10*time.Second {
		problems = append(problems, fmt.Errorf("budget: %v is outside 0s..10s", c.Budget))
	}
	if c.MaxPromptBytes < 1024 {
		problems = append(problems, fmt.Errorf("max_prompt_bytes: %d is below 1024", c.MaxPromptBytes))
	}
	if c.CacheBytes < 0 {
		problems = append(problems, fmt.Errorf("cache_bytes: %d is negative", c.CacheBytes))
	}
	if c.Failures < 1 {
		problems = append(problems, fmt.Errorf("failures: %d is below 1", c.Failures))
	}
	if c.Pause <= 0 {
		problems = append(problems, fmt.Errorf("pause: %v is not positive", c.Pause))
	}
	if _, err := parseService(c.Service); err != nil {
		problems = append(problems, fmt.Errorf("service: %w", err))
	}
	if c.Forward != ForwardOff && c.Forward != ForwardAuto {
		problems = append(problems, fmt.Errorf("forward: %q is neither off nor auto", c.Forward))
	}
	return errors.Join(problems...)
}
