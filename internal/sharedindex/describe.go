package sharedindex

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// description is what a writer says of its holders, as JSON under a key of its own. The key lives for Config.Lease
// after the writer's last sign of life.
type description struct {
	Version int `json:"version"`
	// Serial grows with each sign of life. So a writer finds that the server has gone back to an older description.
	Serial  uint64        `json:"serial"`
	Series  []byte        `json:"series"` // of the slots of Holders
	Holders []holderEntry `json:"holders"`
}

const (
	descriptionVersion = 2
	maxDescription     = 32 << 20 // bytes
	maxHolders         = 1 << 17  // in all descriptions
)

// descriptionHead is how a description begins, up to its serial.
var descriptionHead = fmt.Sprintf(`{"version":%d,"serial":`, descriptionVersion)

// holderEntry is one holder of a description.
type holderEntry struct {
	URL       string `json:"url"`
	Rank      int    `json:"rank"`
	Model     string `json:"model"`      // the base model
	BlockSize int    `json:"block_size"` // tokens
	Algorithm string `json:"algorithm"`  // of the blocks' keys
	Slot      uint32 `json:"slot"`       // what entries of records call the holder; 0: it has none yet
	// Trust is how far the writer's own index can be believed, and Why is the reason.
	Trust        string       `json:"trust"`
	Why          string       `json:"why,omitempty"`
	Groups       []groupEntry `json:"groups,omitempty"`
	AnyTierOrder bool         `json:"any_tier_order,omitempty"`
	Unprovable   bool         `json:"unprovable,omitempty"`
}

// groupEntry is one cache group of a holder. Planes of records refer to groups by their place in the list.
type groupEntry struct {
	Group     int    `json:"group"`
	Attention string `json:"attention"`
	Window    int    `json:"window,omitempty"`     // tokens
	BlockSize int    `json:"block_size,omitempty"` // tokens
}

// decodeDescription decodes a description that somebody wrote. Fields that it does not know are left out.
func decodeDescription(text string) (*description, error) {
	if len(text) > maxDescription {
		return nil, fmt.Errorf("a description of %d bytes is too long", len(text))
	}
	d := new(description)
	if err := json.Unmarshal([]byte(text), d); err != nil {
		return nil, errors.New("a description is not valid JSON")
	}
	if d.Version != descriptionVersion {
		return nil, fmt.Errorf("a description has version %d, this program knows version %d: let writers and routers have the same version of warmpath", d.Version, descriptionVersion)
	}
	for i := range d.Holders {
		if h := &d.Holders[i]; !h.possible() {
			return nil, fmt.Errorf("a description has impossible values for rank %d of a worker", h.Rank)
		}
	}
	return d, nil
}

// possible reports whether a writer may have written the entry. Only a holder without a slot may have no block size.
func (h *holderEntry) possible() bool {
	return h.Slot <= maxSlot && h.BlockSize >= 0 && h.BlockSize <= block.MaxSize && (h.BlockSize > 0 || h.Slot == 0) && len(h.Groups) <= 4*kvindex.MaxGroups
}

// descriptions are what writers said last. A sign of life often has only another serial, and decoding thousands of
// holders takes milliseconds.
type descriptions struct {
	last map[string]decoded // by the id of the writer
}

type decoded struct {
	text string // without the serial
	d    *description
}

// decode decodes what a writer says. The caller does not change the answer, which has the serial of an earlier text if
// the rest is equal.
func (s *descriptions) decode(id, text string) (*description, error) {
	same := withoutSerial(text)
	if last, ok := s.last[id]; ok && last.text == same {
		return last.d, nil
	}
	d, err := decodeDescription(text)
	if err != nil {
		return nil, err
	}
	if s.last == nil {
		s.last = map[string]decoded{}
	}
	s.last[id] = decoded{same, d}
	return d, nil
}

// heardOf is what one writer says, or why it cannot be understood.
type heardOf struct {
	id  string
	d   *description
	err error
}

// all decodes what writers say, in the order of their ids, and forgets all other writers. texts are by id.
func (s *descriptions) all(texts map[string]string) []heardOf {
	maps.DeleteFunc(s.last, func(id string, _ decoded) bool { return texts[id] == "" })
	list := make([]heardOf, 0, len(texts))
	for _, id := range slices.Sorted(maps.Keys(texts)) {
		d, err := s.decode(id, texts[id])
		list = append(list, heardOf{id, d, err})
	}
	return list
}

// withoutSerial returns the part of a description after its serial, or all of it if it does not begin as writers of
// this version write it. Two descriptions with the same part say the same of holders.
func withoutSerial(text string) string {
	rest, ok := strings.CutPrefix(text, descriptionHead)
	after := strings.TrimLeft(rest, "0123456789")
	if n := len(rest) - len(after); !ok || n == 0 || n > 19 || rest[0] == '0' { // the serial may be no valid number
		return text
	}
	return after
}

// measure returns how the holder's blocks are measured.
func (h *holderEntry) measure() *kvindex.Measure {
	var groups []kvindex.GroupStats
	for _, g := range h.Groups {
		groups = append(groups, kvindex.GroupStats{Group: g.Group, Attention: attentionOf(g.Attention), Window: g.Window, BlockSize: g.BlockSize})
	}
	return kvindex.NewMeasure(h.BlockSize, groups, h.AnyTierOrder, h.Unprovable)
}

// attentionOf returns the kind of a cache group. An unknown kind proves nothing.
func attentionOf(name string) block.Attention {
	for a := block.AttentionFull; a < block.AttentionOther; a++ {
		if a.String() == name {
			return a
		}
	}
	return block.AttentionOther
}

func groupEntries(groups []kvindex.GroupStats) (list []groupEntry) {
	for _, g := range groups {
		list = append(list, groupEntry{Group: g.Group, Attention: g.Attention.String(), Window: g.Window, BlockSize: g.BlockSize})
	}
	return list
}
