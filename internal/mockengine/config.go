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
	Kind   Kind   // engine to imitate: VLLM or SGLang

	Model  string   // name of the model; /v1/models also reports this name as the model's root
	Served []string // further names of the same model (vLLM's --served-model-name)
	LoRA   []string // names of adapters, served as models with Model as their parent
	// UpdateLoRA means that adapters can be loaded and unloaded while the engine runs, as with vLLM's
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING=True or SGLang's --enable-lora. An adapter whose path contains "missing" cannot
	// be loaded.
	UpdateLoRA bool
	// MaxLoRAs is the number of adapters that the engine reports to keep. vLLM loads further adapters, and swaps them.
	// SGLang unloads the adapter that was loaded first. 0: the number of LoRA, or 1.
	MaxLoRAs int

	Ranks     int // number of data-parallel ranks, each with its own blocks
	BlockSize int // tokens in a block; SGLang calls it page size
	Blocks    int // physical blocks of one rank, including one block that is never used, like vLLM's num_gpu_blocks

	CPUBlocks int     // blocks of the CPU tier of one rank; 0: the engine has no such tier
	Offload   Offload // when blocks are copied to the CPU tier
	// Placeholders means that stored events of the CPU tier have no tokens and no block size, as those of a vLLM
	// without self_describing_kv_events.
	Placeholders bool

	MaxModelLen    int // longest sum of prompt and answer, in tokens; lowered to the usable blocks of a rank
	MaxBatchTokens int // largest number of tokens in one step
	MaxSequences   int // number of requests that run at the same time, per rank

	// Events is the address of rank 0's KV events, tcp://host:port. Rank r takes port+r. With port 0 each rank takes a
	// free port. SGLang takes consecutive free ports, because it reports only the first port. "" publishes no events.
	//
	// Replay is the address of rank 0's replay socket; for the other ranks, the rules of Events apply. "" serves no
	// replay.
	Events, Replay string
	Topic          string // first frame of each event message
	BufferSteps    int    // number of batches that are kept for replay; 0: 10,000
	Wire           string // version of the event format, see kvevent.ParseWire; "": the newest of Kind

	Speed        float64 // factor by which the engine is faster than the modelled hardware; 0: steps take no time
	OutputTokens int     // length of an answer in tokens without the end token, unless the request's fields change it
	Seed         uint64  // seed of the answers and of random faults

	Version string // engine version in /version and /server_info; "": a recent version of Kind
	APIKey  string // API key that requests to paths under /v1/ must have; "": no key is needed

	HideCachedTokens bool  // answers have no prompt_tokens_details, as without --enable-prompt-tokens-details or --enable-cache-report
	ScaleOut         bool  // the render endpoints work (vLLM's --enable-scale-out); false: they answer 403
	DevMode          bool  // vLLM's /server_info answers, as with VLLM_SERVER_DEV_MODE=1
	NoPrefixCaching  bool  // no block is used again and no events are published, as with --no-enable-prefix-caching or --disable-radix-cache
	HideEventSources bool  // /kv_event_sources answers 404, and kv_events in /server_info is null, as with older engines
	BodyLimit        int64 // largest request body in bytes

	HashSeed  string        // seed of vLLM's hashes (PYTHONHASHSEED); "": vLLM's fixed seed, block.DefaultSeed
	ClockSkew time.Duration // how far the engine's clock is ahead, in the times of event messages

	Transfer Transfer // how KV moves between this engine and others; the zero value: not at all

	Faults Faults // faults at the start; SetFaults changes them

	// Answered is told the id (X-Request-Id, or request_id) of each generation request whose answer is complete, before
	// the end of the answer is sent. It is called concurrently. nil: nobody is told.
	Answered func(id string)

	Network network.Network // network of Listen, Events and Replay; nil: the machine's
}

// Faults are faults that last until SetFaults changes them. A share is a probability from 0 to 1. See
// [Server.SetFaults].
type Faults struct {
	// DropEvents is the share of event messages that subscribers do not get. A replay contains these messages.
	DropEvents float64 `json:"drop_events"`
	LoseReplay float64 `json:"lose_replay"` // share of messages and end markers that are left out of replays
	// ReplayLimit is the number of messages after which each replay stops without an end marker; 0: no limit.
	ReplayLimit int           `json:"replay_limit"`
	Errors      float64       `json:"errors"`      // share of generation requests answered with 500
	Cut         float64       `json:"cut"`         // share of streams that are cut in the middle
	FirstToken  time.Duration `json:"first_token"` // delay of the first token of a stream, and of a whole answer
	Frozen      bool          `json:"frozen"`      // the engine accepts connections, but answers only /mock/fault
	// PrefillErrors is the share of prefill legs that are answered with 500, DecodeRefusals the share of decode legs
	// that are answered with 503.
	PrefillErrors  float64       `json:"prefill_errors"`
	DecodeRefusals float64       `json:"decode_refusals"`
	Lease          time.Duration `json:"lease"`          // length of new leases, in place of the configured length; 0: no change
	HoldTransfers  bool          `json:"hold_transfer"`  // reads of this engine's blocks do not end
	LateBootstrap  time.Duration `json:"late_bootstrap"` // how long after the start the bootstrap server says that it is not ready
	WrongRoom      float64       `json:"wrong_room"`     // share of prefills that are in another room than they should be
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
		Blocks:         16384, // 262,144 tokens: 32 GiB for Llama 3 8B with 128 KiB for each token
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

// MaxRanks is the largest number of ranks. It bounds the number of goroutines and sockets. The largest real
// deployments, such as those of DeepSeek's models, have a few hundred ranks.
const MaxRanks = 1024

// validate returns the problems of c that engine.New does not find. It also sets Wire and Version if they are empty.
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
	if c.MaxLoRAs < 0 {
		bad("max LoRAs %d is negative", c.MaxLoRAs)
	}
	if c.MaxLoRAs == 0 {
		c.MaxLoRAs = max(len(c.LoRA), 1)
	}
	if c.Version == "" {
		c.Version = map[Kind]string{VLLM: "0.32.0", SGLang: "0.5.23"}[c.Kind]
	}
	if c.Wire == "" {
		c.Wire = map[Kind]string{VLLM: "vllm-0.32", SGLang: "sglang-0.5.23"}[c.Kind]
	}
	if _, err := newEncoder(c.Wire); err != nil && c.Wire != "" { // "": kind is unknown, an error that is listed above
		problems = append(problems, err)
	}
	if err := c.Faults.validate(); err != nil {
		problems = append(problems, err)
	}
	if err := c.Transfer.validate(c); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (f Faults) validate() error {
	for name, share := range map[string]float64{
		"drop_events": f.DropEvents, "lose_replay": f.LoseReplay, "errors": f.Errors, "cut": f.Cut, "prefill_errors": f.PrefillErrors, "decode_refusals": f.DecodeRefusals,
		"wrong_room": f.WrongRoom,
	} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("fault %s: share %g is not within 0..1", name, share)
		}
	}
	if f.ReplayLimit < 0 {
		return fmt.Errorf("fault replay_limit: %d is negative", f.ReplayLimit)
	}
	if f.Lease < 0 || f.LateBootstrap < 0 {
		return fmt.Errorf("fault lease or late_bootstrap: %v or %v is negative", f.Lease, f.LateBootstrap)
	}
	if f.FirstToken < 0 {
		return fmt.Errorf("fault first_token: %v is negative", f.FirstToken)
	}
	return nil
}
