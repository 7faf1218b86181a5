package kvevent

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// vector is one payload of engine_vectors.json.gz, with its contents.
type vector struct {
	ID        string            `json:"id"`
	Origin    string            `json:"origin"`
	Payload   string            `json:"payload_hex"`
	Expect    string            `json:"expect"`
	Expected  *wantBatch        `json:"expected"`
	Remaining []json.RawMessage `json:"expected_remaining_events"`
}

// wantBatch and wantEvent have the form in which the vectors describe a batch. In the vectors, an event has every field
// that an engine may send; a field that the payload does not have is null.
type wantBatch struct {
	Time    float64     `json:"ts"`
	Rank    *int        `json:"data_parallel_rank"`
	Events  []wantEvent `json:"events"`
	Skipped []int       `json:"skipped_event_indexes"`
}

type wantEvent struct {
	Type      string          `json:"type"`
	Hashes    []string        `json:"block_hashes_u64"`
	Parent    *string         `json:"parent_block_hash_u64"`
	Tokens    json.RawMessage `json:"token_ids"`
	BlockSize int             `json:"block_size"`
	LoRAID    *int64          `json:"lora_id"`
	Medium    string          `json:"medium"`
	LoRA      string          `json:"lora_name"`
	ExtraKeys [][]any         `json:"extra_keys"`
	Group     *int            `json:"group_idx"`
	Spec      string          `json:"kv_cache_spec_kind"`
	Window    int             `json:"kv_cache_spec_sliding_window"`
	Locality  string          `json:"locality"`
	Salt      string          `json:"cache_salt"`
}

type vectorFile struct {
	Payloads []vector `json:"kv_event_payloads"`
	Frames   []struct {
		ID   string     `json:"id"`
		Live [][]string `json:"live_multipart_frames_hex"`
	} `json:"zmq_frames"`
	Traces []struct {
		ID    string `json:"id"`
		Steps []struct {
			Step    string      `json:"step"`
			Events  []wantEvent `json:"events"`
			Payload string      `json:"payload_hex"`
		} `json:"steps"`
	} `json:"block_pool_traces"`
	Pages []struct {
		ID             string      `json:"id"`
		StoredPayload  string      `json:"stored_payload_hex"`
		Stored         []wantEvent `json:"stored_expected"`
		RemovedPayload string      `json:"removed_payload_hex"`
		Removed        []wantEvent `json:"removed_expected"`
	} `json:"sglang_page_hashes"`
}

func readVectors(t testing.TB) *vectorFile {
	t.Helper()
	var v vectorFile
	testenv.Vectors(t, &v)
	return &v
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// plain has those fields of an Event that the vectors describe. Other tests check the other fields.
type plain struct {
	Kind      Kind
	Hashes    []Hash
	Parent    *Hash
	Tokens    []block.Token
	Ahead     []block.Token
	BlockSize int
	LoRAID    *int64
	Medium    string
	LoRA      string
	Group     int
	Spec      string
	Window    int
	Locality  string
}

func plainOf(e *Event) plain {
	p := plain{
		Kind: e.Kind, Hashes: e.Hashes, Tokens: e.Tokens, Ahead: slices.Clone(e.Ahead), BlockSize: e.BlockSize,
		Medium: e.Medium,
		LoRA:   e.LoRA, Group: e.Group, Spec: e.Spec, Window: e.Window, Locality: e.Locality,
	}
	if e.HasParent {
		p.Parent = &e.Parent
	}
	if e.HasLoRAID {
		p.LoRAID = &e.LoRAID
	}
	return p
}

func (w *wantEvent) plain(t testing.TB) plain {
	t.Helper()
	p := plain{
		BlockSize: w.BlockSize, LoRAID: w.LoRAID, Medium: w.Medium, LoRA: w.LoRA, Group: -1, Spec: w.Spec,
		Window: w.Window, Locality: w.Locality,
	}
	p.Kind = Kind(slices.Index(kindTags[:], w.Type))
	for _, s := range w.Hashes {
		p.Hashes = append(p.Hashes, number(t, s))
	}
	if w.Parent != nil {
		h := number(t, *w.Parent)
		p.Parent = &h
	}
	if w.Group != nil {
		p.Group = *w.Group
	}
	if len(w.Tokens) > 0 && json.Unmarshal(w.Tokens, &p.Tokens) != nil {
		var pairs [][2]block.Token
		if err := json.Unmarshal(w.Tokens, &pairs); err != nil {
			t.Fatalf("token_ids of a vector: %v", err)
		}
		p.Tokens = nil
		for _, pair := range pairs {
			p.Tokens = append(p.Tokens, pair[0])
			p.Ahead = []block.Token{pair[1]}
		}
	}
	return p
}

func number(t testing.TB, s string) Hash {
	t.Helper()
	h, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func emptyIsNil(a, b []block.Token) bool { return slices.Equal(a, b) }

func compare(t *testing.T, got []Event, want []wantEvent) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		g, w := plainOf(&got[i]), want[i].plain(t)
		if diff := cmp.Diff(w, g, cmp.Comparer(emptyIsNil), cmp.Comparer(slices.Equal[[]Hash])); diff != "" {
			t.Errorf("event %d (-want +got):\n%s", i, diff)
		}
		if want[i].Salt != "" && got[i].Salt != want[i].Salt {
			t.Errorf("event %d: salt %q, want %q", i, got[i].Salt, want[i].Salt)
		}
	}
}

func TestEveryPayloadOfTheVectorsDecodes(t *testing.T) {
	var d Decoder
	for _, v := range readVectors(t).Payloads {
		t.Run(v.ID, func(t *testing.T) {
			var b Batch
			err := d.Decode(unhex(t, v.Payload), &b)
			switch v.Expect {
			case "ok":
				if err != nil {
					t.Fatal(err)
				}
				compare(t, b.Events, v.Expected.Events)
				if b.Skipped != len(v.Expected.Skipped) {
					t.Errorf("%d events skipped, want %d (%s)", b.Skipped, len(v.Expected.Skipped), b.Problem)
				}
				if b.Time != v.Expected.Time {
					t.Errorf("time %v, want %v", b.Time, v.Expected.Time)
				}
				if want := v.Expected.Rank; (want != nil) != b.HasRank || want != nil && *want != b.Rank {
					t.Errorf("rank %v %v, want %v", b.Rank, b.HasRank, want)
				}
			case "skip_event":
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, r := range v.Remaining {
					names = append(names, strings.Trim(string(r), `"`))
				}
				var got []string
				for _, e := range b.Events {
					got = append(got, kindTags[e.Kind])
				}
				if !slices.Equal(got, names) || b.Skipped == 0 || b.Incomplete {
					t.Errorf("kept %q, want %q; skipped %d, incomplete %v", got, names, b.Skipped, b.Incomplete)
				}
			case "reject_batch":
				if err == nil || len(b.Events) > 0 {
					t.Errorf("accepted with %d events, want an error", len(b.Events))
				}
			case "reject_or_skip":
				if err == nil && b.Skipped == 0 {
					t.Error("the payload is neither rejected nor skipped")
				}
			default:
				t.Fatalf("vector expects %q, which this test does not know", v.Expect)
			}
		})
	}
}

func TestFramesTracesAndPagesOfTheVectorsDecode(t *testing.T) {
	vectors := readVectors(t)
	var d Decoder
	var b Batch
	decode := func(t *testing.T, payload string) {
		t.Helper()
		if err := d.Decode(unhex(t, payload), &b); err != nil || b.Skipped > 0 {
			t.Fatalf("error %v, skipped %d: %s", err, b.Skipped, b.Problem)
		}
	}
	for _, f := range vectors.Frames {
		t.Run(f.ID, func(t *testing.T) {
			for _, frames := range f.Live {
				decode(t, frames[2])
				if len(b.Events) != 1 || b.Events[0].Kind != Cleared {
					t.Errorf("decoded %v, want one cleared event", b.Events)
				}
			}
		})
	}
	for _, trace := range vectors.Traces {
		t.Run(trace.ID, func(t *testing.T) {
			for _, step := range trace.Steps {
				if step.Payload != "" {
					decode(t, step.Payload)
					compare(t, b.Events, step.Events)
				}
			}
		})
	}
	for _, page := range vectors.Pages {
		if page.StoredPayload == "" {
			continue // these events have hashes without tokens
		}
		t.Run(page.ID, func(t *testing.T) {
			decode(t, page.StoredPayload)
			compare(t, b.Events, page.Stored)
			if !b.Events[0].Aligned() {
				t.Error("not aligned")
			}
			decode(t, page.RemovedPayload)
			compare(t, b.Events, page.Removed)
		})
	}
}

// wireOf maps the version in a vector's id, which is the part before the slash, to the name of a Wire.
var wireOf = map[string]string{
	"vllm_0_9_0": "vllm-0.9.0", "vllm_0_9_1": "vllm-0.9.1", "vllm_0_10_2": "vllm-0.10.2", "vllm_0_14": "vllm-0.14",
	"vllm_0_17": "vllm-0.17", "vllm_0_20": "vllm-0.20", "vllm_0_22": "vllm-0.22", "vllm_0_24_map": "vllm-0.24",
	"vllm_head_map": "vllm-0.28", "sglang_0_4_6_post5": "sglang-0.4.6", "sglang_0_4_7": "sglang-0.4.7",
	"sglang_0_5_9": "sglang-0.5.9", "sglang_0_5_18": "sglang-0.5.18", "trtllm_stream": "trtllm-1.3",
}

// wireFor returns the Wire with the format of a vector. The name in the id shows whether the hashes have a form that is
// not the default. One vector with vLLM 0.17 in its id has the format of vLLM 0.19.
func wireFor(t *testing.T, id string) (Wire, bool) {
	t.Helper()
	version, name, _ := strings.Cut(id, "/")
	wire, ok := wireOf[version]
	switch {
	case !ok:
		return Wire{}, false
	case strings.HasPrefix(name, "bytes_"):
		wire += "+bytes"
	case name == "negative_int_hash": // vLLM 0.9's builtin hash algorithm makes signed numbers
		wire += "+signed"
	case id == "vllm_0_17/extra_keys_mm_salt_lora":
		wire = "vllm-0.19"
	}
	w, err := ParseWire(wire)
	if err != nil {
		t.Fatal(err)
	}
	return w, true
}

// unsaid reports whether a vector has information that an Event without its raw parts (Digests, ExtraKeys) does not
// have. Such information is the number of blocks that an image covers, the digest of prompt embeddings, whether a
// string was a salt or an image, and the first bytes of a digest.
func unsaid(id string) bool {
	return strings.Contains(id, "/bytes_") || strings.Contains(id, "/extra_keys_")
}

func TestEncodersWriteTheBytesOfEngines(t *testing.T) {
	d := Decoder{KeepRaw: true}
	compared := map[string]int{}
	for _, v := range readVectors(t).Payloads {
		w, ok := wireFor(t, v.ID)
		if !ok || v.Expect != "ok" {
			continue
		}
		t.Run(v.ID, func(t *testing.T) {
			payload := unhex(t, v.Payload)
			var b Batch
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
			if got := w.Append(nil, &b); !bytes.Equal(got, payload) {
				t.Errorf("%v wrote\n%x, want\n%x", w, got, payload)
			}
			compared[strings.Split(v.ID, "/")[0]]++
			if unsaid(v.ID) {
				return
			}
			for i := range b.Events {
				b.Events[i].ExtraKeys, b.Events[i].Digests = nil, nil
			}
			if got := w.Append(nil, &b); !bytes.Equal(got, payload) {
				t.Errorf("%v without raw parts wrote\n%x, want\n%x", w, got, payload)
			}
		})
	}
	if len(compared) != len(wireOf) {
		t.Errorf("compared payloads of %d versions, want %d: %v", len(compared), len(wireOf), compared)
	}
}

func TestEncodersWriteTheBytesOfBlockPoolsAndPages(t *testing.T) {
	vectors := readVectors(t)
	var d Decoder
	check := func(t *testing.T, wire, payload string) {
		t.Helper()
		w, err := ParseWire(wire)
		if err != nil {
			t.Fatal(err)
		}
		var b Batch
		if err := d.Decode(unhex(t, payload), &b); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", w.Append(nil, &b)); got != payload {
			t.Errorf("wrote\n%s, want\n%s", got, payload)
		}
	}
	for _, trace := range vectors.Traces {
		for _, step := range trace.Steps {
			// The skipped step has an image that covers two blocks of one event. The recording names this image in both blocks,
			// but Append names it once: see encoder.extraKeys.
			if step.Payload != "" && !strings.Contains(step.Step, "re-announces") {
				t.Run(trace.ID+"/"+step.Step, func(t *testing.T) { check(t, "vllm-0.28", step.Payload) })
			}
		}
	}
	for _, page := range vectors.Pages {
		if page.StoredPayload == "" {
			continue // these events have hashes without tokens
		}
		t.Run(page.ID, func(t *testing.T) {
			check(t, "sglang-0.5.18", page.StoredPayload)
			check(t, "sglang-0.5.18", page.RemovedPayload)
		})
	}
}
