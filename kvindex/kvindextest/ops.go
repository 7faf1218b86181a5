package kvindextest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// op is one operation on an index.
type op struct {
	kind   opKind
	holder fleet.Holder
	stored kvindex.Stored // used by opStore
	tier   block.Tier     // used by opRemove and opClear
	group  int            // used by opRemove
	hashes []uint64       // used by opRemove
}

type opKind uint8

const (
	opStore opKind = iota
	opRemove
	opClear
	opForget
)

func (o *op) apply(d *Door) {
	switch o.kind {
	case opStore:
		d.Store(o.holder, &o.stored)
	case opRemove:
		d.Remove(o.holder, o.tier, o.group, o.hashes)
	case opClear:
		d.Clear(o.holder, o.tier)
	case opForget:
		d.Forget(o.holder)
	}
}

// String describes an operation, so that a person can read and repeat the operation.
func (o *op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "holder %d: ", o.holder)
	switch o.kind {
	case opStore:
		s := &o.stored
		fmt.Fprintf(&b, "store %v group %d %v", s.Tier, s.Group, s.Attention)
		if s.Window > 0 {
			fmt.Fprintf(&b, " window %d", s.Window)
		}
		if s.HasParent {
			fmt.Fprintf(&b, " after %x", s.Parent)
		} else if !s.RootUnknown {
			fmt.Fprintf(&b, " root %q", s.Scope.Salt)
		}
		fmt.Fprintf(&b, " hashes %x of %d tokens %v", s.Hashes, s.BlockSize, s.Tokens)
		if len(s.Features) > 0 {
			fmt.Fprintf(&b, " features %v", s.Features)
		}
		for _, f := range []struct {
			on   bool
			text string
		}{{s.RootUnknown, " root-unknown"}, {s.AnyTierOrder, " any-tier"}, {s.Origin == kvindex.OriginNew, " new"}, {s.Origin == kvindex.OriginReused, " reused"}} {
			if f.on {
				b.WriteString(f.text)
			}
		}
	case opRemove:
		fmt.Fprintf(&b, "remove %v group %d hashes %x", o.tier, o.group, o.hashes)
	case opClear:
		fmt.Fprintf(&b, "clear %v", o.tier)
	case opForget:
		b.WriteString("forget")
	}
	return b.String()
}

// source makes the random choices of a history, from a seed or from a fuzzer's bytes.
type source interface {
	// choose returns a number below n. If there are no more choices, it returns false.
	choose(n int) (int, bool)
}

// text is a prompt of the model, with its block keys and everything that the keys depend on.
type text struct {
	tokens   []block.Token
	features []block.Feature
	scope    block.Scope
	keys     []block.Key
}

// model makes histories of a few engines. The engines cache a few texts with common prefixes.
type model struct {
	source source
	done   bool
	hasher *block.Hasher
	texts  []text
	groups [][]kvindex.Stored // for each holder and group, the fields of an announcement that describe the group
	sizes  []int              // for each holder, the usual size of its engine blocks
}

const (
	modelHolders = 3
	modelTexts   = 5
	modelBlocks  = 10
)

var groupLayouts = [][]kvindex.Stored{
	{{}},
	{{}},
	{{}},
	{{Attention: block.AttentionSlidingWindow, Window: 9}, {Group: 1}},
	{{Group: 1}, {Group: 3, Attention: block.AttentionStateSpace}},
	{{Attention: block.AttentionSlidingWindow, Window: 5}},
	{{Group: 0}, {Group: 1, Attention: block.AttentionSlidingWindow, Window: 4}, {Group: 2, Attention: block.AttentionStateSpace}},
	{{Group: 0}, {Group: 1}},
	{{Group: 0}, {Group: 1, Attention: block.AttentionOther}},
	{{Attention: block.AttentionStateSpace}},
	{{Group: 0}, {Group: 1, Attention: block.AttentionSlidingWindow}},
}

func newModel(s source) *model {
	m := &model{source: s}
	size := []int{4, 1, 2, 3, 4, 8}[m.choose(6)]
	m.hasher, _ = block.NewHasher(block.XXH3, size)
	for i := range modelTexts {
		m.texts = append(m.texts, m.newText(i, size))
	}
	for range modelHolders {
		m.groups = append(m.groups, groupLayouts[m.choose(len(groupLayouts))])
		m.sizes = append(m.sizes, []int{size, size, size, 2 * size, max(size/2, 1), 1, 3, 6}[m.choose(8)])
	}
	return m
}

func (m *model) choose(n int) int {
	if m.done {
		return 0
	}
	c, ok := m.source.choose(n)
	if !ok {
		m.done = true
		return 0
	}
	return c
}

func (m *model) one(in int) bool { return m.choose(in) == 0 }

// newText returns text number i. The text begins like an earlier text, if there is one, up to a random token.
func (m *model) newText(i, size int) text {
	var t text
	n := modelBlocks * size
	if i > 0 {
		old := m.texts[m.choose(i)]
		t.scope = old.scope
		cut := m.choose(n)
		t.tokens = slices.Clone(old.tokens[:cut])
		for _, f := range old.features {
			if f.Offset < cut {
				t.features = append(t.features, f)
			}
		}
		if m.one(6) {
			t.scope.Salt = "s"
		}
	}
	for len(t.tokens) < n {
		if m.one(20) {
			t.features = append(t.features, block.Feature{ID: fmt.Sprint("image-", m.choose(2)), Offset: len(t.tokens)})
		}
		t.tokens = append(t.tokens, block.Token(10*i+len(t.tokens)%7+1))
	}
	t.keys = m.hasher.Append(nil, m.hasher.Root(t.scope), 0, t.tokens, t.features)
	return t
}

// hash returns an engine's hash of a text's first n tokens. Like vLLM's hash, it does not depend on the block size.
func (m *model) hash(t *text, n int) uint64 {
	h := uint64(len(t.scope.Salt)+1) * 0x9e3779b97f4a7c15
	for i, tok := range t.tokens[:n] {
		h = (h ^ uint64(tok)) * 0x100000001b3
		for _, f := range t.features {
			if f.Offset == i {
				h ^= uint64(f.ID[len(f.ID)-1]) << 20
			}
		}
	}
	return h>>40 | 1<<24
}

// next returns one more operation. If the source has no more choices, it returns false.
func (m *model) next() (op, bool) {
	o := op{holder: fleet.Holder(m.choose(modelHolders))}
	switch c := m.choose(37); {
	case c < 22:
		o.kind = opStore
		m.store(&o)
	case c < 34:
		o.kind = opRemove
		m.remove(&o)
	case c < 36:
		o.kind = opClear
		o.tier = block.Tier(m.choose(2))
	default:
		o.kind = opForget
	}
	return o, !m.done
}

// run is a range of an engine's blocks of one text.
type run struct {
	text     *text
	size     int
	from, to int // the range of engine blocks; to is exclusive
}

func (m *model) run(o *op) run {
	r := run{text: &m.texts[m.choose(modelTexts)], size: m.sizes[o.holder]}
	if m.one(6) {
		r.size = 1 + m.choose(9) // the block size of one stream may change
	}
	blocks := len(r.text.tokens) / r.size
	if blocks == 0 {
		r.size, blocks = 1, len(r.text.tokens)
	}
	if !m.one(3) {
		r.from = m.choose(blocks)
	}
	r.to = min(blocks, r.from+1+m.choose(6))
	return r
}

func (m *model) tier() block.Tier {
	return []block.Tier{block.TierGPU, block.TierGPU, block.TierGPU, block.TierCPU, block.TierCPU, block.TierDisk}[m.choose(6)]
}

func (m *model) hashes(r run) []uint64 {
	var out []uint64
	for i := r.from; i < r.to; i++ {
		out = append(out, m.hash(r.text, (i+1)*r.size))
	}
	return out
}

func (m *model) store(o *op) {
	groups := m.groups[o.holder]
	s := groups[m.choose(len(groups))]
	r := m.run(o)
	lo, hi := r.from*r.size, r.to*r.size
	s.Tier, s.Scope, s.BlockSize = m.tier(), r.text.scope, r.size
	s.Hashes, s.Tokens = m.hashes(r), r.text.tokens[lo:hi]
	if r.from > 0 {
		s.HasParent, s.Parent = true, m.hash(r.text, lo)
	}
	for _, f := range r.text.features {
		if f.Offset < hi && f.Offset+4 > lo { // an image spans some tokens, and may begin in the block before
			s.Features = append(s.Features, block.Feature{ID: f.ID, Offset: f.Offset - lo})
		}
	}
	switch m.choose(16) {
	case 0: // an offload event of one hash, without tokens
		s.Tokens, s.Features, s.BlockSize, s.HasParent, s.Attention, s.Window = nil, nil, 0, false, 0, 0
		s.Hashes = s.Hashes[len(s.Hashes)-1:]
		s.RootUnknown = true
	case 1: // a sliding window: the event has all tokens, but no hashes for the blocks before the window
		s.Hashes = s.Hashes[m.choose(len(s.Hashes)):]
	case 2:
		s.Hashes = s.Hashes[m.choose(len(s.Hashes)):]
		s.Tokens, s.Features, s.RootUnknown = nil, nil, true
	case 3: // an offload event, which does not contain the scope of its chain
		s.RootUnknown, s.Scope = true, block.Scope{}
	case 4:
		s.Hashes, s.Tokens = nil, s.Tokens[:0]
	case 5:
		s.Origin = kvindex.Origin(1 + m.choose(2))
	case 6:
		s.AnyTierOrder = o.holder == 1
	case 7: // older engines announced an offloaded chunk of several blocks as one large block
		s.Tokens, s.Features, s.HasParent = nil, nil, false
		s.BlockSize = r.size * (1 + m.choose(4))
	case 8: // hashes collide, and a chain may be its own ancestor
		for i := range s.Hashes {
			s.Hashes[i] = uint64(m.choose(6)<<4 | i) // no hash occurs twice in one event
		}
		s.Parent = uint64(m.choose(6)<<4 | m.choose(3))
	}
	o.stored = s
}

func (m *model) remove(o *op) {
	r := m.run(o)
	groups := m.groups[o.holder]
	o.tier, o.group = m.tier(), groups[m.choose(len(groups))].Group
	o.hashes = m.hashes(r)
	if m.one(2) { // the last blocks are removed first
		slices.Reverse(o.hashes)
	}
	if m.one(10) {
		o.hashes = append(o.hashes, uint64(m.choose(6)<<4|m.choose(3)))
	}
}
