package indexer

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/block"
)

// place is a rank of a worker.
type place struct {
	worker string
	rank   int
}

// rankBlocks are blocks of one chain that a rank has on one tier: what a change and a run have in common.
type rankBlocks struct {
	model, group string
	place
	tier       string
	cacheGroup int
	depth      int // of the first block in its chain
	keys       []block.Key
	hashes     []uint64 // of the engine
	blockSize  int      // of the model's index
}

// appendFields appends the fields of b. first is the number of the first field, the model: Change and Run of
// indexer.proto have the same fields in the same order. In both, the parent comes between depth and keys.
func (b *rankBlocks) appendFields(dst []byte, first protowire.Number, parent uint64) []byte {
	dst = appendText(dst, first, b.model)
	dst = appendText(dst, first+1, b.group)
	dst = appendText(dst, first+2, b.worker)
	dst = appendNumber(dst, first+3, b.rank)
	dst = appendText(dst, first+4, b.tier)
	dst = appendNumber(dst, first+5, b.cacheGroup)
	dst = appendNumber(dst, first+6, b.depth)
	dst = appendHash(dst, first+7, parent)
	dst = appendPackedFixed(dst, first+8, b.keys)
	dst = appendPackedFixed(dst, first+9, b.hashes)
	return appendNumber(dst, first+10, b.blockSize)
}

// appendName appends the names of the model and the rank as members of a JSON object, after another member.
func (b *rankBlocks) appendName(dst []byte) []byte {
	dst = append(dst, `,"model_name":`...)
	dst = appendQuoted(dst, b.model)
	dst = append(dst, `,"routing_group":`...)
	dst = appendQuoted(dst, b.group)
	if b.worker == "" {
		return dst
	}
	dst = append(dst, `,"instance_id":`...)
	dst = appendQuoted(dst, b.worker)
	dst = append(dst, `,"dp_rank":`...)
	return strconv.AppendInt(dst, int64(b.rank), 10)
}
