package kvfeed

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// vectors are results of an engine's own cache code. The scripts testdata/make_vllm.py and testdata/make_sglang.py make
// the files.
type vectors struct {
	Version string `json:"version"`
	Runs    []struct {
		Name  string       `json:"name"`
		Ahead int          `json:"ahead"`
		Size  int          `json:"size"`
		Steps []vectorStep `json:"steps"`
	} `json:"runs"`
	Loads []json.RawMessage `json:"loads"`
}

// vectorStep is a prompt, the engine's hit for it, and the message that the engine then sent.
type vectorStep struct {
	Tokens  []block.Token `json:"tokens"`
	Salt    string        `json:"salt"`
	LoRA    string        `json:"lora"`
	Extra   string        `json:"extra"`
	Images  [][3]any      `json:"images"` // identifier, offset, length
	Hit     int           `json:"hit"`
	Payload string        `json:"payload"`
}

func readVectors(t *testing.T, name string) vectors {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.NewDecoder(plain).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *vectorStep) request(q *warmpath.Request) {
	q.Salt, q.Extra = s.Salt, s.Extra
	if s.LoRA != "" {
		q.Model = s.LoRA
	}
	for _, image := range s.Images {
		q.Features = append(q.Features, block.Feature{ID: image[0].(string), Offset: int(image[1].(float64))})
	}
}

// TestEnginesOwnCachesHitTheMatches compares matches with the hits of vLLM 0.33's cache manager and SGLang 0.5.23's
// radix tree. The cases are: prompts that differ near the ends of blocks; salts, adapters, extra keys and images;
// evictions; two prompts in one step. Each case is run with and without a look-ahead.
func TestEnginesOwnCachesHitTheMatches(t *testing.T) {
	for engine, name := range map[fleet.Engine]string{fleet.EngineVLLM: "vllm-0.33.0.json.gz", fleet.EngineSGLang: "sglang-0.5.23.json.gz"} {
		v := readVectors(t, name)
		for i, run := range v.Runs {
			t.Run(fmt.Sprintf("%v %d %s ahead %d", engine, i, run.Name, run.Ahead), func(t *testing.T) {
				r := newRig(t, Config{})
				f := facts(engine, run.Size)
				f.Version = v.Version
				if engine == fleet.EngineVLLM {
					f.Models = append(f.Models, fleet.Model{ID: "adapter", Parent: "m"})
				}
				s := r.stream(f)
				play(t, r, s, run.Steps)
				if s.skipped > 0 || s.ahead != run.Ahead {
					t.Errorf("%d events were skipped, the look-ahead is %d, want %d", s.skipped, s.ahead, run.Ahead)
				}
				r.trust(s.holder, fleet.TrustExact, "")
			})
		}
	}
}

// play compares each prompt's match with the engine's hit, and then applies the engine's message.
func play(t *testing.T, r *rig, s *stream, steps []vectorStep) {
	t.Helper()
	hits, low, seq := 0, 0, uint64(0)
	for n := range steps {
		step := &steps[n]
		r.feed.Scoped(s.url, s.rank, step.Salt, step.Extra)
		got := r.match(step.Tokens, step.request)
		switch {
		case got > step.Hit:
			t.Fatalf("step %d: %d of %d tokens match, the engine hit %d", n, got, len(step.Tokens), step.Hit)
		case got < step.Hit:
			low++
		case got > 0:
			hits++
		}
		if step.Payload != "" {
			payload, err := hex.DecodeString(step.Payload)
			if err != nil {
				t.Fatal(err)
			}
			s.Message(seq, payload)
			seq++
		}
	}
	if low > 0 {
		t.Errorf("%d of %d prompts match less than the engine hit", low, len(steps))
	}
	if hits < len(steps)/4 {
		t.Errorf("only %d of %d prompts hit the cache, too few for this test", hits, len(steps))
	}
	t.Logf("%d of %d prompts hit, each as many tokens as match", hits, len(steps))
}

// TestSGLangsOwnLoadStatIsRead reads load messages that SGLang's own encoder wrote.
func TestSGLangsOwnLoadStatIsRead(t *testing.T) {
	v := readVectors(t, "sglang-0.5.23.json.gz")
	if len(v.Loads) == 0 {
		t.Fatal("no vectors")
	}
	for _, raw := range v.Loads {
		var load struct {
			Payload string   `json:"payload"`
			Fields  []*int64 `json:"fields"`
		}
		if err := json.Unmarshal(raw, &load); err != nil {
			t.Fatal(err)
		}
		payload, err := hex.DecodeString(load.Payload)
		if err != nil {
			t.Fatal(err)
		}
		l, err := kvevent.DecodeLoadStat(payload)
		if err != nil || !l.Long {
			t.Fatalf("%+v, error %v", l, err)
		}
		none := int64(-1)
		for i, got := range []int64{l.Running, l.Waiting, l.UsedTokens, l.CacheTokens, l.Rank, l.UncachedTokens, l.QueuedTokens, l.MaxRunning, l.PrefillTokens, l.PrefillMicros} {
			want := load.Fields[i]
			if want == nil {
				want = &none
			}
			if got != *want {
				t.Errorf("field %d is %d, want %d", i+1, got, *want)
			}
		}
	}
}

// TestTheEnginesStillMakeTheseVectors runs the scripts that made the vectors again. This takes a minute, so the test
// runs only if WARMPATH_INTEROP is set, as `make interop` does.
func TestTheEnginesStillMakeTheseVectors(t *testing.T) {
	if os.Getenv("WARMPATH_INTEROP") == "" {
		testenv.Missing(t, "the code of vLLM and SGLang", "make test-engines interop")
	}
	for _, engine := range []struct{ script, python, modules, vectors string }{
		{"make_vllm.py", "engines/vllm/venv/bin/python", "wheels/vllm-0.33.0", "vllm-0.33.0.json.gz"},
		{"make_sglang.py", "engines/sglang/venv/bin/python", "engines/sglang/venv", "sglang-0.5.23.json.gz"},
	} {
		t.Run(engine.script, func(t *testing.T) {
			python := testenv.Installed(t, engine.python, "make test-engines") // `make interop` alone installs no engine
			modules := testenv.Installed(t, engine.modules, "make test-engines interop")
			cmd := exec.Command(python, filepath.Join("testdata", engine.script), modules)
			cmd.Env = append(os.Environ(), "VLLM_TARGET_DEVICE=cpu")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			made, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.Bytes())
			}
			packed, err := os.Open(filepath.Join("testdata", engine.vectors))
			if err != nil {
				t.Fatal(err)
			}
			defer packed.Close()
			plain, err := gzip.NewReader(packed)
			if err != nil {
				t.Fatal(err)
			}
			if kept, err := io.ReadAll(plain); err != nil || !bytes.Equal(made, kept) {
				t.Errorf("the engine's code makes other vectors (%d bytes) than the stored ones (%d bytes, error %v)", len(made), len(kept), err)
			}
		})
	}
}
