package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/test/testenv"
)

// wrongTokenizer writes a model folder whose tokenizer gives the engine's ids for "yes", and other ids for "bad": the
// ids of "bad" and "odd" are exchanged.
func wrongTokenizer(t *testing.T, e *mockengine.Server) string {
	t.Helper()
	ids := func(word string) (begin, id uint32) {
		resp, err := http.Post(e.URL()+"/tokenize", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"mock","prompt":%q}`, word)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var said struct{ Tokens []uint32 }
		if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || len(said.Tokens) != 2 {
			t.Fatalf("the engine makes %v of %s, error %v", said.Tokens, word, err)
		}
		return said.Tokens[0], said.Tokens[1]
	}
	begin, yes := ids("yes")
	_, bad := ids("bad")
	_, odd := ids("odd")
	vocabulary := map[string]uint32{}
	for id := range max(yes, bad, odd) + 1 {
		// unused ids get filler words, because a vocabulary must have nearly no gaps
		vocabulary[fmt.Sprint("filler", id)] = id
	}
	for word, id := range map[string]uint32{"yes": yes, "bad": odd, "odd": bad} {
		delete(vocabulary, fmt.Sprint("filler", id))
		vocabulary[word] = id
	}
	delete(vocabulary, fmt.Sprint("filler", begin))
	words, err := json.Marshal(vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := fmt.Sprintf(`{"version":"1.0","added_tokens":[{"id":%[1]d,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
		"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"decoder":null,
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],
			"special_tokens":{"<s>":{"id":"<s>","ids":[%[1]d],"tokens":["<s>"]}}},
		"model":{"type":"WordLevel","vocab":%[2]s,"unk_token":"filler0"}}`, begin, words)
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (r *router) get(path string) string {
	r.t.Helper()
	resp, err := r.client.Get("http://" + r.AdminAddr().String() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	var compact bytes.Buffer
	if json.Compact(&compact, text) == nil {
		return compact.String()
	}
	return string(text)
}

// complete sends a completion and returns the source of its tokens.
func (r *router) complete(prompt string) string {
	r.t.Helper()
	before := len(r.Telemetry().Last(0))
	resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"mock","max_tokens":1,"prompt":%q}`, prompt)))
	if err != nil {
		r.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		r.t.Fatalf("status %d", resp.StatusCode)
	}
	r.wait("the request is booked", func() bool { return len(r.Telemetry().Last(0)) > before })
	return r.Telemetry().Last(1)[0].TokenSource
}

func TestAWrongTokenizerIsFoundOutWhileServingAndBelievedAgain(t *testing.T) {
	e := engine(t, nil)
	cfg := settings(e)
	cfg.Models = []inprocess.Path{{Path: wrongTokenizer(t, e)}}
	cfg.Tokens.Budget = time.Hour // so long that each request gets its ids, also on a busy machine
	var log testenv.Buffer
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.exact(1)
	has := func(path string, want ...string) {
		t.Helper()
		text := r.get(path)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %s", path, w)
			}
		}
	}
	r.wait("the files count", func() bool {
		return strings.Contains(r.get("/admin/workers"), `"source":"given","folder":"`+cfg.Models[0].Path+`"`)
	})
	if source := r.complete("bad"); source != "local" {
		t.Errorf("the first prompt's ids are from %s", source)
	}
	r.wait("the difference is seen", func() bool { return strings.Contains(r.get("/metrics"), "warmpath_tokens_differed_total 1\n") })
	has("/metrics", "warmpath_tokens_checked_total 1\n", `warmpath_tokens_distrusted{model="mock"} 1`+"\n",
		`warmpath_token_models{source="engine"} 1`+"\n", `warmpath_token_models{source="given"} 0`+"\n")
	has("/admin/workers", `"checked":1,"differed":1,"distrusted":["mock"]`, `"source":"engine","why":"ids made from `+cfg.Models[0].Path+
		` differed from those of `+e.URL()+` in 1 of the last 1 prompts","advice":"is it the same model, revision and chat template?`, "--model-path mock=DIR")
	r.wait("the difference is logged", func() bool { return strings.Contains(log.String(), "token ids made in process differ") })
	for _, want := range []string{"level=WARN", "model=mock", "worker=" + e.URL(), "made_from=" + cfg.Models[0].Path, "position=1", "made_tokens=2", "engine_tokens=2",
		"--model-path mock=DIR"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the warning lacks %s", want)
		}
	}
	for _, piece := range []string{"made=bad", "engine=odd"} {
		if strings.Contains(log.String(), piece) {
			t.Errorf("a client's text is in the log: %s", piece)
		}
	}
	for i := range 20 {
		if source := r.complete("yes"); source != "tokenize" && source != "cache" {
			t.Errorf("prompt %d after the difference: ids from %s, not from the engine", i, source)
		}
	}
	has("/metrics", "warmpath_tokens_checked_total 21\n", "warmpath_tokens_differed_total 1\n")
	has("/admin/workers", `"distrusted":[]`, `"source":"given"`)
	if source := r.complete("yes"); source != "local" || !strings.Contains(log.String(), "agree with the engine's again") {
		t.Errorf("after twenty equal prompts the ids are from %s", source)
	}
	if warnings := strings.Count(log.String(), "token ids made in process differ"); warnings != 1 {
		t.Errorf("%d warnings of one difference", warnings)
	}
}

func TestAMockEngineServesAsTokenizerService(t *testing.T) {
	service := engine(t, func(c *mockengine.Config) { c.ScaleOut = true })
	e := engine(t, nil)
	cfg := settings(e)
	cfg.Tokens.Service = service.URL()
	cfg.Tokens.Budget = time.Hour // so long that each request gets its ids, also on a busy machine
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.exact(1)
	r.chat(strings.Repeat("alpha beta ", 60))
	r.wait("the request is booked", func() bool { return len(r.Telemetry().Last(0)) == 1 })
	// served counts the requests whose ids came from the service. On a busy machine a few may come from an engine,
	// which is asked when the service is slow.
	served := 0
	for i := range 10 {
		r.indexed(e)
		r.chat(strings.Repeat("alpha beta ", 60) + strings.Repeat("and more ", i))
		r.wait("the request is booked", func() bool { return len(r.Telemetry().Last(0)) == i+2 })
		last := r.Telemetry().Last(1)[0]
		if last.TokenSource == "service" {
			served++
		}
		if last.MatchTokens == 0 || last.Difference == nil || *last.Difference != 0 {
			t.Errorf("ids from %s, matched %d, difference %v", last.TokenSource, last.MatchTokens, last.Difference)
		}
	}
	if served == 0 {
		t.Error("no ids came from the service")
	}
}
