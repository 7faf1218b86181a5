package sim

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
)

// cursor is a place in a request's content: a segment and how much of it lies before.
type cursor struct {
	segment, offset int
	blocks          int // full blocks before
}

// identity returns the engines' hash of blocks: like an engine's own it names a block and all before it, but it is made of
// the content's segments instead of the tokens, which saves reading them once more. Routers see it as a handle only.
func identity(size int) engine.HashFunc {
	return func(dst []engine.Hash, r *engine.Request, tokens []block.Token) []engine.Hash {
		f := r.Owner.(*flight)
		if f.hashed.blocks != len(dst) {
			f.hashed = cursor{}
			dst = dst[:0]
		}
		h := uint64(len(r.Scope.LoRA))<<32 ^ 0x77a9
		for _, c := range []byte(r.Scope.LoRA) {
			h = fold(h, uint64(c))
		}
		if len(dst) > 0 {
			h = uint64(dst[len(dst)-1])
		}
		for n := len(dst) + 1; n*size <= len(tokens); n++ {
			for left := size; left > 0; {
				id, length := f.segment(f.hashed.segment)
				take := min(left, length-f.hashed.offset)
				h = fold(fold(h, id), uint64(f.hashed.offset)<<32|uint64(take))
				left -= take
				if f.hashed.offset += take; f.hashed.offset == length {
					f.hashed.segment, f.hashed.offset = f.hashed.segment+1, 0
				}
			}
			dst = append(dst, engine.Hash(h))
			f.hashed.blocks = n
		}
		return dst
	}
}

// segment returns the i-th run of a request's tokens, the answer's last.
func (f *flight) segment(i int) (id uint64, tokens int) {
	if i < len(f.req.Segments) {
		return f.req.Segments[i].ID, f.req.Segments[i].Tokens
	}
	if i == len(f.req.Segments) && f.req.OutputSegment != 0 {
		return f.req.OutputSegment, len(f.tokens) - f.input
	}
	return uint64(f.id) ^ 0x9e3779b97f4a7c15, len(f.tokens) - f.input // an answer that nobody repeats
}

// fold mixes v into h; splitmix64's finaliser.
func fold(h, v uint64) uint64 {
	h += v*0x9e3779b97f4a7c15 + 0x632be59bd9b4e019
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// segmented reports whether all content of a workload is told by segments.
func (w *world) segmented() bool {
	for i := range w.requests {
		r := &w.requests[i]
		if r.Segments == nil || r.Text != nil && len(r.Text.Tokens) > 0 {
			return false
		}
	}
	return true
}
