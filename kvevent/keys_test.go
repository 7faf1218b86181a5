package kvevent

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
)

// pack encodes values as MessagePack. A bool is always written as true.
func pack(values ...any) []byte {
	p := encoder{}
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			p.null()
		case int:
			p.integer(int64(v))
		case int64: // for values that do not fit into an int of 32 bits
			p.integer(v)
		case float64:
			p.float(v)
		case bool:
			p.b = append(p.b, 0xc3)
		case string:
			p.text(v)
		case []byte:
			p.bytes(v)
		case []any:
			p.array(len(v))
			p.b = append(p.b, pack(v...)...)
		case object:
			p.object(len(v) / 2)
			p.b = append(p.b, pack(v...)...)
		default:
			panic("bug: pack does not know this type")
		}
	}
	return p.b
}

// object is a MessagePack map. Its elements are key, value, key, value, …
type object []any

// list returns a MessagePack array.
func list(v ...any) []any { return v }

func decodeOne(t *testing.T, event any) Event {
	t.Helper()
	var d Decoder
	var b Batch
	if err := d.Decode(pack(list(1.5, list(event), 0)), &b); err != nil || len(b.Events) != 1 {
		t.Fatalf("%d events, skipped %d (%s), error %v", len(b.Events), b.Skipped, b.Problem, err)
	}
	return b.Events[0]
}

// storedWith returns a stored event in map form, with two blocks of two tokens. more has further keys and values of the
// map.
func storedWith(parent any, lora any, more ...any) object {
	return append(object{"type", tagStored, "block_hashes", list(1, 2), "parent_block_hash", parent,
		"token_ids", list(10, 11, 12, 13), "block_size", 2, "lora_id", nil, "medium", "GPU", "lora_name", lora}, more...)
}

// array017 returns a stored event in the array form of vLLM 0.17 to 0.19.
func array017(parent any, keys []any) []any {
	return list(tagStored, list(1, 2), parent, list(10, 11, 12, 13), 2, nil, "GPU", nil, keys)
}

func TestExtraKeysAreClassified(t *testing.T) {
	digest := make([]byte, 32)
	type judged struct {
		LoRA, Salt string
		Features   []block.Feature
		Unread     Keys
	}
	at := func(id string, offset int) block.Feature { return block.Feature{ID: id, Offset: offset} }
	cases := []struct {
		name  string
		event any
		want  judged
	}{
		{"nothing", storedWith(nil, nil, "extra_keys", list(nil, nil)), judged{}},
		{"the string of a prompt's first block is its salt", storedWith(nil, nil, "extra_keys", list(list("s"), nil)),
			judged{Salt: "s"}},
		{"the adapter's name comes first", storedWith(nil, "a", "extra_keys", list(list("a", "s"), list("a"))),
			judged{LoRA: "a", Salt: "s"}},
		{"a salt that equals the adapter's name", storedWith(nil, "a", "extra_keys", list(list("a", "a"), list("a"))),
			judged{LoRA: "a", Salt: "a"}},
		{"an image is named once, where it begins",
			storedWith(nil, nil, "extra_keys", list(list(list("img", 1)), list(list("img", -1), list("pic", 0)))),
			judged{Features: []block.Feature{at("img", 1), at("pic", 2)}}},
		{"an image from before the event begins before it",
			storedWith(7, nil, "extra_keys", list(list(list("img", -5)), list(list("img", -7)))),
			judged{Features: []block.Feature{at("img", -5)}}},
		{"the same image twice is two items", storedWith(nil, nil, "extra_keys",
			list(list(list("img", 0), list("img", 1)), nil)),
			judged{Features: []block.Feature{at("img", 0), at("img", 1)}}},
		{"images and a salt", storedWith(nil, nil, "extra_keys", list(list(list("img", 1), "s"), nil)),
			judged{Salt: "s", Features: []block.Feature{at("img", 1)}}},
		{"a string of a later block cannot be placed", storedWith(nil, nil, "extra_keys", list(nil, list("img"))),
			judged{Unread: KeyFeature}},
		{"a string after a parent cannot be placed", storedWith(7, nil, "extra_keys", list(list("img"), nil)),
			judged{Unread: KeyFeature}},
		{"of two strings only the last can be the salt", storedWith(nil, nil, "extra_keys", list(list("img", "s"), nil)),
			judged{Salt: "s", Unread: KeyFeature}},
		{"prompt embeddings", storedWith(nil, nil, "extra_keys", list(list(digest), list(digest))),
			judged{Unread: KeyEmbeds}},
		{"tagged keys, which vLLM hashes but does not publish", storedWith(nil, nil, "extra_keys",
			list(list(list("lora", "a", "/path"), list("cache_salt", "s")), list(list("lora", "a", "/path")))),
			judged{LoRA: "a", Salt: "s"}},
		{"an empty salt", storedWith(nil, nil, "extra_keys", list(list(""), nil)), judged{Unread: KeyOther}},
		{"a key of an unknown shape", storedWith(nil, nil, "extra_keys", list(list(list("x", 1, 2)), list(object{"k", 1}))),
			judged{Unread: KeyOther}},
		{"a number", storedWith(nil, nil, "extra_keys", list(list(5), nil)), judged{Unread: KeyOther}},
		{"an offset out of all bounds", storedWith(nil, nil, "extra_keys", list(list(list("img", int64(1<<40))), nil)),
			judged{Unread: KeyFeature}},
		{"not a list", storedWith(nil, nil, "extra_keys", "s"), judged{Unread: KeyOther}},
		{"fewer entries than hashes", storedWith(nil, nil, "extra_keys", list(list(list("img", 1)))),
			judged{Unread: KeyFeature}},
		{"an adapter with a number and no name", object{"type", tagStored, "block_hashes", list(1), "token_ids", list(1, 2),
			"block_size", 2, "lora_id", 7}, judged{Unread: KeyLoRA}},
		{"an adapter with a text for a number", object{"type", tagStored, "block_hashes", list(1), "token_ids", list(1, 2),
			"block_size", 2, "lora_id", "uid"}, judged{Unread: KeyLoRA}},
		{"vLLM 0.17: a bare string may be a salt or an image", array017(nil, list(list("x"), nil)),
			judged{Unread: KeySalt | KeyFeature}},
		{"vLLM 0.19: an offset beside it says it is the salt", array017(nil, list(list(list("img", 1), "x"), nil)),
			judged{Salt: "x", Features: []block.Feature{at("img", 1)}}},
		{"Dynamo's items cannot be placed", storedWith(nil, nil, "block_mm_infos", list(object{"mm_objects", list()}, nil)),
			judged{Unread: KeyFeature}},
		{"Dynamo without items", storedWith(nil, nil, "block_mm_infos", list(nil, nil)), judged{}},
		{"SGLang's salt", storedWith(nil, nil, "cache_salt", "s"), judged{Salt: "s"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := decodeOne(t, c.event)
			got := judged{e.LoRA, e.Salt, e.Features, e.Unread}
			if len(got.Features) == 0 {
				got.Features = nil
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if e.Indexable(0) != (c.want.Unread == 0) {
				t.Errorf("indexable %v with unread %06b", e.Indexable(0), e.Unread)
			}
		})
	}
}

func TestEventsReportTheKeysThatTheirFormatHides(t *testing.T) {
	const all = KeyLoRA | KeySalt | KeyFeature | KeyExtra
	tokens := list(1, 2)
	cases := []struct {
		name  string
		event any
		want  Keys
	}{
		{"vLLM 0.9 or SGLang before 0.5.9", list(tagStored, list(1), nil, tokens, 2, nil), all},
		{"vLLM 0.10 or SGLang 0.5.9", list(tagStored, list(1), nil, tokens, 2, nil, "GPU"), all},
		{"SGLang 0.5.18, salted", list(tagStored, list(1), nil, tokens, 2, nil, "GPU", object{"cache_salt", "s"}),
			KeyLoRA | KeyExtra},
		{"vLLM 0.14", list(tagStored, list(1), nil, tokens, 2, nil, "GPU", nil), KeySalt | KeyFeature},
		{"vLLM 0.17", list(tagStored, list(1), nil, tokens, 2, nil, "GPU", nil, list(nil)), 0},
		{"vLLM 0.17, offload tier", list(tagStored, list(1), nil, tokens, 2, nil, "CPU", nil, nil),
			KeyLoRA | KeySalt | KeyFeature},
		{"vLLM's map", storedWith(nil, nil, "extra_keys", list(nil, nil)), 0},
		{"vLLM's map, offload tier", object{"type", tagStored, "block_hashes", list(1), "parent_block_hash", nil,
			"token_ids", tokens,
			"block_size", 2, "lora_id", nil, "medium", "CPU", "lora_name", nil}, KeyLoRA | KeySalt | KeyFeature},
		{"TensorRT-LLM's stream", storedWith(nil, nil), KeySalt | KeyFeature},
		{"SGLang's map", object{"type", tagStored, "block_hashes", list(1), "parent_block_hash", nil, "token_ids", tokens,
			"block_size", 2, "lora_id", nil, "medium", "GPU"}, KeyLoRA | KeyExtra},
		{"SGLang's map with an adapter", storedWith(nil, "a"), KeyExtra},
	}
	for _, c := range cases {
		if e := decodeOne(t, c.event); e.Hidden != c.want {
			t.Errorf("%s: hides %06b, want %06b", c.name, e.Hidden, c.want)
		}
	}
}

func TestAnEventIsIndexableOnlyIfNoOtherRequestCanMatchIt(t *testing.T) {
	offloaded := func(parent any) Event {
		return decodeOne(t, object{"type", tagStored, "block_hashes", list(1), "parent_block_hash", parent, "token_ids",
			list(1, 2), "block_size", 2, "lora_id", nil, "medium", "CPU", "lora_name", nil})
	}
	root, child := offloaded(nil), offloaded(9)
	if root.Indexable(KeyRoot) {
		t.Error("an offloaded first block is indexable, although its request may have had a salt")
	}
	if !root.Indexable(0) {
		t.Error("an offloaded first block is not indexable, although no request uses salts or adapters")
	}
	if !child.Indexable(KeyRoot) {
		t.Error("a block with a parent is not indexable, although its parent's scope is known")
	}
	window := decodeOne(t, object{"type", tagStored, "block_hashes", list(1), "token_ids", list(1, 2, 3, 4), "block_size",
		2})
	if window.Indexable(0) {
		t.Error("an event with one hash for two blocks of tokens is indexable")
	}
	empty := decodeOne(t, object{"type", tagStored, "block_hashes", list(), "token_ids", list(1, 2), "block_size", 2})
	if empty.Indexable(0) || empty.Aligned() {
		t.Error("an event without a hash is indexable or aligned")
	}
	placeholder := decodeOne(t, object{"type", tagStored, "block_hashes", list(1), "token_ids", list(), "block_size", 0})
	if placeholder.Indexable(0) {
		t.Error("a placeholder, which has no tokens, is indexable")
	}
}

func TestTiersAndGroupsAreNamedAsEnginesDo(t *testing.T) {
	tiers := []struct {
		medium, locality string
		want             block.Tier
	}{
		{"", "", block.TierGPU}, {"GPU", "", block.TierGPU}, {"gpu", "LOCAL", block.TierGPU},
		{"CPU", "", block.TierCPU}, {"cpu", "", block.TierCPU}, {"CPU_PINNED", "", block.TierCPU},
		{"DISK", "", block.TierDisk}, {"STORAGE", "LOCAL", block.TierDisk}, {"STORAGE", "", block.TierDisk},
		{"FS", "", block.TierDisk},
		{"STORAGE", "REMOTE", block.TierRemote}, {"OBJ", "", block.TierRemote}, {"EXTERNAL", "", block.TierRemote},
		{"SHARED_STORAGE", "", block.TierRemote}, {"CXL", "", block.TierRemote},
	}
	for _, c := range tiers {
		if got := tierOf(c.medium, c.locality); got != c.want {
			t.Errorf("%q %q is on %v, want %v", c.medium, c.locality, got, c.want)
		}
	}
	groups := map[string]block.Attention{
		"": block.AttentionFull, "full_attention": block.AttentionFull, "mla_attention": block.AttentionFull,
		"sink_full_attention": block.AttentionFull, "sliding_window": block.AttentionSlidingWindow,
		"sliding_window_mla": block.AttentionSlidingWindow, "mamba": block.AttentionStateSpace,
		"chunked_local_attention": block.AttentionOther, "encoder_only_attention": block.AttentionOther,
		"cross_attention": block.AttentionOther, "unknown": block.AttentionOther, "new": block.AttentionOther,
	}
	for spec, want := range groups {
		if got := attentionOf(spec); got != want {
			t.Errorf("%q is %v, want %v", spec, got, want)
		}
	}
}

func TestUnusableEventsAreSkippedAndCounted(t *testing.T) {
	good := list(tagRemoved, list(5))
	cases := []struct {
		name       string
		event      any
		tag        string
		incomplete bool
	}{
		{"a removal with a bad hash", list(tagRemoved, list("x")), tagRemoved, true},
		{"a removal without hashes", object{"type", tagRemoved}, tagRemoved, true},
		{"a removal with a bad medium", object{"type", tagRemoved, "block_hashes", list(1), "medium", 3}, tagRemoved, true},
		{"a removal named last", object{"block_hashes", list(1.5), "type", tagRemoved}, tagRemoved, true},
		{"Mooncake's removal", object{"type", tagRemoved, "seq_hashes", list(1), "block_hashes", list(1)}, tagRemoved, false},
		{"an unknown name", list("Block\nMoved", list(1)), "Block?Moved", false},
		{"a long name", list(string(make([]byte, 100))), string(pad('?', maxTag)), false},
		{"a key that is no string", object{1, 2, "type", tagStored}, tagStored, false},
		{"tokens without a size", list(tagStored, list(1), nil, list(1), nil, nil), tagStored, false},
		{"an absurd size", list(tagStored, list(1), nil, list(1), int64(1<<31), nil), tagStored, false},
		{"an empty digest", list(tagStored, list([]byte{}), nil, list(1), 1, nil), tagStored, false},
		{"a token of 33 bits", list(tagStored, list(1), nil, list(int64(1<<32)), 1, nil), tagStored, false},
		{"a window that a 32-bit int does not hold", storedWith(nil, nil, "kv_cache_spec_sliding_window", int64(1<<31)),
			tagStored, false},
		{"pairs that do not chain", list(tagStored, list(1), nil, list(list(1, 2), list(3, 4)), 2, nil), tagStored, false},
		{"a pair of three", list(tagStored, list(1), nil, list(list(1, 2, 3)), 1, nil), tagStored, false},
		{"a parent that is none", list(tagStored, list(1), "p", list(1), 1, nil), tagStored, false},
		{"a name that is null", object{"type", nil}, "untagged", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var d Decoder
			var b Batch
			if err := d.Decode(pack(list(1.5, list(c.event, good), 0)), &b); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]TagCount{{c.tag, 1}}, b.SkippedTags); diff != "" || b.Problem == "" {
				t.Errorf("problem %q (-want +got):\n%s", b.Problem, diff)
			}
			if len(b.Events) != 1 || b.Events[0].Kind != Removed || b.Incomplete != c.incomplete {
				t.Errorf("kept %d events, incomplete %v", len(b.Events), b.Incomplete)
			}
		})
	}
}

func pad(c byte, n int) []byte {
	s := make([]byte, n)
	for i := range s {
		s[i] = c
	}
	return s
}

func TestManyUnknownNamesAreCountedTogether(t *testing.T) {
	var events []any
	for i := range 40 {
		events = append(events, list(string(rune('A'+i))))
	}
	var d Decoder
	var b Batch
	if err := d.Decode(pack(list(1.5, events)), &b); err != nil {
		t.Fatal(err)
	}
	last := b.SkippedTags[len(b.SkippedTags)-1]
	if b.Skipped != 40 || len(b.SkippedTags) != maxTags || last != (TagCount{otherTag, 40 - maxTags + 1}) {
		t.Errorf("%d skipped under %v", b.Skipped, b.SkippedTags)
	}
}

func TestInvalidBatchesAreRejectedWithThePosition(t *testing.T) {
	cases := []struct {
		payload []byte
		want    string
	}{
		{pack(list("LoadStat", 0, 0)), "decode events: the batch's time is no number (byte 1 of 12, after 0 events)"},
		{pack(list(1, list(), -1)), "decode events: the batch's data-parallel rank is none (byte 3 of 4, after 0 events)"},
		{pack(list(1, list()), 7), "decode events: bytes after the batch (byte 3 of 4, after 0 events)"},
		{pack(list(1, list(list(tagCleared))))[:10],
			"decode events: a length beyond the end of the payload (byte 5 of 10, after 1 events)"},
		{pack(object{"ts", 1}), "decode events: the batch has no events (byte 5 of 5, after 0 events)"},
		{pack(object{5, 1}), "decode events: a key of the batch is no string (byte 1 of 3, after 0 events)"},
	}
	for _, c := range cases {
		var d Decoder
		var b Batch
		err := d.Decode(c.payload, &b)
		if err == nil || err.Error() != c.want {
			t.Errorf("%x: %v, want %s", c.payload, err, c.want)
		}
	}
}

func TestHashesHaveOneNormalForm(t *testing.T) {
	digest := make([]byte, 32)
	binary.BigEndian.PutUint64(digest[24:], 1<<63+5)
	e := decodeOne(t, list(tagRemoved, list(digest, digest[16:], int64(-(1<<63)+5), []byte{1, 2})))
	if diff := cmp.Diff([]Hash{1<<63 + 5, 1<<63 + 5, 1<<63 + 5, 0x0102}, e.Hashes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLMCacheChunksComeThroughVLLMsPublisher(t *testing.T) {
	digest := make([]byte, 32)
	digest[31] = 9
	tokens := make([]any, 36)
	for i := range tokens {
		tokens[i] = 1000 + i
	}
	e := decodeOne(t, object{"type", tagStored, "block_hashes", list(digest), "parent_block_hash", nil, "token_ids",
		tokens, "block_size", 36, "lora_id", nil, "medium", "cpu", "lora_name", nil})
	if !e.Aligned() || e.Tier != block.TierCPU || e.Hashes[0] != 9 || e.BlockSize != 36 {
		t.Errorf("decoded %+v", e)
	}
	if e.Hidden != KeyLoRA|KeySalt|KeyFeature || e.Indexable(KeyRoot) {
		t.Errorf("hides %06b: its lora fields are null for all", e.Hidden)
	}
}

func TestMooncakeCountsTimeInMilliseconds(t *testing.T) {
	var d Decoder
	var b Batch
	if err := d.Decode(pack(list(int64(1761955200125), list(), 0)), &b); err != nil || b.Time != 1761955200.125 {
		t.Errorf("time %v, error %v", b.Time, err)
	}
}
