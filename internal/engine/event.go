package engine

import "github.com/warmpath/warmpath/block"

// Hash is the engine's hash of a block and all blocks before it.
type Hash uint64

// Kind is the kind of an event.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota // blocks were cached
	Removed             // copies of blocks were evicted; a hash with two copies is removed once for each copy
	Cleared             // the accelerator's prefix cache was reset; the CPU tier was not
)

// Event is a change of a rank's cache. Its slices are valid until the next call of Step or TakeEvents with the same
// destination.
type Event struct {
	Kind   Kind
	Tier   block.Tier // tier of the Stored or Removed blocks
	Hashes []Hash

	// Owner is the field Owner of the request whose blocks were stored. Only Stored events of the accelerator have it;
	// in other events it is nil.
	Owner any

	// Only events of kind Stored have the fields below. An event of the CPU tier without a description has only hashes:
	// its BlockSize is 0, and it has no tokens and no parent.
	// Hash of the block before the first block; HasParent is false if the first block begins a prompt.
	Parent    Hash
	HasParent bool
	Tokens    []block.Token
	Start     int // position of the first token in its prompt
	BlockSize int
	LoRA      string
	// Set only if Start is 0, because engines announce the salt with the first block; never set on the CPU tier.
	Salt     string
	Features []block.Feature
}
