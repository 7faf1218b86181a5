package sharedindex

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
)

// described returns the text of a description as a writer writes it.
func described(t *testing.T, serial uint64, change func(*description)) string {
	t.Helper()
	d := description{Version: descriptionVersion, Serial: serial, Series: []byte("abcd"), Holders: []holderEntry{{URL: "http://worker-0", Slot: 7, BlockSize: 16, Trust: "exact"}}}
	change(&d)
	text, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestASignOfLifeIsDecodedOnlyIfMoreThanTheSerialChanged(t *testing.T) {
	same := func(*description) {}
	var heard descriptions
	decode := func(id, text string) *description {
		t.Helper()
		d, err := heard.decode(id, text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return d
	}
	first := decode("a", described(t, 9, same))
	if decode("a", described(t, 10, same)) != first || decode("a", described(t, 1<<63, same)) != first {
		t.Error("a description with another serial is decoded again")
	}
	if decode("b", described(t, 10, same)) == first {
		t.Error("two writers share a description")
	}
	for what, change := range map[string]func(*description){
		"the series":    func(d *description) { d.Series = []byte("abce") },
		"a slot":        func(d *description) { d.Holders[0].Slot++ },
		"the trust":     func(d *description) { d.Holders[0].Trust = "degraded" },
		"one more":      func(d *description) { d.Holders = append(d.Holders, d.Holders[0]) },
		"no holder":     func(d *description) { d.Holders = nil },
		"a reason":      func(d *description) { d.Holders[0].Why = "full" },
		"another group": func(d *description) { d.Holders[0].Groups = []groupEntry{{Group: 1}} },
	} {
		decode("a", described(t, 11, same))
		text := described(t, 12, change)
		if now, err := json.Marshal(decode("a", text)); err != nil || string(now) != text {
			t.Errorf("%s: the description is %s, want %s", what, now, text)
		}
	}
	second := described(t, 10, same)
	list := heard.all(map[string]string{"c": "no description", "b": second})
	if len(list) != 2 || list[0].id != "b" || list[0].d != decode("b", second) || list[1].id != "c" || list[1].err == nil {
		t.Errorf("two writers say %+v", list)
	}
	if len(heard.last) != 1 {
		t.Errorf("%d writers are remembered, one is left", len(heard.last))
	}
}

// What is remembered of a writer makes no text valid that is not, and hides no change.
func TestOnlyTheSerialIsLeftOut(t *testing.T) {
	text := described(t, 9, func(*description) {})
	for _, other := range []string{
		strings.Replace(text, `:9,`, `:,`, 1),
		strings.Replace(text, `:9,`, `:09,`, 1),
		strings.Replace(text, `:9,`, `:-9,`, 1),
		strings.Replace(text, `:9,`, `:99999999999999999999,`, 1),
		strings.Replace(text, `"version":2`, `"version":3`, 1),
		strings.Replace(text, `"version":2,`, ``, 1),
	} {
		var heard descriptions
		if _, err := heard.decode("a", text); err != nil {
			t.Fatal(err)
		}
		_, want := decodeDescription(other)
		if _, err := heard.decode("a", other); other == text || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", other, err, want)
		}
	}
}

// A router would take the size of such an entry, and find no block.
func TestAWriterWithImpossibleValuesIsLeftOut(t *testing.T) {
	for what, c := range map[string]struct {
		slot uint32
		size int
		ok   bool
	}{
		"a slot and a block size":      {1, 16, true},
		"no slot and no block size":    {0, 0, true},
		"a slot and no block size":     {1, 0, false},
		"a slot and a size below 0":    {1, -1, false},
		"no slot and a size below 0":   {0, -1, false},
		"a block size that is too big": {1, block.MaxSize + 1, false},
		"a slot that is too big":       {maxSlot + 1, 16, false},
	} {
		_, err := decodeDescription(described(t, 1, func(d *description) { d.Holders[0].Slot, d.Holders[0].BlockSize = c.slot, c.size }))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}
