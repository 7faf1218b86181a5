package kvevent

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// checkBounds checks that the batch of a payload of size bytes stays within the bounds that hold for every payload. If
// err is not nil, the batch must be empty.
func checkBounds(t *testing.T, b *Batch, size int, err error) {
	t.Helper()
	if err != nil {
		if len(b.Events) > 0 || b.Skipped > 0 || b.Incomplete {
			t.Errorf("the payload is rejected, but the batch has %d events and %d skipped events", len(b.Events), b.Skipped)
		}
		return
	}
	hashes, tokens := 0, 0
	for i := range b.Events {
		e := &b.Events[i]
		hashes += len(e.Hashes)
		tokens += len(e.Tokens)
		if e.Aligned() && len(e.Tokens)%len(e.Hashes) != 0 {
			t.Errorf("event %d is aligned with %d tokens and %d hashes", i, len(e.Tokens), len(e.Hashes))
		}
	}
	if hashes > size || tokens > size || len(b.Events) > 4*size || len(b.SkippedTags) > maxTags {
		t.Errorf("%d bytes became %d events, %d hashes, %d tokens, %d tags", size, len(b.Events), hashes, tokens,
			len(b.SkippedTags))
	}
	for _, tag := range b.SkippedTags {
		if len(tag.Tag) > maxTag || strings.ContainsFunc(tag.Tag, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("tag %q", tag.Tag)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, wire := range Wires() {
		f.Add(benchPayload(f, wire, 2, 1))
	}
	f.Add(pack(list(1.5, list(storedWith(nil, "a", "extra_keys", list(list("a", list("img", 1), "s"), nil))), 0)))
	f.Add(pack(list(1.5, list(list(tagStored, list(5), nil, list(list(1, 2)), 1, nil, "GPU", object{"cache_salt", "s"})))))
	// an event with an adapter, in a format without a field for a salt
	f.Add(pack(list(1.5, list(list(tagStored, list(5), nil, list(1, 2), 2, nil, "GPU", "a")))))
	// an event with a salt whose tokens and hashes are not aligned, so its first block is not known
	f.Add(pack(list(1.5, list(storedWith(nil, nil, "cache_salt", "s", "block_size", 9)))))
	// an event with blocks of two tokens and with a look-ahead
	f.Add(pack(list(1.5, list(storedWith(nil, nil, "lookahead_token_ids", list(list(12, 13, 5), list(5, 6, 7)),
		"ownership", "kvcr", "session_id", "s")))))
	f.Add(pack(list(1.5, list(object{"type", tagRemoved, "block_hashes", list(5, 6), "medium", "CPU", "ownership", "x",
		"remaining_copy_counts", list(1, 0)}))))
	f.Fuzz(func(t *testing.T, payload []byte) {
		// A new Decoder and Batch for each run: the result must depend on this payload only.
		var d Decoder
		var b Batch
		err := d.Decode(payload, &b)
		checkBounds(t, &b, len(payload), err)
		if err != nil {
			if again := d.Decode(payload, &b); again == nil || again.Error() != err.Error() {
				t.Errorf("the first decoding gives the error %v, the second %v", err, again)
			}
			return
		}
		// Encoding the batch, decoding the result and encoding it again must give the same bytes.
		w := Wire{}
		first := w.Append(nil, &b)
		if err := d.Decode(payload, &b); err != nil || !bytes.Equal(w.Append(nil, &b), first) {
			t.Errorf("decoding into a used batch: error %v, or another result than with a new batch", err)
		}
		if err := d.Decode(first, &b); err != nil {
			t.Fatalf("decode the encoded batch: %v", err)
		}
		if second := w.Append(nil, &b); !bytes.Equal(first, second) {
			t.Errorf("encoded\n%x, and after decoding and encoding again\n%x", first, second)
		}
	})
}

// samplePayloads returns the payloads of the engine vectors.
func samplePayloads(t testing.TB) [][]byte {
	var all [][]byte
	for _, v := range readVectors(t).Payloads {
		all = append(all, unhex(t, v.Payload))
	}
	return all
}

func TestMutatedAndCutPayloadsNeverPanic(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var d Decoder
	var b Batch
	for _, payload := range samplePayloads(t) {
		for cut := range payload {
			if err := d.Decode(payload[:cut], &b); err == nil {
				t.Errorf("cut at %d of %d: accepted", cut, len(payload))
			}
		}
		for range 200 {
			mutated := bytes.Clone(payload)
			for range 1 + rng.IntN(4) {
				if len(mutated) > 0 {
					mutated[rng.IntN(len(mutated))] = byte(rng.Uint32())
				}
			}
			err := d.Decode(mutated, &b)
			checkBounds(t, &b, len(mutated), err)
		}
	}
}

func TestMemoryIsBoundedByThePayload(t *testing.T) {
	head := []byte{0x93, 0xcb, 0x41, 0xda, 0x41, 0x53, 0x60, 0x08, 0x00, 0x00} // [time, …
	stored := append([]byte{0x91, 0x97, 0xab}, tagStored...)
	cases := map[string][]byte{
		"events promised":       {0xdd, 0xff, 0xff, 0xff, 0xff},
		"hashes promised":       append(bytes.Clone(stored), 0xdd, 0xff, 0xff, 0xff, 0xff),
		"tokens promised":       append(bytes.Clone(stored), 0x90, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"a digest promised":     append(bytes.Clone(stored), 0x91, 0xc6, 0xff, 0xff, 0xff, 0xff),
		"a map promised":        {0x91, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"an extension promised": {0x91, 0xc9, 0xff, 0xff, 0xff, 0xff, 0x01},
		"deep nesting":          bytes.Repeat([]byte{0x91}, 1<<20),
		"deep maps":             bytes.Repeat([]byte{0x81, 0xa0}, 1<<19),
	}
	for name, tail := range cases {
		t.Run(name, func(t *testing.T) {
			payload := append(bytes.Clone(head), tail...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var d Decoder
			var b Batch
			err := d.Decode(payload, &b)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("accepted")
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<16 {
				t.Errorf("%d bytes allocated for a payload of %d", used, len(payload))
			}
		})
	}
}

func TestManySmallEventsTakeMemoryInProportion(t *testing.T) {
	for name, event := range map[string][]any{
		"removals":    list(tagRemoved, list()),
		"unknown":     list("x"),
		"unknown one": list(),
	} {
		const count = 20_000
		var events []any
		for range count {
			events = append(events, event)
		}
		payload := pack(list(1.5, events))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var d Decoder
		var b Batch
		err := d.Decode(payload, &b)
		got := len(b.Events) + b.Skipped
		for d.Next(&b) {
			got += len(b.Events) + b.Skipped
		}
		runtime.ReadMemStats(&after)
		used := after.TotalAlloc - before.TotalAlloc
		if err != nil || got != count {
			t.Fatal(err, got)
		}
		if used > 30*uint64(len(payload)) {
			t.Errorf("%s: %d bytes allocated for a payload of %d", name, used, len(payload))
		}
	}
}

// The time of decoding must grow linearly with the payload. The longer payload is 256 times as long as the shorter one:
// linear work takes 256 times as long, quadratic work 65,000 times. The test allows 8,000 times, because other work on
// the machine disturbs the measurement.
func TestTimeIsInProportionToThePayload(t *testing.T) {
	images := func(n int) []byte {
		hashes, tokens, keys := make([]any, n), make([]any, n), make([]any, n)
		for i := range n {
			// Each block names one item, and the offsets of the items fall from block to block.
			hashes[i], tokens[i], keys[i] = i, 1, list(list("image", n-2*i))
		}
		return pack(list(1.5, list(storedWith(nil, nil, "block_hashes", hashes, "token_ids", tokens, "block_size", 1,
			"extra_keys", keys)), 0))
	}
	repeated := func(key string, value any) func(n int) []byte {
		return func(n int) []byte {
			e := object{"type", tagStored}
			for range n {
				e = append(e, key, value)
			}
			return pack(list(1.5, list(e), 0))
		}
	}
	shapes := map[string]func(n int) []byte{
		"images":            images,
		"nested":            func(n int) []byte { return append(pack(1.5), bytes.Repeat([]byte{0x91}, 4*n)...) },
		"repeated hashes":   repeated("block_hashes", list(1, 2)),
		"repeated tokens":   repeated("token_ids", list(1, 2)),
		"repeated metadata": repeated("metadata", object{"cache_salt", "s"}),
		"repeated keys":     repeated("extra_keys", list(nil, list("a", list("b", 1)))),
		"unusable events":   func(n int) []byte { return pack(list(1.5, slices.Repeat(list(list("x", list(1))), n))) },
		"events of one name": func(n int) []byte {
			return pack(list(1.5,
				slices.Repeat(list(list(tagRemoved, list(1), "cpu")), n)))
		},
		"names": func(n int) []byte {
			var events []any
			for i := range n {
				events = append(events, list(tagRemoved, list(1), fmt.Sprint("medium ", i)))
			}
			return pack(list(1.5, events))
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			// Other work on the machine must not decide the result. So the two payloads alternate, and the shortest of five
			// times counts for each.
			payloads := [2][]byte{shape(100), shape(25_600)}
			best := [2]time.Duration{time.Hour, time.Hour}
			for range 5 {
				for i, payload := range payloads {
					var d Decoder
					var b Batch
					start := time.Now()
					if d.Decode(payload, &b) == nil {
						Wire{}.Append(nil, &b)
					}
					best[i] = min(best[i], time.Since(start))
				}
			}
			if best[1] > 8000*best[0] {
				t.Errorf("%v for %d bytes, %v for %d", best[0], len(payloads[0]), best[1], len(payloads[1]))
			}
		})
	}
}

func TestHugeBuffersAreFreed(t *testing.T) {
	payload := Wire{}.Append(nil, &Batch{Events: []Event{{Group: -1, BlockSize: 1, Tokens: make([]uint32, 2*maxKept)}}})
	var d Decoder
	var b Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if cap(b.tokens) > maxKept {
		t.Errorf("%d tokens are kept, want at most %d", cap(b.tokens), maxKept)
	}
}

func TestNamesAreInternedWithinBounds(t *testing.T) {
	var names interner
	for i := range 10 * maxInterned {
		names.text([]byte{byte(i), byte(i >> 8), byte(i >> 16), 'x'})
	}
	names.text(bytes.Repeat([]byte("x"), maxInternedLen+1))
	if n := len(names.young) + len(names.old); n > 2*maxInterned {
		t.Errorf("%d names are kept, want at most %d", n, 2*maxInterned)
	}
}
