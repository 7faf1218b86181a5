package engine

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/block"
)

// Offload says when a block is copied to the CPU tier.
type Offload uint8

// The moments at which engines offload.
const (
	OffloadOnStore Offload = iota // soon after it is cached (vLLM's OffloadingConnector); announced with a later step
	OffloadOnEvict                // when its last copy leaves the accelerator (write-back)
)

// Config describes one rank. Start from [DefaultConfig].
type Config struct {
	BlockSize int // tokens in a block, 1..block.MaxSize
	Blocks    int // physical blocks, at least 2; one is never used, as vLLM's null block

	MaxModelLen    int // longest prompt and output together, in tokens; the pool's size caps it
	MaxBatchTokens int // token budget of a step
	MaxSequences   int // requests that run at once
	// AdmitChunks admits a request when the first chunk of its prompt fits, as vLLM did before scheduler_reserve_full_isl (vllm#37307,
	// March 2026), and preempts it when the rest does not. Otherwise all of the prompt has to fit, vLLM's default since.
	AdmitChunks bool

	CPUBlocks int     // blocks of the CPU tier; 0: none
	Offload   Offload // when blocks go there
	Describe  bool    // CPU events carry tokens and parents (vLLM's self_describing_kv_events); without, only hashes

	Timing Timing // how long a step takes

	// Hash appends the hashes of the full blocks of r's tokens that dst does not hold yet. nil: XXH3 chains rooted in r's scope.
	Hash HashFunc
}

// HashFunc extends dst, the hashes of a request's first len(dst) blocks, to all full blocks of tokens. It must depend on
// nothing but the tokens up to the end of each block, and r's scope and features.
type HashFunc func(dst []Hash, r *Request, tokens []block.Token) []Hash

// DefaultConfig is a rank of the default profile: Qwen3-32B on two H100, 307,328 tokens of KV.
func DefaultConfig() Config {
	return profiles[0].Config(0, 0)
}

// maxBlocks keeps block ids in 31 bits.
const maxBlocks = 1 << 30

func (c *Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.BlockSize >= 1 && c.BlockSize <= block.MaxSize, "block size %d is not within 1..%d", c.BlockSize, block.MaxSize)
	check(c.Blocks >= 2 && c.Blocks <= maxBlocks, "blocks %d is not within 2..%d", c.Blocks, maxBlocks)
	check(c.MaxModelLen >= 2, "max model length %d is below 2", c.MaxModelLen)
	check(c.MaxBatchTokens >= 1, "batch budget of %d tokens is below 1", c.MaxBatchTokens)
	check(c.MaxSequences >= 1, "sequence limit %d is below 1", c.MaxSequences)
	check(c.CPUBlocks >= 0 && c.CPUBlocks <= maxBlocks, "CPU blocks %d is not within 0..%d", c.CPUBlocks, maxBlocks)
	check(c.Offload <= OffloadOnEvict, "unknown offload moment %d", c.Offload)
	check(c.Timing != nil, "timing is missing")
	return errors.Join(problems...)
}
