package app_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// recordedPrompt is a prompt that a real engine announced.
type recordedPrompt struct {
	lora, salt string
	tokens     []block.Token
}

// recordedPayloads returns what each source of a recording sent, in order. It ends where an engine began again.
func recordedPayloads(t *testing.T, name string) map[string][][]byte {
	t.Helper()
	out, next := map[string][][]byte{}, map[string]int64{}
	for line := range bytes.Lines(testenv.Gunzip(t, testenv.Path(t, "vectors/live/"+name+".jsonl.gz"))) {
		var m struct {
			Source  string   `json:"src"`
			Topic   string   `json:"topic"`
			Seq     int64    `json:"seq"`
			Payload string   `json:"payload_hex"`
			Frames  []string `json:"frames_hex"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m.Payload == "" && len(m.Frames) > 0 {
			m.Payload = m.Frames[len(m.Frames)-1]
		}
		if m.Topic != "kv-events" || m.Source == "replay-dealer" || m.Source == "replay-req" || m.Seq < next[m.Source] {
			continue
		}
		payload, err := hex.DecodeString(m.Payload)
		if err != nil {
			t.Fatal(err)
		}
		next[m.Source] = m.Seq + 1
		out[m.Source] = append(out[m.Source], payload)
	}
	return out
}

// untilCleared returns payloads up to the last one that clears the cache, if it is in the second half: after it an
// index would have little to answer.
func untilCleared(t *testing.T, payloads [][]byte) [][]byte {
	t.Helper()
	var d kvevent.Decoder
	var b kvevent.Batch
	for i := len(payloads) - 1; i > len(payloads)/2; i-- {
		if err := d.Decode(payloads[i], &b); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(b.Events, func(e kvevent.Event) bool { return e.Kind == kvevent.Cleared }) {
			return payloads[:i]
		}
	}
	return payloads
}

// promptsOf returns the prompts that payloads announce, the longest of each chain of blocks and all before it.
func promptsOf(t *testing.T, payloads [][]byte) []recordedPrompt {
	t.Helper()
	known := map[uint64]recordedPrompt{}
	var d kvevent.Decoder
	var b kvevent.Batch
	var order []uint64
	for _, payload := range payloads {
		if err := d.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			at, has := recordedPrompt{lora: e.LoRA, salt: e.Salt}, !e.HasParent
			if e.HasParent {
				at, has = known[e.Parent]
			}
			if e.Kind != kvevent.Stored || !has || !e.Aligned() || e.Attention != block.AttentionFull {
				continue
			}
			for i, h := range e.Hashes {
				at.tokens = append(slices.Clone(at.tokens), e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]...)
				known[h] = at
				order = append(order, h)
			}
		}
	}
	var out []recordedPrompt
	for i := 0; i < len(order); i += max(1, len(order)/24) {
		out = append(out, known[order[i]])
	}
	return out
}

// Events of real engines reach the service over ZMQ. Over HTTP and gRPC it then answers what its index has in the
// process.
func TestRecordedStreamsOfRealEnginesAreAnsweredByTheService(t *testing.T) {
	for _, test := range []struct{ name, kind string }{
		{"base_and_eviction", "vLLM"}, {"dp", "vLLM"}, {"lora", "vLLM"}, {"salt", "vLLM"}, {"offload", "vLLM"}, {"pd", "vLLM"}, {"sglang", "SGLang"}, {"sglang_dp", "SGLang"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := startIndex(t, nil)
			payloads := recordedPayloads(t, test.name)
			var prompts []recordedPrompt
			for n, source := range slices.Sorted(maps.Keys(payloads)) {
				payloads[source] = untilCleared(t, payloads[source])
				var d kvevent.Decoder
				var b kvevent.Batch
				if err := d.Decode(payloads[source][0], &b); err != nil {
					t.Fatal(err)
				}
				p := publisher(t, b.Rank)
				adapters := []string{"", "a", "b", "c"}
				if test.kind == "SGLang" {
					adapters = adapters[:1] // its events do not name adapters
				}
				for _, lora := range adapters {
					s.must(http.StatusCreated, "POST", "/register", fmt.Sprintf(`{"instance_id":"%s-%d","type":%q,"model_name":"m","lora_name":%q,"block_size":32,"dp_rank":%d,"endpoint":%q,"replay_endpoint":%q}`,
						source, n, test.kind, lora, b.Rank, p.Endpoint(), p.ReplayEndpoint()), nil)
				}
				for _, payload := range payloads[source] {
					p.Send(payload)
				}
				last := ids(1<<20+n<<10, 32) // shows that all messages before it are applied
				stores(t, p, last, 32, "", "")
				prompts = append(prompts, promptsOf(t, payloads[source])...)
				testenv.Until(t, source+" is applied", func() bool {
					return s.inProcess(recordedPrompt{tokens: append(last, 1)})[fmt.Sprintf("%s-%d/%d", source, n, b.Rank)] == 32
				})
			}
			found := 0
			for _, p := range prompts {
				p.tokens = append(p.tokens, 1) // the last token of a prompt never counts
				want := s.inProcess(p)
				for way, got := range map[string]map[string]int{"HTTP": s.overHTTP(p), "protobuf over HTTP": s.overProtobuf(p), "gRPC": s.overGRPC(p)} {
					if !maps.Equal(got, want) {
						t.Fatalf("%s: %v, the index has %v (%d tokens, adapter %q, salt %q)", way, got, want, len(p.tokens), p.lora, p.salt)
					}
				}
				found += len(want)
			}
			if found == 0 {
				t.Errorf("none of %d prompts is in the index", len(prompts))
			}
			t.Logf("%d prompts, %d matches", len(prompts), found)
		})
	}
}

// inProcess returns what the index has of a prompt, in tokens by worker and rank.
func (s *indexService) inProcess(p recordedPrompt) map[string]int {
	s.t.Helper()
	q := s.Router().Prepare(&warmpath.Request{Model: "m", Tokens: p.tokens, Salt: p.salt})
	defer q.Recycle()
	size, matches, err := q.Matches(p.lora)
	if err != nil {
		s.t.Fatal(err)
	}
	out, snap := map[string]int{}, s.Router().Fleet().Snapshot()
	for _, m := range matches {
		n := int(m.Blocks) * size
		out[fmt.Sprintf("%s/%d", snap.Worker(m.Holder).URL, snap.Rank(m.Holder))] = n - n%32
	}
	return out
}

func (s *indexService) overHTTP(p recordedPrompt) map[string]int {
	s.t.Helper()
	var a dynamoAnswer
	s.must(http.StatusOK, "POST", "/query", fmt.Sprintf(`{"model_name":"m","lora_name":%q,"cache_salt":%q,"token_ids":%s}`, p.lora, p.salt, text(p.tokens)), &a)
	out := map[string]int{}
	for worker, ranks := range a.Scores {
		for rank, n := range ranks {
			out[worker+"/"+rank] = n
		}
	}
	return out
}

// message returns the ScoreRequest of indexer.proto about a prompt.
func (p recordedPrompt) message() []byte {
	var tokens []byte
	for _, id := range p.tokens {
		tokens = protowire.AppendFixed32(tokens, uint32(id))
	}
	out := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "m")
	out = protowire.AppendBytes(protowire.AppendTag(out, 13, protowire.BytesType), tokens)
	out = protowire.AppendString(protowire.AppendTag(out, 8, protowire.BytesType), p.lora)
	return protowire.AppendString(protowire.AppendTag(out, 9, protowire.BytesType), p.salt)
}

// each calls use for each field of a message that is a number or bytes.
func each(t *testing.T, b []byte, use func(id protowire.Number, number uint64, inner []byte)) {
	t.Helper()
	for len(b) > 0 {
		id, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatal("not a message")
		}
		b = b[n:]
		var number uint64
		var inner []byte
		if kind == protowire.VarintType {
			number, n = protowire.ConsumeVarint(b)
		} else {
			inner, n = protowire.ConsumeBytes(b)
		}
		if n < 0 {
			t.Fatal("not a message")
		}
		use(id, number, inner)
		b = b[n:]
	}
}

// scoresOf returns the scores of a ScoreResponse.
func scoresOf(t *testing.T, b []byte) map[string]int {
	t.Helper()
	out := map[string]int{}
	each(t, b, func(id protowire.Number, _ uint64, inner []byte) {
		if id != 4 {
			return
		}
		worker, rank, matched := "", uint64(0), uint64(0)
		each(t, inner, func(id protowire.Number, number uint64, inner []byte) {
			switch id {
			case 1:
				worker = string(inner)
			case 2:
				rank = number
			case 3:
				matched = number
			}
		})
		out[fmt.Sprintf("%s/%d", worker, rank)] = int(matched)
	})
	return out
}

func (s *indexService) overProtobuf(p recordedPrompt) map[string]int {
	s.t.Helper()
	return scoresOf(s.t, s.post("http://"+s.front+"/query", "application/x-protobuf", p.message()))
}

// overGRPC calls Score as gRPC over HTTP/2 defines it: a message has a prefix of one byte for its compression, and four
// for its length.
func (s *indexService) overGRPC(p recordedPrompt) map[string]int {
	s.t.Helper()
	m := p.message()
	body := append([]byte{0, byte(len(m) >> 24), byte(len(m) >> 16), byte(len(m) >> 8), byte(len(m))}, m...)
	answer := s.post("http://"+s.grpc+"/warmpath.index.v1.Index/Score", "application/grpc", body)
	if len(answer) < 5 {
		s.t.Fatalf("gRPC answers %d bytes", len(answer))
	}
	return scoresOf(s.t, answer[5:])
}

func (s *indexService) post(url, kind string, body []byte) []byte {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("TE", "trailers")
	resp, err := s.http2.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Trailer.Get("Grpc-Status") != "" && resp.Trailer.Get("Grpc-Status") != "0" {
		s.t.Fatalf("%d %q %v: %v", resp.StatusCode, out, resp.Trailer, err)
	}
	return out
}
