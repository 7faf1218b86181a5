package engine

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/block"
)

// Offload says when a block is copied to the CPU tier.
type Offload uint8

// The values of Offload.
const (
	// OffloadOnStore copies a block soon after it is cached, as vLLM's OffloadingConnector does. A later step announces
	// the copy.
	OffloadOnStore Offload = iota
	OffloadOnEvict         // copy a block when its last copy on the accelerator is evicted (write-back)
)

// Config describes one rank. Start from [DefaultConfig].
type Config struct {
	BlockSize int // tokens in a block, 1..block.MaxSize
	Blocks    int // number of physical blocks, at least 2; one of them is vLLM's null block, which is never used

	MaxModelLen    int // limit of prompt and output together, in tokens; New lowers it to the size of the pool
	MaxBatchTokens int // token budget of a step
	MaxSequences   int // number of requests that may run at the same time
	// AdmitChunks admits a request when the first chunk of its prompt fits. If the rest does not fit later, the newest
	// running request is preempted. vLLM did so before vllm#37307 (March 2026). Without AdmitChunks a request is
	// admitted when its whole prompt fits, as with vLLM's scheduler_reserve_full_isl, which is the default of newer
	// versions.
	AdmitChunks bool

	CPUBlocks int     // number of blocks of the CPU tier; 0: there is no CPU tier
	Offload   Offload // when blocks are copied to the CPU tier
	// Describe adds tokens and parents to the events of the CPU tier (vLLM's self_describing_kv_events). Without Describe
	// these events have only hashes.
	Describe bool

	Timing Timing // time of a step

	// Hash computes block hashes. If it is nil, hashes are chains of XXH3 that begin with the request's scope.
	Hash HashFunc
}

// HashFunc appends to dst the missing hashes, so that dst has a hash for each full block of tokens. On entry, dst has
// the hashes of the first len(dst) blocks. A block's hash may depend only on the tokens up to the block's end, r's
// scope and r's features.
type HashFunc func(dst []Hash, r *Request, tokens []block.Token) []Hash

// DefaultConfig returns the configuration of the default profile: Qwen3-32B on two H100, with a cache of 307,328
// tokens.
func DefaultConfig() Config {
	return profiles[0].Config(0, 0)
}

// MaxBlocks is the greatest number of blocks of a tier. Block ids are of type int32.
const MaxBlocks = 1 << 30

func (c *Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.BlockSize >= 1 && c.BlockSize <= block.MaxSize, "block size %d is not within 1..%d", c.BlockSize, block.MaxSize)
	check(c.Blocks >= 2 && c.Blocks <= MaxBlocks, "blocks %d is not within 2..%d", c.Blocks, MaxBlocks)
	check(c.MaxModelLen >= 2, "max model length %d is below 2", c.MaxModelLen)
	check(c.MaxBatchTokens >= 1, "batch budget of %d tokens is below 1", c.MaxBatchTokens)
	check(c.MaxSequences >= 1, "sequence limit %d is below 1", c.MaxSequences)
	check(c.CPUBlocks >= 0 && c.CPUBlocks <= MaxBlocks, "CPU blocks %d is not within 0..%d", c.CPUBlocks, MaxBlocks)
	check(c.Offload <= OffloadOnEvict, "unknown offload moment %d", c.Offload)
	check(c.Timing != nil, "timing is missing")
	return errors.Join(problems...)
}
