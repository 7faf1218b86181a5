package tokens

import (
	"errors"
	"fmt"
	"time"
)

// Config has the settings for finding token ids, most of which bound the cost.
type Config struct {
	// Discover lets the router find the models' files by itself: at the path that an engine reports, in this machine's
	// Hugging Face cache, and on the hub if hub.allow is set. The router uses files only after the ids made from them were
	// equal to the engine's ids in every probe. If Discover is false, engines are asked for the ids of models that are not
	// listed under models.
	Discover bool `yaml:"discover"`
	// Budget is the longest time that a request waits for its token ids. After this time, the request is matched by its
	// text. A request waits for a tenth of the time that a match is expected to save. The expected saving is the prompt's
	// length, times the time to compute a token, times the chance that a part is cached. The wait is at least 10 ms: an
	// engine that is not busy answers in 3–5 ms. Default 500 ms: a request waits this long if a match is expected to save
	// 5 s, and users would notice a longer wait. With 0 no request waits for an engine's ids: only ids in the body and ids
	// made by the router are used.
	Budget time.Duration `yaml:"budget"`
	// MaxPromptBytes is the length of the longest request body for which an engine is asked. The length is bounded because
	// each question copies the body, and because a tokenizer takes longer than Budget for a megabyte. Default 4 MiB, which
	// are about a million tokens. A longer prompt is matched by its text. All questions under way together take at most 16
	// times MaxPromptBytes of memory. If this memory is used up, a prompt is matched by its text, too.
	MaxPromptBytes int64 `yaml:"max_prompt_bytes"`
	// CacheBytes bounds the memory of the remembered ids of prompts, and of the beginnings that these prompts have in
	// common. Questions in the background take up to an eighth of CacheBytes in addition. Default 64 MiB, which hold 16
	// million ids: 2,000 prompts of 8,000 tokens.
	CacheBytes int64 `yaml:"cache_bytes"`
	// Failures is how many calls to a worker must fail in a row before the worker is not asked for the time Pause. A
	// failure is a refused connection, a status 5xx except 501, an answer that cannot be read, or no answer within 10 s. A
	// slow answer is not a failure. If all failures were status 500 or timeouts for prompts of one client, the worker is
	// still asked for other clients' prompts. Default 3, because one or two failures happen when an engine restarts.
	Failures int `yaml:"failures"`
	// Pause is how long a failing worker is not asked. After the pause one call tries the worker. Default 5 s, as often
	// as health checks.
	Pause time.Duration `yaml:"pause"`
	// Service is a tokenizer service that is asked before any engine: unix:///run/tokenizer.sock or http://host:port.
	// `vllm launch render` is such a service (docs/api.md has the protocol). The service's ids are not compared with an
	// engine's ids. An empty text means no service.
	Service string `yaml:"service"`
	// Forward is off or auto. With auto an engine gets the ids instead of the text if the answer is proven to stay the
	// same (docs/api.md has the rule), so that the engine need not tokenize the text. Off is the default: bodies are
	// sent to the engine byte for byte as they came.
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
