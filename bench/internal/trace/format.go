package trace

// Kind is the kind of a record.
type Kind uint32

// These are the kinds of records. A Probe is a query about the state at the end of the trace, for measurements of
// lookup times.
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

	// MaxWorkers bounds the number of workers in a file. It is four times the largest measured fleet.
	MaxWorkers = 1 << 14
	// MaxUnits bounds the number of the trace's blocks in an engine block. With blocks of 16 tokens this is an engine
	// block of 65,536 tokens.
	MaxUnits = 1 << 12
)

// Versions of the format.
const (
	Version1 = 1 // the engine hash of a block is its key, and no worker forgets its blocks
	Version2 = 2 // adds StoredCut and Forgotten, and Removed with units
)

// Header is the first 64 bytes of a file.
type Header struct {
	Version   uint32
	Workers   uint32
	BlockSize uint32 // tokens in a block
	Records   uint64
	Stored    uint64 // number of stored blocks of the trace
	Removed   uint64 // number of removed blocks of the trace, without forgotten blocks
	Queries   uint64
	Seed      uint64
}

// Record is an event or a question (a query or probe). The slices of a record that a Reader has read are valid until
// the next record is read.
type Record struct {
	Kind      Kind
	Worker    uint32
	HasParent bool
	Parent    uint64 // engine hash of the parent of the record's first block
	Units     int    // number of the trace's blocks in each engine block; 1 in version 1

	Depths       []uint16 // Query and Probe: for each worker, how many blocks it holds without a gap, counted from the first of Keys
	Locals       []uint64 // Query, Probe, Stored and StoredCut: local hashes of the blocks
	Keys         []uint64 // Query, Probe, Stored and StoredCut: keys of the same blocks
	EngineHashes []uint64 // Stored, StoredCut and Removed: engine hashes of the engine blocks; in Stored equal to Keys
}

// IsQuestion reports whether the record is a question, not an event.
func (r *Record) IsQuestion() bool { return r.Kind == Query || r.Kind == Probe }

// IsStore reports whether the record stores blocks.
func (r *Record) IsStore() bool { return r.Kind == Stored || r.Kind == StoredCut }

// depthBytes returns the size of a question's depths in bytes, with the padding to a multiple of 8.
func depthBytes(workers uint32) int { return (int(workers)*2 + 7) / 8 * 8 }
