package kvevent

import (
	"fmt"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/block"
)

// benchPayload returns a message with the given number of events in the format of wire. Each event stores the given
// number of blocks of 16 tokens.
func benchPayload(t testing.TB, wire string, events, blocks int) []byte {
	w, err := ParseWire(wire)
	if err != nil {
		t.Fatal(err)
	}
	const size = 16
	b := Batch{Time: 1761955200.125, HasRank: true}
	for range events {
		e := Event{Group: 0, BlockSize: size, Medium: "GPU", Spec: "full_attention", HasParent: true,
			Parent: 0x9e3779b97f4a7c15}
		for i := range blocks {
			e.Hashes = append(e.Hashes, 0x9e3779b97f4a7c15*uint64(i+1))
		}
		for i := range blocks * size {
			e.Tokens = append(e.Tokens, block.Token(i*7919%128_000))
		}
		b.Events = append(b.Events, e)
	}
	return w.Append(nil, &b)
}

func TestDecodingAllocatesNothingInSteadyState(t *testing.T) {
	for _, wire := range []string{"vllm-0.9.0", "vllm-0.23", "vllm-0.32", "vllm-0.32+bytes", "sglang-0.5.18",
		"sglang-0.5.23"} {
		payloads := [][]byte{benchPayload(t, wire, 1, 32), benchPayload(t, wire, 32, 1)}
		var d Decoder
		var b Batch
		decode := func() {
			for _, p := range payloads {
				if err := d.Decode(p, &b); err != nil {
					t.Fatal(err)
				}
			}
		}
		decode()
		if n := testing.AllocsPerRun(100, decode); n > 0 {
			t.Errorf("%s: %v allocations, want none", wire, n)
		}
	}
}

func TestDecodingSaltsImagesAndUnknownEventsAllocatesNothingInSteadyState(t *testing.T) {
	payload := pack(list(1.5, list(
		storedWith(nil, "adapter", "extra_keys", list(list("adapter", list("img", 1), "tenant"),
			list("adapter", list("img", -1)))),
		list("BlockMoved", list(1)), list(tagRemoved, list(1), "cpu"),
	), 0))
	var d Decoder
	var b Batch
	decode := func() {
		if err := d.Decode(payload, &b); err != nil || len(b.Events) != 2 || b.Skipped != 1 {
			t.Fatal(err, len(b.Events), b.Skipped)
		}
	}
	decode()
	if n := testing.AllocsPerRun(100, decode); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, wire := range []string{"vllm-0.10.2", "vllm-0.32", "vllm-0.32+bytes", "sglang-0.5.23"} {
		for _, shape := range []struct{ events, blocks int }{{1, 32}, {1, 1}, {32, 1}} {
			b.Run(fmt.Sprintf("%s/events=%d/blocks=%d", wire, shape.events, shape.blocks), func(b *testing.B) {
				payload := benchPayload(b, wire, shape.events, shape.blocks)
				var d Decoder
				var batch Batch
				b.ReportAllocs()
				b.SetBytes(int64(len(payload)))
				for b.Loop() {
					if err := d.Decode(payload, &batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N*shape.events*shape.blocks)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
			})
		}
	}
}

// BenchmarkMsgp reads an event in array form with the raw functions of tinylib/msgp, and checks little. The type cursor
// of this package must be faster: compare with BenchmarkDecode.
func BenchmarkMsgp(b *testing.B) {
	payload := benchPayload(b, "vllm-0.10.2", 1, 32)
	hashes, tokens := make([]uint64, 0, 32), make([]uint32, 0, 512)
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		hashes, tokens = hashes[:0], tokens[:0]
		_, p, _ := msgp.ReadArrayHeaderBytes(payload)
		_, p, _ = msgp.ReadFloat64Bytes(p)
		_, p, _ = msgp.ReadArrayHeaderBytes(p)
		_, p, _ = msgp.ReadArrayHeaderBytes(p)
		_, p, _ = msgp.ReadStringZC(p)
		n, p, err := msgp.ReadArrayHeaderBytes(p)
		for range n {
			var h uint64
			h, p, err = msgp.ReadUint64Bytes(p)
			hashes = append(hashes, h)
		}
		_, p, _ = msgp.ReadUint64Bytes(p)
		n, p, _ = msgp.ReadArrayHeaderBytes(p)
		for range n {
			var token uint32
			token, p, err = msgp.ReadUint32Bytes(p)
			tokens = append(tokens, token)
		}
		if err != nil || len(hashes) != 32 || len(tokens) != 512 {
			b.Fatal(err, len(hashes), len(tokens))
		}
	}
	b.ReportMetric(float64(b.N*32)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

func BenchmarkEncode(b *testing.B) {
	var d Decoder
	var batch Batch
	if err := d.Decode(benchPayload(b, "vllm-0.32", 1, 32), &batch); err != nil {
		b.Fatal(err)
	}
	var w Wire
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = w.Append(dst[:0], &batch)
	}
	b.SetBytes(int64(len(dst)))
}
