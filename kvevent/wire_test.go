package kvevent

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/warmpath/warmpath/block"
)

func TestWiresAreFoundByVersion(t *testing.T) {
	cases := map[string]string{
		"": "", "vllm": "vllm-0.33.0", "sglang": "sglang-0.5.23", "trtllm": "trtllm-1.3.0", "vllm-0.9.0": "vllm-0.9.0",
		"vllm-0.10": "vllm-0.9.1", "vllm-0.10.1": "vllm-0.9.1", "vllm-0.10.2": "vllm-0.10.2", "vllm-0.18.1": "vllm-0.17.0",
		"vllm-0.26": "vllm-0.24.0", "vllm-0.32.1": "vllm-0.32.0", "vllm-1.0": "vllm-0.33.0",
		"vllm-0.32+bytes":   "vllm-0.32.0+bytes",
		"vllm-0.9.0+signed": "vllm-0.9.0+signed", "sglang-0.5.17": "sglang-0.5.9", "sglang-0.4.6.5": "sglang-0.4.6",
		"vllm-0.8.5": "", "dynamo": "", "vllm-x": "", "vllm-": "", "vllm-0.9+hex": "", "sglang-0.4.5": "", "vllm--1": "",
	}
	for s, want := range cases {
		w, err := ParseWire(s)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q was accepted as %v", s, w)
		case want != "" && (err != nil || w.String() != want):
			t.Errorf("%q is %v (error %v), want %s", s, w, err, want)
		}
	}
	for _, name := range Wires() {
		if w, err := ParseWire(name); err != nil || w.String() != name {
			t.Errorf("%s is %v, error %v", name, w, err)
		}
	}
	if got := (Wire{}).String(); got != "vllm-0.33.0" {
		t.Errorf("the zero wire is %s", got)
	}
}

// drawBatch returns a random batch. The format of w has a field for every value of the batch.
func drawBatch(t *rapid.T, w Wire) *Batch {
	f, _ := w.resolve()
	b := &Batch{Time: rapid.Float64Range(0, 1e11).Draw(t, "time")}
	if f.batch > 2 && rapid.Bool().Draw(t, "ranked") {
		b.HasRank, b.Rank = true, rapid.IntRange(0, maxRank).Draw(t, "rank")
	}
	for range rapid.IntRange(0, 5).Draw(t, "events") {
		b.Events = append(b.Events, drawEvent(t, w, f))
	}
	return b
}

func drawEvent(t *rapid.T, w Wire, f *format) Event {
	e := Event{Group: -1, Kind: rapid.SampledFrom([]Kind{Stored, Stored, Removed, Cleared}).Draw(t, "kind")}
	if e.Kind == Cleared {
		return e
	}
	hash := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 300))
	e.Hashes = rapid.SliceOfN(hash, 0, 20).Draw(t, "hashes")
	mapped := f.stored == 0
	if f.removed > 1 || mapped {
		e.Medium = rapid.SampledFrom([]string{"", "GPU", w.Medium(block.TierCPU), w.Medium(block.TierDisk)}).Draw(t, "medium")
	}
	if f.removed > 2 || mapped && f.keys == keysVLLM {
		e.Group = rapid.IntRange(-1, 3).Draw(t, "group")
	}
	if f.place {
		e.Locality = rapid.SampledFrom([]string{"", "LOCAL", "REMOTE"}).Draw(t, "locality")
	}
	e.Tier = tierOf(e.Medium, e.Locality)
	if f.owner && f.keys == keysVLLM {
		e.Owner = rapid.SampledFrom([]string{"", OwnerKVCR, "another"}).Draw(t, "owner")
		e.Tier = ownedTier(e.Tier, e.Owner)
	}
	if e.Kind == Stored {
		drawStored(t, &e, f)
	}
	return e
}

func drawStored(t *rapid.T, e *Event, f *format) {
	token := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(0, 200_000))
	e.BlockSize = rapid.SampledFrom([]int{0, 1, 2, 16, 400}).Draw(t, "size")
	n := len(e.Hashes) * e.BlockSize
	if rapid.Bool().Draw(t, "window") {
		n = rapid.IntRange(0, 40).Draw(t, "tokens")
	}
	e.Tokens = rapid.SliceOfN(token, n, n).Draw(t, "ids")
	if e.HasParent = rapid.Bool().Draw(t, "child"); e.HasParent {
		e.Parent = rapid.Uint64().Draw(t, "parent")
	}
	mapped, vllm := f.stored == 0, f.family == "vllm"
	if f.family == "sglang" && n > 0 && rapid.Bool().Draw(t, "bigram") {
		e.Bigram, e.Ahead = true, []block.Token{token.Draw(t, "next")}
	}
	if f.ahead && len(e.Hashes) > 0 && rapid.Bool().Draw(t, "ahead") {
		e.Ahead = rapid.SliceOfN(token, 1, 20).Draw(t, "after")
	}
	named := f.stored > 6 || mapped
	if named && rapid.Bool().Draw(t, "lora") {
		e.LoRA = rapid.StringN(1, 40, -1).Draw(t, "adapter")
	}
	if vllm && (named && e.LoRA != "" || !named) && rapid.Bool().Draw(t, "numbered") {
		e.HasLoRAID, e.LoRAID = true, rapid.Int64Range(1, 1<<40).Draw(t, "id")
		if !named {
			e.Unread = KeyLoRA
		}
	}
	if f.stored > 9 || mapped && f.keys == keysVLLM {
		e.Spec = rapid.SampledFrom([]string{"", "full_attention", "sliding_window", "mamba", "cross_attention"}).Draw(t,
			"spec")
		e.Window = rapid.SampledFrom([]int{0, 128, 4096}).Draw(t, "width")
	}
	e.HasAttention, e.Attention = e.Spec != "", attentionOf(e.Spec)
	drawKeys(t, e, f)
}

// drawKeys sets random extra keys for which the format has fields. It sets Hidden to the other extra keys.
func drawKeys(t *rapid.T, e *Event, f *format) {
	mapped := f.stored == 0
	// unambiguous says that a string in the extra_keys of this format is always a salt.
	unambiguous := f.stored > 8 || mapped && f.keys == keysVLLM
	switch salt := rapid.SampledFrom([]string{"", "tenant-ä"}).Draw(t, "salt"); {
	case f.meta, mapped && f.keys == keysSGLang:
		e.Salt = salt
	case unambiguous && len(e.Hashes) > 0 && !e.HasParent && e.Aligned():
		e.Salt = salt
	}
	if f.offsets && e.Aligned() && (unambiguous || e.Salt == "") {
		offsets := rapid.SliceOfNDistinct(rapid.IntRange(0, len(e.Tokens)-1), 0, 4, rapid.ID[int]).Draw(t, "items")
		slices.Sort(offsets)
		for _, at := range offsets {
			e.Features = append(e.Features, block.Feature{ID: rapid.SampledFrom([]string{"img", "pic"}).Draw(t, "item"),
				Offset: at})
		}
	}
	var r reading
	if !mapped {
		r.fields = 1 + f.stored
	}
	if f.stored > 6 || mapped && (f.keys != keysSGLang || e.LoRA != "") {
		r.present |= 1 << fieldLoRAName
	}
	if f.meta && e.Salt != "" {
		r.present |= 1 << fieldMetadata
		r.fields++
	}
	offloaded := e.Tier != block.TierGPU && e.Salt == "" && e.Features == nil
	if f.stored > 7 && !offloaded || mapped && f.keys == keysVLLM && !offloaded {
		r.filled |= 1 << fieldExtraKeys
	}
	e.Hidden, e.NoExtraKeys = hidden(e, &r), !r.holds(fieldExtraKeys)
}

func TestAnEncodedBatchDecodesToTheSameBatch(t *testing.T) {
	same := cmp.Options{cmpopts.IgnoreUnexported(Batch{}), cmpopts.EquateEmpty()}
	forms := []string{"", "+int", "+signed", "+bytes"}
	var d Decoder // d and got are used for all batches, so the test fails if a value of an earlier batch remains in them
	var got Batch
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Wires()).Draw(t, "wire") + rapid.SampledFrom(forms).Draw(t, "form")
		w, err := ParseWire(name)
		if err != nil {
			t.Fatal(err)
		}
		want := drawBatch(t, w)
		prefix := []byte("kept")
		payload := w.Append(prefix, want)
		if string(payload[:4]) != "kept" {
			t.Fatal("the slice was not appended to")
		}
		if err := d.Decode(payload[4:], &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got, same); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", name, diff)
		}
	})
}

func TestATierWithoutAMediumIsWrittenByName(t *testing.T) {
	for wire, want := range map[string]string{"vllm": "CPU", "sglang": "CPU_PINNED"} {
		w, err := ParseWire(wire)
		if err != nil {
			t.Fatal(err)
		}
		var d Decoder
		var b Batch
		payload := w.Append(nil, &Batch{Events: []Event{{Kind: Removed, Group: -1, Tier: block.TierCPU, Hashes: []Hash{1}}}})
		if err := d.Decode(payload, &b); err != nil || b.Events[0].Medium != want || b.Events[0].Tier != block.TierCPU {
			t.Errorf("%s: medium %q on %v, error %v", wire, b.Events[0].Medium, b.Events[0].Tier, err)
		}
	}
}

// NoExtraKeys alone decides whether the field is written: no other field of the event does.
func TestTheFieldExtraKeysIsLeftOutOnRequest(t *testing.T) {
	for _, name := range []string{"vllm-0.32", "vllm-0.33"} {
		w, err := ParseWire(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []Event{{Tier: block.TierGPU}, {Tier: block.TierGPU, LoRA: "a"}, {Tier: block.TierCPU}, {Tier: block.TierCPU, LoRA: "a", Hidden: KeyRoot}} {
			e.Kind, e.Group, e.Hashes, e.Tokens, e.BlockSize = Stored, -1, []Hash{1}, []uint32{2}, 1
			for _, without := range []bool{false, true} {
				e.NoExtraKeys = without
				var d Decoder
				var b Batch
				if err := d.Decode(w.Append(nil, &Batch{Events: []Event{e}}), &b); err != nil || b.Events[0].NoExtraKeys != without {
					t.Errorf("%s: %+v is read as %+v: %v", name, e, b.Events, err)
				}
			}
		}
	}
}
