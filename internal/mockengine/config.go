package mockengine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/network"
)

// Kind is an engine that the mock engine can imitate.
type Kind string

// The kinds of engine.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// Offload says when blocks are copied to the CPU tier.
type Offload = engine.Offload

// Config describes one mock engine. Begin with [DefaultConfig]: [New] refuses the zero value of Config.
type Config struct {
	Listen string // HTTP address, host:port; port 0 takes a free port
	Kind   Kind   // the engine to imitate: VLLM or SGLang

	Model  string   // name of the model; /v1/models also gives it as the root
	Served []string // further names of the same model (vLLM's --served-model-name)
	LoRA   []string // names of adapters, served as models with Model as their parent

	Ranks     int // number of data-parallel ranks, each with its own blocks
	BlockSize int // tokens in a block; SGLang calls it page size
	Blocks    int // physical blocks of one rank; the number includes one block that is never used, like vLLM's num_gpu_blocks

	CPUBlocks int     // blocks of the CPU tier of one rank; 0: the engine has no such tier
	Offload   Offload // when blocks are copied to the CPU tier
	// Placeholders says that the CPU tier's stored events have no tokens and no sizes, as from a vLLM without
	// self_describing_kv_events.
	Placeholders bool

	MaxModelLen    int // longest sum of prompt and answer, in tokens
	MaxBatchTokens int // largest number of tokens in one step
	MaxSequences   int // number of requests that run at the same time, per rank

	// Events is the address of rank 0's KV events, tcp://host:port. Rank r takes port+r. With port 0 each rank takes a
	// free port. SGLang takes consecutive free ports, because it reports only the first port. "" publishes no events.
	//
	// Replay is the address of the replay socket, with the same rules. "" serves no replay.
	Events, Replay string
	Topic          string // first frame of each event message
	BufferSteps    int    // number of batches that are kept for replay
	Wire           string // version of the event encoding, one of kvevent.Wires

	Speed        float64 // how many times faster than the modelled hardware the engine is; 0: the engine takes no time at all
	OutputTokens int     // length of an answer if nothing else ends it, in tokens without the end token
	Seed         uint64  // seed of the answers and of random faults; the same seed gives the same behaviour

	Version string // engine version in /version and /server_info
	APIKey  string // key that requests to paths under /v1/ need; "": no key is needed

	HideCachedTokens bool // answers have no prompt_tokens_details, as without --enable-prompt-tokens-details or --enable-cache-report
	ScaleOut         bool // the render endpoints answer (vLLM's --enable-scale-out); false: they answer 403
	HideEventSources bool // /kv_event_sources answers 404 and /server_info has no kv_events, as with older engines
	BodyLimit        int64

	Faults Faults // faults from the start on; SetFaults changes them

	Network network.Network // the network of Listen, Events and Replay; nil: the machine's
}

// Faults are faults that last until they are changed. A share is a number from 0 to 1. See [Server.SetFaults].
type Faults struct {
	// share of event messages that subscribers do not get; a replay contains these messages
	DropEvents float64 `json:"drop_events"`
	LoseReplay float64 `json:"lose_replay"` // share of messages and end markers that are left out of replays
	// ReplayLimit is the number of messages after which each replay stops without an end marker; 0: no limit.
	ReplayLimit int           `json:"replay_limit"`
	Errors      float64       `json:"errors"`      // share of generation requests answered with 500
	Cut         float64       `json:"cut"`         // share of streams that are cut in the middle
	FirstToken  time.Duration `json:"first_token"` // delay before the first token of each answer
	Frozen      bool          `json:"frozen"`      // connections are accepted, and nothing is answered, not even /health
	// Stalled means that the engine makes no step while /health answers 200, like a hung EngineCore.
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
		Blocks:         16384, // 262,144 tokens: the cache for an 8B model on one 80 GB accelerator
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

// MaxRanks is the greatest number of ranks. It bounds the goroutines and sockets of a configuration. Deployments of
// DeepSeek's size have some hundred ranks.
const MaxRanks = 1024

// validate returns all problems of c. It also sets the fields that depend on other fields.
func (c *Config) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Kind != VLLM && c.Kind != SGLang {
		bad("kind %q is neither %q nor %q", c.Kind, VLLM, SGLang)
	}
	if c.Model == "" {
		bad("model name is empty")
	}
	if c.Ranks < 1 || c.Ranks > MaxRanks {
		bad("ranks %d is not within 1..%d", c.Ranks, MaxRanks)
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
