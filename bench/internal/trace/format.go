package trace

// Kind is the kind of a record.
type Kind uint32

// These are the kinds. A Probe is a query of the state at the end of the trace, for measurements of time.
const (
	Query Kind = iota
	Stored
	Removed
	Probe
	StoredCut
	Forgotten
)

const (
	magic      = "KVTRACE1"
	headerSize = 64
	recordSize = 24

	// MaxWorkers bounds the workers that a file may claim: four times the largest fleet we measure.
	MaxWorkers = 1 << 14
	// MaxUnits bounds the blocks of 16 tokens in one block: a block of 65,536 tokens has this many.
	MaxUnits = 1 << 12
)

// Versions of the format.
const (
	Plain    = 1 // each block has one handle, and no worker forgets its blocks
	Extended = 2
)

// Header is the first 64 bytes of a file.
type Header struct {
	Version   uint32
	Workers   uint32
	BlockSize uint32 // tokens in a block
	Records   uint64
	Stored    uint64 // number of stored blocks, counted in units
	Removed   uint64 // number of removed blocks, counted in units; forgotten blocks do not count
	Queries   uint64
	Seed      uint64
}

// Record is one event or question. Its slices are valid until the next record is read.
type Record struct {
	Kind      Kind
	Worker    uint32
	HasParent bool
	Parent    uint64 // handle of the block before the record's first block
	Units     int    // number of blocks that each handle stands for; 1 in plain traces

	Depths  []uint16 // of Query and Probe: the number of leading blocks that each worker holds
	Locals  []uint64 // of Query, Probe and Stored: local hashes of the blocks
	Keys    []uint64 // of Query, Probe and Stored: keys of the same blocks
	Handles []uint64 // of Stored and Removed: the handles; in Stored with one unit this slice is Keys
}

// IsQuestion reports whether the record is a question, not an event.
func (r *Record) IsQuestion() bool { return r.Kind == Query || r.Kind == Probe }

// IsStore reports whether the record stores blocks.
func (r *Record) IsStore() bool { return r.Kind == Stored || r.Kind == StoredCut }

// depthBytes is the padded size of a question's depths.
func depthBytes(workers uint32) int { return (int(workers)*2 + 7) / 8 * 8 }
