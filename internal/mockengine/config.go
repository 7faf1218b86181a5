package mockengine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/network"
)

// Kind is the engine whose HTTP surface and events are imitated.
type Kind string

// The engines that can be imitated.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// Offload says when blocks are copied to the CPU tier.
type Offload = engine.Offload

// Config describes one mock engine. Start from [DefaultConfig]; the zero value is refused by [New].
type Config struct {
	Listen string // HTTP address, host:port; port 0 takes a free one
	Kind   Kind   // whose surface: VLLM or SGLang

	Model  string   // name of the model; also the root of /v1/models
	Served []string // further names of the same model (vLLM's --served-model-name)
	LoRA   []string // adapter names, served as models whose parent is Model

	Ranks     int // data-parallel ranks, each with a pool of its own
	BlockSize int // tokens in a block; SGLang calls it page size
	Blocks    int // physical blocks of one rank; like vLLM's num_gpu_blocks it counts one block that is never used

	CPUBlocks    int     // blocks of the CPU tier of one rank; 0: no such tier
	Offload      Offload // when blocks are copied there
	Placeholders bool    // the CPU tier's stored events carry no tokens and no sizes (vLLM without self_describing_kv_events)

	MaxModelLen    int // longest prompt and answer together, in tokens
	MaxBatchTokens int // token budget of one step
	MaxSequences   int // requests that run at once, per rank

	// Events is where rank 0 publishes its KV events, tcp://host:port; rank r takes port+r, and port 0 takes a free one
	// for each, in a row for SGLang, which tells only the first. "" publishes nothing. Replay is the same for the replay socket; "" serves no replay.
	Events, Replay string
	Topic          string // first frame of each event message
	BufferSteps    int    // batches kept for replay
	Wire           string // version of the event encoding, one of kvevent.Wires

	Speed        float64 // how many times faster than the modelled hardware; 0: no delays at all
	OutputTokens int     // length of an answer that nothing else ends, in tokens without the end token
	Seed         uint64  // answers and fault dice; the same seed gives the same behaviour

	Version string // engine version that /version and /server_info report
	APIKey  string // guards /v1/ when not empty

	HideCachedTokens bool // no prompt_tokens_details, as without --enable-prompt-tokens-details or --enable-cache-report
	ScaleOut         bool // answer the render endpoints (vLLM's --enable-scale-out); 403 without
	HideEventSources bool // 404 on /kv_event_sources and no kv_events in /server_info, as older engines do
	BodyLimit        int64

	Faults Faults // in force from the start; SetFaults changes them

	Network network.Network // where Listen, Events and Replay are opened; nil: the machine's
}

// Faults are the misbehaviours that hold until they are changed. Shares are 0..1. See [Server.SetFaults].
type Faults struct {
	DropEvents  float64       `json:"drop_events"`  // share of event messages that subscribers never see; replay still has them
	LoseReplay  float64       `json:"lose_replay"`  // share of replayed messages that are lost, and of replays' end markers
	ReplayLimit int           `json:"replay_limit"` // messages after which each replay stops without its end marker; 0: no limit
	Errors      float64       `json:"errors"`       // share of generation requests answered with 500
	Cut         float64       `json:"cut"`          // share of streams whose connection is cut in the middle
	FirstToken  time.Duration `json:"first_token"`  // added before each first token
	Frozen      bool          `json:"frozen"`       // connections are accepted and nothing is answered, not even /health
	Stalled     bool          `json:"stalled"`      // the engine makes no step while /health answers 200 (a hung EngineCore)
}

// DefaultConfig is a small vLLM on a free port of the loopback with events and replay on, without delays.
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

// maxRanks bounds the goroutines and sockets that a setting can ask for; DeepSeek-sized fleets run some hundred ranks.
const maxRanks = 1024

// validate reports all that is wrong and fills what depends on other fields.
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
		if endpoint != "" && !strings.HasPrefix(endpoint, "tcp://") && !(strings.HasPrefix(endpoint, "ipc://") && c.Ranks == 1) {
			bad("endpoint %q is not tcp://host:port (ipc:// serves a single rank)", endpoint)
		}
	}
	if c.Version == "" {
		c.Version = map[Kind]string{VLLM: "0.32.0", SGLang: "0.5.23"}[c.Kind]
	}
	if c.Wire == "" {
		c.Wire = map[Kind]string{VLLM: "vllm-0.32", SGLang: "sglang-0.5.23"}[c.Kind]
	}
	if _, err := newEncoder(c.Wire); err != nil && c.Wire != "" { // "" is that of an unknown kind
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
