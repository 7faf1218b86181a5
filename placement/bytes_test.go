package placement

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// A node of the tree is a part of a key (a run), with the holders to which it was sent. If two holders share a run and
// one of the two loses the end of the run, the store splits the run into two nodes. So an eviction may need more memory
// than it frees, and must still keep the limit.
func TestAnEvictionKeepsTheLimitOfBytes(t *testing.T) {
	key := func(prompt uint64) []byte {
		var units []byte
		for i := range uint64(10) {
			units = binary.LittleEndian.AppendUint64(units, prompt<<8+i)
		}
		return units
	}
	const shared = 8 // prompts that were sent to both holders; one more prompt was sent to the first holder only
	// The bytes of the store without its root: each prompt has one node, a link for each of its holders, and a key of 80
	// bytes.
	const full = shared*(nodeBytes+2*linkBytes+80) + nodeBytes + linkBytes + 80
	for name, evict := range map[string]func(s *Store){
		"Evict":  func(s *Store) { s.Evict(int64(5 * time.Second)) },
		"Shrink": func(s *Store) { s.Shrink(20*shared + 5) },
	} {
		s := New(Config{Keys: Blocks, Bytes: full, HolderUnits: 85, HolderTarget: 85, Interval: time.Second})
		s.Evict(1)
		for i := range uint64(shared) {
			for h := range fleet.Holder(2) {
				s.Learn(First, h, key(i), 2)
			}
		}
		s.Learn(First, 0, key(shared), 3)
		if got := s.Stats(); got.Bytes != full+nodeBytes || got.Units != 20*shared+10 {
			t.Fatalf("%+v, want a full store of %d bytes", got, full+nodeBytes)
		}
		evict(s)
		if got := s.Stats(); got.Bytes > full+nodeBytes {
			t.Errorf("%s: %d bytes, the limit is %d", name, got.Bytes, full+nodeBytes)
		}
		if s.Units(0) != 80 || s.Units(1) != 80 {
			t.Errorf("%s: %d and %d units are left, want 80 and 80", name, s.Units(0), s.Units(1))
		}
	}
}
