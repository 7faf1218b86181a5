package engine

import "github.com/warmpath/warmpath/block"

// Hash is the engine's hash of a block and all blocks before it.
type Hash uint64

// Kind is the kind of an event.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota // blocks are now cached
	Removed             // copies of blocks were evicted; a hash with two copies gets one Removed for each copy
	Cleared             // the accelerator's prefix cache was emptied; the CPU tier keeps its blocks
)

// Event is a change of a rank's cache. Its slices are valid until the next call of Step or TakeEvents with the same
// *Step.
type Event struct {
	Kind   Kind
	Tier   block.Tier // tier of the Stored or Removed blocks
	Hashes []Hash

	// Owner is the Owner of the request whose blocks were stored. It is nil in all events but Stored events of the
	// accelerator.
	Owner any

	// Only events of kind Stored have the fields below. Without Config.Describe, a Stored event of the CPU tier has only
	// hashes: the fields below are zero.

	// Parent is the hash of the block before the first stored block. HasParent is false if the first stored block begins a
	// prompt.
	Parent    Hash
	HasParent bool
	Tokens    []block.Token
	Start     int // position of the first token in its prompt
	BlockSize int
	LoRA      string
	// Salt is set only if Start is 0, because engines announce the salt with the first block of a prompt. It is never set
	// on the CPU tier.
	Salt     string
	Features []block.Feature // all features of the request, nil on the CPU tier; offsets count from the start of the prompt
}
