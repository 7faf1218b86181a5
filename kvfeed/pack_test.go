package kvfeed

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
)

// pack writes a value as MessagePack, in the long form of each type. Tests use it for events that no engine version
// sends yet.
func pack(v any) []byte {
	head := func(code byte, n int) []byte { return binary.BigEndian.AppendUint32([]byte{code}, uint32(n)) }
	var b []byte
	switch v := v.(type) {
	case nil:
		return []byte{0xc0}
	case float64:
		return binary.BigEndian.AppendUint64([]byte{0xcb}, math.Float64bits(v))
	case int:
		return binary.BigEndian.AppendUint64([]byte{0xd3}, uint64(v))
	case kvevent.Hash:
		return binary.BigEndian.AppendUint64([]byte{0xcf}, v)
	case block.Token:
		return head(0xce, int(v))
	case string:
		return append(head(0xdb, len(v)), v...)
	case []any:
		b = head(0xdd, len(v))
		for _, e := range v {
			b = append(b, pack(e)...)
		}
	case []kvevent.Hash:
		b = head(0xdd, len(v))
		for _, e := range v {
			b = append(b, pack(e)...)
		}
	case []block.Token:
		b = head(0xdd, len(v))
		for _, e := range v {
			b = append(b, pack(e)...)
		}
	case []int:
		b = head(0xdd, len(v))
		for _, e := range v {
			b = append(b, pack(e)...)
		}
	case map[string]any:
		b = head(0xdf, len(v))
		var keys []string
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			b = append(append(b, pack(k)...), pack(v[k])...)
		}
	default:
		panic("bug: pack does not know this type")
	}
	return b
}
