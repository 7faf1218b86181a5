package kvevent

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/test/testenv"
)

// recording is one message of a real engine: a line of a file in test/testenv/testdata/vectors/live.
type recording struct {
	Desc    string            `json:"desc"`
	Src     string            `json:"src"`
	Topic   string            `json:"topic"`
	Payload string            `json:"payload_hex"`
	Frames  []string          `json:"frames_hex"`
	Decoded []json.RawMessage `json:"decoded"`
}

func (r *recording) payload(t testing.TB) []byte {
	if r.Payload != "" {
		return unhex(t, r.Payload)
	}
	return unhex(t, r.Frames[len(r.Frames)-1])
}

// readLive returns the recordings of one file.
func readLive(t testing.TB, path string) []recording {
	t.Helper()
	var all []recording
	for _, line := range bytes.Split(bytes.TrimSpace(testenv.Gunzip(t, path)), []byte("\n")) {
		var r recording
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, r)
	}
	return all
}

// wantLive returns the wanted event for raw, an event as the recorder of the messages decoded it.
func wantLive(t *testing.T, raw json.RawMessage) wantEvent {
	t.Helper()
	var w wantEvent
	var hashes struct {
		Hashes []json.RawMessage `json:"block_hashes"`
		Parent json.RawMessage   `json:"parent_block_hash"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &hashes); err != nil {
		t.Fatal(err)
	}
	for _, h := range hashes.Hashes {
		w.Hashes = append(w.Hashes, normalForm(t, h))
	}
	if len(hashes.Parent) > 0 && string(hashes.Parent) != "null" {
		parent := normalForm(t, hashes.Parent)
		w.Parent = &parent
	}
	return w
}

// normalForm returns a recorded hash, which is a number or {"bytes": hex}, in the form of Hash, as a decimal number.
func normalForm(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var digest struct{ Bytes string }
	if raw[0] == '{' {
		if err := json.Unmarshal(raw, &digest); err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(digest.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatUint(normal(b), 10)
	}
	if raw[0] == '-' {
		v, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatUint(uint64(v), 10)
	}
	return string(raw)
}

func TestEveryRecordingOfARealEngineDecodes(t *testing.T) {
	var d Decoder
	var b Batch
	messages, loads, ends := 0, 0, 0
	for _, file := range testenv.Recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl.gz"), func(t *testing.T) {
			for _, r := range readLive(t, file) {
				payload := r.payload(t)
				err := d.Decode(payload, &b)
				switch {
				case len(payload) == 0: // the message that ends a replay is no batch: Decode must refuse it
					ends++
					fallthrough
				case r.Topic == "load": // SGLang's load messages are no batches: Decode must refuse them
					loads++
					if err == nil {
						t.Errorf("%s: a payload that is not a batch is accepted", r.Desc)
					}
					continue
				case err != nil || b.Skipped > 0:
					t.Fatalf("%s: error %v, skipped %d: %s", r.Desc, err, b.Skipped, b.Problem)
				}
				messages++
				var events []json.RawMessage
				if len(r.Decoded) < 2 || json.Unmarshal(r.Decoded[1], &events) != nil {
					continue // the file has only the frames of this message, not the decoded contents
				}
				want := make([]wantEvent, len(events))
				for i, raw := range events {
					want[i] = wantLive(t, raw)
				}
				compare(t, b.Events, want)
				compareKeys(t, b.Events, want)
			}
		})
	}
	t.Logf("%d messages, %d of other kinds (%d ends of replays)", messages, loads, ends)
}

// compareKeys compares the salts of events with the recorder's extra_keys. In the recordings, extra_keys contains only
// adapters and salts.
func compareKeys(t *testing.T, got []Event, want []wantEvent) {
	t.Helper()
	for i, w := range want {
		salt := w.Salt
		for _, keys := range w.ExtraKeys {
			for j, key := range keys {
				if j > 0 || key != w.LoRA {
					salt = key.(string)
				}
			}
		}
		e := &got[i]
		if diff := cmp.Diff(salt, e.Salt); diff != "" || e.Unread != 0 {
			t.Errorf("event %d: unread %b, salt (-want +got):\n%s", i, e.Unread, diff)
		}
	}
}

func TestEncodersWriteTheBytesOfRecordedEngines(t *testing.T) {
	for _, file := range testenv.Recordings(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")
		t.Run(name, func(t *testing.T) {
			d := Decoder{KeepRaw: true}
			var b Batch
			for _, r := range readLive(t, file) {
				payload := r.payload(t)
				if len(payload) == 0 || r.Topic == "load" {
					continue
				}
				if err := d.Decode(payload, &b); err != nil {
					t.Fatal(err)
				}
				wire := "vllm-0.32"
				if strings.HasPrefix(name, "sglang") {
					wire = "sglang-0.5.23"
				}
				for i := range b.Events {
					b.Events[i].ExtraKeys = nil // without the raw field, the encoder must write extra_keys from the decoded fields
					if b.Events[i].Digests != nil {
						wire = "vllm-0.32+bytes"
					}
				}
				w, err := ParseWire(wire)
				if err != nil {
					t.Fatal(err)
				}
				if got := w.Append(nil, &b); !bytes.Equal(got, payload) {
					t.Fatalf("%s wrote\n%x, want\n%x", wire, got, payload)
				}
			}
		})
	}
}
