package tokens

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what finding tokens may cost.
type Config struct {
	// Discover lets the router find the models' files by itself: at the path that an engine reports, in this machine's
	// Hugging Face cache, and on the hub if hub.allow is set. It uses them after their ids were equal to the engine's
	// in every probe. False: engines are asked for the ids of every model that is not under models.
	Discover bool `yaml:"discover"`
	// Budget is the longest time that a request waits for its token ids. After it, the request is matched by its text.
	// A request waits for a tenth of the time that a match is expected to save (the prompt's length, times the time to
	// compute a token, times the chance that a part is cached), and at least 10 ms: an engine that is not busy answers
	// in 3–5 ms. A prompt of 100,000 tokens that takes 5 s to compute waits 500 ms; users would notice a longer wait. 0
	// asks no engine: then only ids in the body and ids made by the router count.
	Budget time.Duration `yaml:"budget"`
	// MaxPromptBytes is the longest request body for which an engine is asked: each question copies the body, and a
	// tokenizer takes longer than Budget for a megabyte. 4 MiB are about a million tokens. A longer prompt is matched
	// by its text. All questions under way take at most 16 times as much memory; a prompt whose question finds no
	// memory left is matched by its text.
	MaxPromptBytes int64 `yaml:"max_prompt_bytes"`
	// CacheBytes bounds the memory of remembered prompts and of the beginnings that they have in common. Questions in
	// the background take up to an eighth of it in addition. 64 MiB hold 16 million ids: 2,000 prompts of 8,000 tokens.
	CacheBytes int64 `yaml:"cache_bytes"`
	// Failures is how many calls to a worker must fail in a row before it is not asked for Pause. A failure is a
	// refused connection, a status 5xx, an answer that cannot be read, or no answer within 10 s; a slow answer is not a
	// failure. If all failures were status 500 or timeouts of one client's prompts, only that client's prompts are not
	// asked. 3, because one or two happen when an engine restarts.
	Failures int `yaml:"failures"`
	// Pause is how long a failing worker is not asked before one call tries it again. 5 s, as often as health checks.
	Pause time.Duration `yaml:"pause"`
	// Service is a tokenizer service that is asked before any engine: unix:///run/tokenizer.sock or http://host:port,
	// as `vllm launch render` serves it (docs/api.md has the protocol). Its ids are not compared with an engine's.
	// Empty is no service.
	Service string `yaml:"service"`
	// Forward is off or auto. With auto an engine gets the ids in place of the text when that is proven to lose nothing
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
	return Config{Discover: true, Budget: 500 * time.Millisecond, MaxPromptBytes: 4 << 20, CacheBytes: 64 << 20,
		Failures: 3, Pause: 5 * time.Second,
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
