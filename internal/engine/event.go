package engine

import "github.com/warmpath/warmpath/block"

// Hash is the engine's hash of a block and all blocks before it.
type Hash uint64

// Kind is the kind of an event.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota // blocks are cached
	Removed             // physical copies are evicted: a hash that was stored twice is removed twice
	Cleared             // the accelerator's prefix cache was reset; the CPU tier stays
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

	// The fields below are set with Stored. A CPU event without a description has only hashes: BlockSize is 0, and it
	// has no tokens and no parent.
	Parent    Hash // hash of the block before the first; HasParent is false at the start of a prompt
	HasParent bool
	Tokens    []block.Token
	Start     int // absolute position of the first token
	BlockSize int
	LoRA      string
	Salt      string // set where Start is 0: engines announce the salt with the first block; never on the CPU tier
	Features  []block.Feature
}
