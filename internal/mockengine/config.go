package mockengine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/network"
)

// Kind is the engine to imitate.
type Kind string

// The kinds of engine.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// Offload says when blocks are copied to the CPU tier.
type Offload = engine.Offload

// Config describes one mock engine. Begin with [DefaultConfig]: [New] refuses the zero value.
type Config struct {
	Listen string // HTTP address, host:port; port 0 takes a free port
	Kind   Kind   // the engine to imitate: VLLM or SGLang

	Model  string   // name of the model; also the root of /v1/models
	Served []string // more names of the same model (vLLM's --served-model-name)
	LoRA   []string // adapter names, served as models with Model as their parent

	Ranks     int // data-parallel ranks, each with a pool of its own
	BlockSize int // tokens in a block; SGLang calls it page size
	Blocks    int // physical blocks of one rank; like vLLM's num_gpu_blocks it counts one block that is never used

	CPUBlocks int     // blocks of the CPU tier of one rank; 0: no such tier
	Offload   Offload // when blocks are copied there
	// the CPU tier's stored events have no tokens and no sizes (vLLM without self_describing_kv_events)
	Placeholders bool

	MaxModelLen    int // longest prompt and answer together, in tokens
	MaxBatchTokens int // token budget of one step
	MaxSequences   int // requests that run at once, per rank

	// Events is the address of rank 0's KV events, tcp://host:port. Rank r takes port+r. Port 0 takes a free port for
	// each rank; SGLang takes free ports in a row, because it reports only the first. "" publishes nothing. Replay is
	// the address of the replay socket, with the same rules; "" serves no replay.
	Events, Replay string
	Topic          string // first frame of each event message
	BufferSteps    int    // batches kept for replay
	Wire           string // version of the event encoding, one of kvevent.Wires

	Speed        float64 // how many times faster than the modelled hardware; 0: no delays at all
	OutputTokens int     // length of an answer if nothing else ends it, in tokens without the end token
	Seed         uint64  // answers and fault dice; the same seed gives the same behaviour

	Version string // engine version in /version and /server_info
	APIKey  string // required under /v1/ when not empty

	HideCachedTokens bool // no prompt_tokens_details, as without --enable-prompt-tokens-details or --enable-cache-report
	ScaleOut         bool // answer the render endpoints (vLLM's --enable-scale-out); else 403
	HideEventSources bool // 404 on /kv_event_sources and no kv_events in /server_info, as older engines do
	BodyLimit        int64

	Faults Faults // in force from the start; SetFaults changes them

	Network network.Network // the network of Listen, Events and Replay; nil: the machine's
}

// Faults are faults that last until they are changed. Shares are 0..1. See [Server.SetFaults].
type Faults struct {
	DropEvents float64 `json:"drop_events"` // share of event messages that subscribers do not get; replay has them
	LoseReplay float64 `json:"lose_replay"` // share of lost messages and end markers in replays
	// messages after which each replay stops without an end marker; 0: no limit
	ReplayLimit int           `json:"replay_limit"`
	Errors      float64       `json:"errors"`      // share of generation requests answered with 500
	Cut         float64       `json:"cut"`         // share of streams that are cut in the middle
	FirstToken  time.Duration `json:"first_token"` // delay of each first token
	Frozen      bool          `json:"frozen"`      // connections are accepted and nothing is answered, not even /health
	// the engine makes no step while /health answers 200 (a hung EngineCore)
	Stalled bool `json:"stalled"`
}

// DefaultConfig returns a small vLLM on a free port of the loopback, with events and replay, and without delays.
func DefaultConfig() Config {
	return Config{
		Listen:         "127.0.0.1:0",
		Kind:           VLLM,
		Model:          "mock",
		Ranks:          1,
		BlockSize:      16,
		Blocks:         16384, // 262,144 tokens: an 8B model on one 80 GB accelerator
		MaxModelLen:    131072,
		MaxBatchTokens: 8192,
		MaxSequences:   256,
		Events:         "tcp://127.0.0.1:0",
		Replay:         "tcp://127.0.0.1:0",
		Topic:          "",
		BufferSteps:    10000, // vLLM's default
		Wire:           "",
		OutputTokens:   48,
		Version:        "",
		BodyLimit:      64 << 20,
	}
}

// maxRanks bounds the goroutines and sockets of a configuration; deployments of DeepSeek's size have some hundred
// ranks.
const maxRanks = 1024

// validate returns all problems, and sets the fields that depend on other fields.
func (c *Config) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Kind != VLLM && c.Kind != SGLang {
		bad("kind %q is neither %q nor %q", c.Kind, VLLM, SGLang)
	}
	if c.Model == "" {
		bad("model name is empty")
	}
	if c.Ranks < 1 || c.Ranks > maxRanks {
		bad("ranks %d is not within 1..%d", c.Ranks, maxRanks)
	}
	if c.Speed < 0 {
		bad("speed %g is negative", c.Speed)
	}
	if c.OutputTokens < 1 {
		bad("output tokens %d is not positive", c.OutputTokens)
	}
	if c.BodyLimit <= 0 {
		bad("body limit %d is not positive", c.BodyLimit)
	}
	if c.Replay != "" && c.Events == "" {
		bad("a replay endpoint needs an events endpoint")
	}
	for _, endpoint := range []string{c.Events, c.Replay} {
		if endpoint != "" && !strings.HasPrefix(endpoint, "tcp://") &&
			!(strings.HasPrefix(endpoint, "ipc://") && c.Ranks == 1) {
			bad("endpoint %q is not tcp://host:port (ipc:// serves a single rank)", endpoint)
		}
	}
	if c.Version == "" {
		c.Version = map[Kind]string{VLLM: "0.32.0", SGLang: "0.5.23"}[c.Kind]
	}
	if c.Wire == "" {
		c.Wire = map[Kind]string{VLLM: "vllm-0.32", SGLang: "sglang-0.5.23"}[c.Kind]
	}
	if _, err := newEncoder(c.Wire); err != nil && c.Wire != "" { // "": the kind is unknown, which is reported above
		problems = append(problems, err)
	}
	if err := c.Faults.validate(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (f Faults) validate() error {
	for name, share := range map[string]float64{
		"drop_events": f.DropEvents, "lose_replay": f.LoseReplay, "errors": f.Errors, "cut": f.Cut,
	} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("fault %s: share %g is not within 0..1", name, share)
		}
	}
	if f.ReplayLimit < 0 {
		return fmt.Errorf("fault replay_limit: %d is negative", f.ReplayLimit)
	}
	if f.FirstToken < 0 {
		return fmt.Errorf("fault first_token: %v is negative", f.FirstToken)
	}
	return nil
}
