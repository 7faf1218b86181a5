package kvevent

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// long returns a payload that contains the same event n times. rank is the third element of the envelope; without it
// the element is nil.
func long(n int, event []byte, rank ...any) []byte {
	p := append([]byte{0x93, 0xca, 0, 0, 0, 0, 0xdd}, binary.BigEndian.AppendUint32(nil, uint32(n))...)
	p = append(p, bytes.Repeat(event, n)...)
	return append(p, pack(append(rank, nil)[0])...)
}

// array returns a MessagePack array that contains the same value n times.
func array(n int, value ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n)), bytes.Repeat(value, n)...)
}

func TestALongMessageComesInPartsOfTheSameEvents(t *testing.T) {
	var events []Event
	for i := range 3*fullEvents + 7 {
		e := Event{Kind: Removed, Group: -1, Medium: "GPU", Hashes: []Hash{Hash(i)}}
		if i%3 == 0 {
			e = Event{Kind: Stored, Group: -1, Medium: "GPU", BlockSize: 1, Hashes: []Hash{Hash(i), Hash(i + 1)},
				Tokens: []uint32{1, uint32(i)}}
		}
		events = append(events, e)
	}
	events[fullEvents+1].Hashes = make([]Hash, fullHashes)
	w, err := ParseWire("vllm-0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	payload := w.Append(nil, &Batch{Time: 5, HasRank: true, Rank: 3, Events: events})
	var d Decoder
	var b Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	parts, at := 1, 0
	for {
		if !b.HasRank || b.Rank != 3 || b.Time != 5 || b.Skipped > 0 || b.Incomplete {
			t.Fatalf("part %d: rank %d, time %v, %d skipped", parts, b.Rank, b.Time, b.Skipped)
		}
		for i := range b.Events {
			got, want := &b.Events[i], &events[at]
			if got.Kind != want.Kind || !slices.Equal(got.Hashes, want.Hashes) || !slices.Equal(got.Tokens, want.Tokens) {
				t.Fatalf("event %d of part %d: %s", i, parts, cmp.Diff(want, got))
			}
			at++
		}
		if !d.Next(&b) {
			break
		}
		parts++
	}
	if at != len(events) || parts < 4 {
		t.Errorf("%d of %d events in %d parts", at, len(events), parts)
	}
	if d.Next(&b) {
		t.Error("the decoder gives another part after the last part")
	}
}

func TestALongMessageThatIsBrokenIsRejectedWhole(t *testing.T) {
	payload := long(3*fullEvents, pack(list(tagRemoved, list(1))))
	var d Decoder
	var b Batch
	for _, broken := range [][]byte{payload[:len(payload)-3], append(bytes.Clone(payload[:len(payload)-1]), 0xc1),
		append(bytes.Clone(payload), 0)} {
		if err := d.Decode(broken, &b); err == nil || b.More || len(b.Events) > 0 || d.Next(&b) {
			t.Errorf("accepted: %v, %d events", err, len(b.Events))
		}
	}
}

// Neither the memory of the batch nor the allocations of decoding grow with the length of the message.
func TestTheMemoryOfDecodingDoesNotGrowWithTheMessage(t *testing.T) {
	const size, most = 8 << 20, 32 << 20
	stored := func(hashes, tokens []byte) []byte {
		e := append([]byte{0x95}, pack(tagStored)...)
		e = append(append(append(e, hashes...), 0xc0), tokens...)
		return append(e, 1)
	}
	removed := func(hashes []byte) []byte { return append(append([]byte{0x92}, pack(tagRemoved)...), hashes...) }
	keyed := func(keys []byte) []byte {
		e := append([]byte{0x99}, pack(tagStored)...)
		e = append(append(append(e, array(1, 7)...), 0xc0), array(1, 1)...)
		e = append(e, 1, 0xc0, 0xc0, 0xc0)
		return append(append(e, 0xdd, 0, 0, 0, 1), keys...)
	}
	object := func(key string, value []byte, n int) []byte {
		e := append([]byte{0xde}, binary.BigEndian.AppendUint16(nil, uint16(n+1))...)
		e = append(append(e, pack("type")...), pack(tagStored)...)
		return append(e, bytes.Repeat(append(pack(key), value...), n)...)
	}
	for name, event := range map[string][]byte{
		"removals without hashes":        removed(array(0)),
		"removals of one hash":           removed(array(1, 1)),
		"the shortest removals":          append(append([]byte{0x92}, pack(tagRemoved)...), 0x90),
		"empty stored events":            stored(array(0), array(0)),
		"resets":                         pack(list(tagCleared)),
		"nil":                            {0xc0},
		"empty arrays":                   {0x90},
		"empty maps":                     {0x80},
		"unknown events":                 pack(list("x")),
		"arrays of nil":                  array(1000, 0xc0),
		"removals of the most hashes":    removed(array(maxHashes, 1)),
		"removals of too many hashes":    removed(array(maxHashes+1, 1)),
		"stored events of the most":      stored(array(maxHashes, 1), array(maxTokens, 1)),
		"one hash below a full batch":    removed(array(fullHashes-1, 1)),
		"too many tokens":                stored(array(1, 1), array(maxTokens+1, 1)),
		"token pairs":                    stored(array(1, 1), array(maxTokens, 0x92, 1, 1)),
		"the longest array":              removed(array(size, 1)),
		"the longest array of nil":       array(size, 0xc0),
		"items":                          keyed(array(maxFeatures, 0x92, 0xa0, 0)),
		"too many items":                 keyed(array(size/3, 0x92, 0xa0, 0)),
		"hashes again and again":         object("block_hashes", array(1000, 1), 1000),
		"tokens again and again":         object("token_ids", array(1000, 1), 1000),
		"adapters of the longest names":  object("lora_name", append([]byte{0xdb, 0, 0, 4, 0}, make([]byte, 1024)...), 1),
		"unread keys of many, each once": keyed(array(1000, 0x01)),
	} {
		t.Run(name, func(t *testing.T) {
			payload := long(max(1, size/len(event)), event)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var d Decoder
			var b Batch
			err := d.Decode(payload, &b)
			parts := 1
			for d.Next(&b) {
				parts++
			}
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > most {
				t.Errorf("%d MiB allocated for a payload of %d MiB in %d parts", used>>20, len(payload)>>20, parts)
			}
		})
	}
}
