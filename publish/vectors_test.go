package publish

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

var update = flag.Bool("update", false, "write the payloads and hashes of testdata/vectors.json")

const vectorsFile = "testdata/vectors.json"

// vectors is testdata/vectors.json.
type vectors struct {
	About   string       `json:"about"`
	Cases   []vectorCase `json:"cases"`
	Refused []vectorCase `json:"refused"`
	Hashes  []hashCase   `json:"hashes"`
}

type vectorCase struct {
	Name      string        `json:"name"`
	Time      float64       `json:"ts"`
	Rank      int           `json:"rank"`
	BlockSize int           `json:"block_size"`
	Events    []vectorEvent `json:"events"`
	Payload   string        `json:"payload,omitempty"`
	SHA256    *string       `json:"sha256,omitempty"`
}

type vectorEvent struct {
	Type        string              `json:"type"`
	TokenIDs    []block.Token       `json:"token_ids,omitempty"`
	Below       int                 `json:"tokens_below,omitempty"`
	Hashes      []json.RawMessage   `json:"block_hashes,omitempty"`
	HashesBelow int                 `json:"hashes_below,omitempty"`
	Parent      json.RawMessage     `json:"parent_hash,omitempty"`
	BlockSize   int                 `json:"block_size,omitempty"`
	LoRA        string              `json:"lora_name,omitempty"`
	LoRAID      *int64              `json:"lora_id,omitempty"`
	Salt        string              `json:"cache_salt,omitempty"`
	ExtraKeys   [][]json.RawMessage `json:"extra_keys,omitempty"`
	Medium      string              `json:"medium,omitempty"`
	Group       *int                `json:"group_idx,omitempty"`
	Kind        string              `json:"kv_cache_spec_kind,omitempty"`
	Window      int                 `json:"kv_cache_spec_sliding_window,omitempty"`
}

type hashCase struct {
	Name      string        `json:"name"`
	TokenIDs  []block.Token `json:"token_ids"`
	BlockSize int           `json:"block_size"`
	Parent    *string       `json:"parent_hash"`
	LoRA      *string       `json:"lora_name"`
	Salt      *string       `json:"cache_salt"`
	Hashes    []string      `json:"hashes"`
}

func readVectors(t testing.TB) *vectors {
	t.Helper()
	data, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var v vectors
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode %s: %v", vectorsFile, err)
	}
	return &v
}

// write writes the vectors with one case a line.
func (v *vectors) write(t *testing.T) {
	t.Helper()
	var b bytes.Buffer
	line := func(x any) {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(x); err != nil {
			t.Fatal(err)
		}
		b.Truncate(b.Len() - 1)
	}
	list := func(name string, n int, at func(i int) any) {
		b.WriteString(",\n\"" + name + "\":[")
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
			line(at(i))
		}
		b.WriteString("\n]")
	}
	b.WriteString(`{"about":`)
	line(v.About)
	list("cases", len(v.Cases), func(i int) any { return v.Cases[i] })
	list("refused", len(v.Refused), func(i int) any { return v.Refused[i] })
	list("hashes", len(v.Hashes), func(i int) any { return v.Hashes[i] })
	b.WriteString("\n}\n")
	if err := os.WriteFile(vectorsFile, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// one reads a hash: a number, or a byte string as a text.
func one(t testing.TB, raw json.RawMessage) (number Hash, digest []byte) {
	t.Helper()
	var s string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		return 0, unhex(t, s)
	}
	if err := json.Unmarshal(raw, &number); err != nil {
		t.Fatal(err)
	}
	return number, nil
}

// events returns the events of a case.
func (c *vectorCase) events(t testing.TB) (events []Event) {
	t.Helper()
	for _, e := range c.Events {
		hashes, digests := []Hash(nil), [][]byte(nil)
		for _, raw := range e.Hashes {
			if h, d := one(t, raw); d != nil {
				digests = append(digests, d)
			} else {
				hashes = append(hashes, h)
			}
		}
		for i := range e.HashesBelow {
			hashes = append(hashes, Hash(i))
		}
		switch e.Type {
		case "cleared":
			events = append(events, Event{Cleared: true})
		case "removed":
			events = append(events, Event{Removed: &Removed{BlockHashes: hashes, BlockDigests: digests, Medium: e.Medium, Group: e.Group}})
		case "stored":
			s := &Stored{TokenIDs: e.TokenIDs, BlockSize: e.BlockSize, BlockHashes: hashes, BlockDigests: digests, LoRAName: e.LoRA,
				LoRAID: e.LoRAID, CacheSalt: e.Salt, Medium: e.Medium, Group: e.Group, Kind: e.Kind, Window: e.Window}
			for i := range e.Below {
				s.TokenIDs = append(s.TokenIDs, block.Token(i))
			}
			if len(e.Parent) > 0 {
				s.ParentHash, s.ParentDigest = one(t, e.Parent)
				s.HasParent = s.ParentDigest == nil
			}
			for i, keys := range e.ExtraKeys {
				if i == 0 {
					s.ExtraKeys = make([][]ExtraKey, len(e.ExtraKeys))
				}
				for _, raw := range keys {
					s.ExtraKeys[i] = append(s.ExtraKeys[i], extraKey(t, raw))
				}
			}
			events = append(events, Event{Stored: s})
		default:
			t.Fatalf("%s: an event of type %q", c.Name, e.Type)
		}
	}
	return events
}

func extraKey(t testing.TB, raw json.RawMessage) ExtraKey {
	t.Helper()
	if raw[0] == '{' {
		var embedding struct{ Digest string }
		if err := json.Unmarshal(raw, &embedding); err != nil {
			t.Fatal(err)
		}
		return Embedding(unhex(t, embedding.Digest))
	}
	var pair [2]json.RawMessage
	var id string
	var offset int
	if err := errors.Join(json.Unmarshal(raw, &pair), json.Unmarshal(pair[0], &id), json.Unmarshal(pair[1], &offset)); err != nil {
		t.Fatal(err)
	}
	return Item(id, offset)
}

func TestVectorsAreWritten(t *testing.T) {
	v := readVectors(t)
	for i := range v.Cases {
		c := &v.Cases[i]
		payload, err := Append(nil, c.Time, c.Rank, c.BlockSize, c.events(t)...)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		sum := sha256.Sum256(payload)
		switch got, gotSum := hex.EncodeToString(payload), hex.EncodeToString(sum[:]); {
		case *update && c.SHA256 != nil:
			*c.SHA256 = gotSum
		case *update:
			c.Payload = got
		case c.SHA256 != nil && gotSum != *c.SHA256:
			t.Errorf("%s: SHA-256 %s, want %s", c.Name, gotSum, *c.SHA256)
		case c.SHA256 == nil && got != c.Payload:
			t.Errorf("%s:\n got %s\nwant %s", c.Name, got, c.Payload)
		}
	}
	for i := range v.Hashes {
		c := &v.Hashes[i]
		got := c.hash(t)
		if *update {
			c.Hashes = got
		} else if !slices.Equal(got, c.Hashes) {
			t.Errorf("%s: hashes %q, want %q", c.Name, got, c.Hashes)
		}
	}
	if *update {
		v.write(t)
	}
}

func (c *hashCase) hash(t testing.TB) []string {
	t.Helper()
	var parent []byte
	if c.Parent != nil {
		parent = unhex(t, *c.Parent)
	}
	hashes, err := HashBlocks(c.TokenIDs, c.BlockSize, parent, deref(c.LoRA), deref(c.Salt))
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	texts := []string{}
	for _, h := range hashes {
		texts = append(texts, hex.EncodeToString(h))
	}
	return texts
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestWrongEventsAreRefused(t *testing.T) {
	p := New(Config{Endpoint: "tcp://127.0.0.1:*", BlockSize: 0})
	for _, c := range readVectors(t).Refused {
		if _, err := Append(nil, 0, c.Rank, c.BlockSize, c.events(t)...); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v", c.Name, err)
		}
		if _, err := p.PublishBatch(c.events(t)...); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s, published: error %v", c.Name, err)
		}
	}
	if n := p.Stats().Published; n != 0 {
		t.Errorf("%d messages were published", n)
	}
}

// TestVectorsAreReadAsTheyWereMeant decodes each payload of the vectors with the router's own decoder.
func TestVectorsAreReadAsTheyWereMeant(t *testing.T) {
	for _, c := range readVectors(t).Cases {
		payload := unhex(t, c.Payload)
		if c.SHA256 != nil {
			payload, _ = Append(nil, c.Time, c.Rank, c.BlockSize, c.events(t)...)
		}
		var got []kvevent.Event
		var d kvevent.Decoder
		var b kvevent.Batch
		if err := d.Decode(payload, &b); err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for more := true; more; more = d.Next(&b) {
			if b.Skipped > 0 || b.Incomplete || b.Time != c.Time || !b.HasRank || b.Rank != c.Rank {
				t.Errorf("%s: batch %+v", c.Name, b)
			}
			for _, e := range b.Events {
				e.Hashes, e.Tokens, e.Features = slices.Clone(e.Hashes), slices.Clone(e.Tokens), slices.Clone(e.Features)
				got = append(got, e)
			}
		}
		events := c.events(t)
		if len(got) != len(events) {
			t.Errorf("%s: %d events", c.Name, len(got))
			continue
		}
		for i := range events {
			if diff := gocmp.Diff(meant(&events[i], c.BlockSize), got[i], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, event %d (-meant +read):\n%s", c.Name, i, diff)
			}
		}
	}
}

// meant returns the event that a reader should see.
func meant(e *Event, size int) kvevent.Event {
	out := kvevent.Event{Kind: kvevent.Cleared, Group: -1}
	numbers := func(hashes []Hash, digests [][]byte) []Hash {
		hashes = slices.Clone(hashes)
		for _, d := range digests {
			hashes = append(hashes, Number(d))
		}
		return hashes
	}
	tiers := map[string]block.Tier{
		"CPU": block.TierCPU, "CPU_PINNED": block.TierCPU, "DISK": block.TierDisk, "FS": block.TierDisk, "STORAGE": block.TierDisk,
		"OBJ": block.TierRemote, "EXTERNAL": block.TierRemote, "SHARED_STORAGE": block.TierRemote,
	}
	if r := e.Removed; r != nil {
		out.Kind, out.Medium, out.Tier = kvevent.Removed, cmp.Or(r.Medium, "GPU"), tiers[r.Medium]
		out.Hashes = numbers(r.BlockHashes, r.BlockDigests)
		if r.Group != nil {
			out.Group = *r.Group
		}
	}
	s := e.Stored
	if s == nil {
		return out
	}
	out.Kind, out.Medium, out.Tier = kvevent.Stored, cmp.Or(s.Medium, "GPU"), tiers[s.Medium]
	out.Hashes, out.Tokens, out.BlockSize = numbers(s.BlockHashes, s.BlockDigests), s.TokenIDs, cmp.Or(s.BlockSize, size)
	out.Parent, out.HasParent = s.ParentHash, s.HasParent
	if s.ParentDigest != nil {
		out.Parent, out.HasParent = Number(s.ParentDigest), true
	}
	out.LoRA, out.Spec, out.Window, out.HasAttention = s.LoRAName, s.Kind, s.Window, s.Kind != ""
	if strings.HasPrefix(s.Kind, "sliding") {
		out.Attention = block.AttentionSlidingWindow
	}
	if s.LoRAID != nil {
		out.LoRAID, out.HasLoRAID = *s.LoRAID, true
	}
	if s.Group != nil {
		out.Group = *s.Group
	}
	if !out.HasParent {
		out.Salt = s.CacheSalt
	}
	if len(s.TokenIDs) == 0 || len(s.TokenIDs) != len(out.Hashes)*out.BlockSize { // the event has no extra keys
		out.Hidden, out.NoExtraKeys = kvevent.KeySalt|kvevent.KeyFeature, true
		if out.Tier != block.TierGPU {
			out.Hidden |= kvevent.KeyExtra
		}
	}
	for i, keys := range s.ExtraKeys {
		for _, k := range keys {
			f := block.Feature{ID: k.id, Offset: i*out.BlockSize + k.offset}
			if k.digest != nil {
				out.Unread |= kvevent.KeyEmbeds
			} else if !slices.Contains(out.Features, f) {
				out.Features = append(out.Features, f)
			}
		}
	}
	return out
}

// TestVLLMsOwnBytesAreWritten makes batches of vLLM again.
func TestVLLMsOwnBytesAreWritten(t *testing.T) {
	for _, c := range vllmCases(t) {
		if got, err := Append(nil, c.Time, c.Rank, 0, c.events(t)...); err != nil || hex.EncodeToString(got) != c.Payload {
			t.Fatalf("%s: got %x, %v\nvLLM wrote %s", c.Name, got, err, c.Payload)
		}
	}
}

// vllmCases returns cases with payloads of vLLM: what the cache manager and the encoder of vLLM 0.33 made
// (kvfeed/testdata/make_vllm.py), and what running engines with vLLM 0.32 published.
func vllmCases(t testing.TB) (cases []vectorCase) {
	t.Helper()
	for i, payload := range vllmPayloads(t) {
		if c, ok := published(t, payload); ok {
			c.Name, c.Payload = fmt.Sprint("payload of vLLM ", i), hex.EncodeToString(shortest(payload))
			cases = append(cases, c)
		}
	}
	if len(cases) < 350 {
		t.Fatalf("%d payloads of vLLM can be compared", len(cases))
	}
	t.Logf("%d payloads of vLLM", len(cases))
	return cases
}

// shortest returns vLLM's payload with each event's map in the shortest form. BlockStored of vLLM 0.33 has 16 fields,
// and msgspec then writes the long form, even if it leaves fields out and the short form would do.
func shortest(payload []byte) []byte {
	typed := []byte("\xa4type\xabBlockStored")
	for n := byte(1); n < 16; n++ {
		payload = bytes.ReplaceAll(payload, slices.Concat([]byte{0xde, 0, n}, typed), slices.Concat([]byte{0x80 | n}, typed))
	}
	return payload
}

// vllmPayloads returns the payloads of vLLM 0.33, without those of engines with a look-ahead, which the library does
// not have, and recordings of vLLM 0.32.
func vllmPayloads(t testing.TB) (payloads [][]byte) {
	t.Helper()
	var file struct {
		Runs []struct {
			Ahead int
			Steps []struct{ Payload string }
		}
	}
	if err := json.Unmarshal(testenv.Gunzip(t, "../kvfeed/testdata/vllm-0.33.0.json.gz"), &file); err != nil {
		t.Fatal(err)
	}
	for _, run := range file.Runs {
		for _, step := range run.Steps {
			if step.Payload != "" && run.Ahead == 0 {
				payloads = append(payloads, unhex(t, step.Payload))
			}
		}
	}
	for _, name := range []string{"base_and_eviction", "dp", "hybrid", "lora", "salt", "offload", "offload_placeholder", "pd"} {
		for line := range bytes.Lines(testenv.Gunzip(t, testenv.Path(t, "vectors/live/"+name+".jsonl.gz"))) {
			var m struct {
				Payload string   `json:"payload_hex"`
				Frames  []string `json:"frames_hex"`
			}
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			if m.Payload == "" && len(m.Frames) > 0 {
				m.Payload = m.Frames[len(m.Frames)-1]
			}
			if m.Payload != "" {
				payloads = append(payloads, unhex(t, m.Payload))
			}
		}
	}
	return payloads
}

// published returns the case whose payload is the given one. ok is false if the library does not write such payloads:
// it has no sessions, and unlike vLLM's offload tiers it always writes the extra keys of blocks whose tokens it writes.
func published(t testing.TB, payload []byte) (c vectorCase, ok bool) {
	t.Helper()
	d := kvevent.Decoder{KeepRaw: true}
	var b kvevent.Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	c.Time, c.Rank = b.Time, b.Rank
	for _, e := range b.Events {
		out := vectorEvent{Type: e.Kind.String(), Medium: e.Medium}
		if e.Group >= 0 {
			out.Group = new(e.Group)
		}
		hash := func(h Hash, i int) json.RawMessage {
			if i < len(e.Digests) {
				return fmt.Appendf(nil, "%q", hex.EncodeToString(e.Digests[i]))
			}
			return fmt.Append(nil, h)
		}
		for i, h := range e.Hashes {
			out.Hashes = append(out.Hashes, hash(h, i))
		}
		if e.Kind == kvevent.Stored {
			if e.Session != "" || e.ExtraKeys == nil && e.Aligned() {
				return c, false
			}
			out.TokenIDs, out.BlockSize = slices.Clone(e.Tokens), e.BlockSize
			out.LoRA, out.Salt, out.Kind, out.Window = e.LoRA, e.Salt, e.Spec, e.Window
			if e.HasParent {
				out.Parent = hash(e.Parent, len(e.Hashes))
			}
			if e.HasLoRAID {
				out.LoRAID = new(e.LoRAID)
			}
			out.ExtraKeys = items(t, e.ExtraKeys)
		}
		c.Events = append(c.Events, out)
	}
	return c, true
}

// items reads the pairs of an identifier and an offset in the field extra_keys of an event.
func items(t testing.TB, raw []byte) (keys [][]json.RawMessage) {
	t.Helper()
	if len(raw) == 0 || raw[0] == 0xc0 {
		return nil
	}
	n := int(raw[0] & 0xf)
	if raw = raw[1:]; n == 0xc { // a 16-bit length; no list here has 12 elements in the short form
		n, raw = int(raw[0])<<8|int(raw[1]), raw[2:]
	}
	for range n {
		of := []json.RawMessage{}
		elements := 0
		if raw[0] != 0xc0 {
			elements = int(raw[0] & 0xf)
		}
		raw = raw[1:]
		for range elements {
			pair := raw[0] == 0x92
			if pair {
				raw = raw[1:]
			}
			end := 1 + int(raw[0]&0x1f)
			id := string(raw[1:end])
			if raw = raw[end:]; pair {
				if raw[0] == 0xd0 {
					raw = raw[1:]
				}
				of = append(of, fmt.Appendf(nil, "[%q,%d]", id, int8(raw[0])))
				raw = raw[1:]
			}
		}
		keys = append(keys, of)
	}
	return keys
}
