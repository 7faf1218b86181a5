package engine

import "github.com/warmpath/warmpath/block"

// Hash names a block and all before it, in the engine's own space.
type Hash uint64

// Kind says what an event announces.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota // blocks became usable
	Removed             // physical copies are gone: a hash that was stored twice is removed twice
	Cleared             // the accelerator's prefix cache was reset; the CPU tier lives on
)

// Event is a change of what a rank has cached. Its slices are valid until the next call of Step or TakeEvents with the same
// destination.
type Event struct {
	Kind   Kind
	Tier   block.Tier // of Stored and Removed
	Hashes []Hash

	// Owner is that of the request whose blocks were Stored on the accelerator; nil else.
	Owner any

	// The rest belongs to Stored. A CPU event without a description has only hashes: BlockSize 0, no tokens, no parent.
	Parent    Hash // hash of the block before the first; HasParent is false at the start of a prompt
	HasParent bool
	Tokens    []block.Token
	Start     int // absolute position of the first token
	BlockSize int
	LoRA      string
	Salt      string // set where Start is 0 only: engines announce the salt with the first block. Never on the CPU tier
	Features  []block.Feature
}
