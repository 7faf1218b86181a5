package inprocess

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// files returns a model that is small enough to read: five words, and templates whose output shows which template was
// used.
func files() fstest.MapFS {
	return fstest.MapFS{
		"tokenizer.json": {Data: []byte(`{"version":"1.0","added_tokens":[{"id":9,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
			"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},
			"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],
				"special_tokens":{"<s>":{"id":"<s>","ids":[9],"tokens":["<s>"]}}},
			"decoder":null,"model":{"type":"WordLevel","vocab":{"[UNK]":0,"hello":1,"world":2,"plain":3,"tool":4,"extra":5},"unk_token":"[UNK]"}}`)},
		"tokenizer_config.json": {Data: []byte(`{"bos_token":"<s>","chat_template":[
			{"name":"default","template":"{{ bos_token }} plain {{ messages[-1].content }}"},
			{"name":"tool_use","template":"{{ bos_token }} tool {{ messages[-1].content }}{{ raise_exception('no') if messages|length > 2 }}"}]}`)},
	}
}

func read(t *testing.T, d api.Dialect, body string) *api.Request {
	t.Helper()
	var r api.Request
	if err := api.Read(d, []byte(body), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func load(t *testing.T, fsys fstest.MapFS) *Model {
	t.Helper()
	m, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTokensAreTheEnginesForEachKindOfRequest(t *testing.T) {
	m := load(t, files())
	f := func(d api.Dialect, body string, want ...block.Token) {
		t.Helper()
		got, err := m.Tokens(nil, read(t, d, body), tokens.VLLM)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s\ngot %v, error %v, want %v", body, got, err, want)
		}
	}
	f(api.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"hello world"}]}`, 9, 3, 1, 2)
	f(api.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"hello"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}`, 9, 4, 1)
	f(api.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"hello"}],"tools":null}`, 9, 3, 1)
	f(api.OpenAICompletions, `{"model":"m","prompt":"hello world"}`, 9, 1, 2)
	f(api.OpenAICompletions, `{"model":"m","prompt":["hello"]}`, 9, 1)
	f(api.OpenAICompletions, `{"model":"m","prompt":"hello","add_special_tokens":false}`, 1)
}

func TestPromptsThatDependOnTheEngineAreNotEncoded(t *testing.T) {
	m := load(t, files())
	f := func(body string, want error) {
		t.Helper()
		if _, err := m.Tokens(nil, read(t, api.OpenAIChat, body), tokens.VLLM); !errors.Is(err, want) {
			t.Errorf("%s\nerror %v, want %v", body, err, want)
		}
	}
	f(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]}`,
		ErrElsewhere)
	f(`{"model":"m","tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}`, ErrRefused)
	bare := files()
	delete(bare, "tokenizer_config.json")
	m = load(t, bare)
	f(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, ErrElsewhere)
}

func TestATemplateFileIsPreferredToTheConfiguration(t *testing.T) {
	fsys := files()
	fsys["chat_template.jinja"] = &fstest.MapFile{Data: []byte(`extra {{ messages[0].content }}`)}
	text, err := load(t, fsys).Text([]byte(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`), tokens.VLLM)
	if err != nil || text != "extra hello" {
		t.Errorf("text %q, error %v", text, err)
	}
}

func TestModelsAreFoundByNameAndOpenReportsAllErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, files())
	all, err := Open([]Path{{Path: dir}})
	if err != nil {
		t.Fatal(err)
	}
	f := NewFinder(FinderParts{Given: all})
	p := &tokens.Prompt{Request: read(t, api.OpenAICompletions, `{"model":"m","prompt":"hello"}`), Model: "whatever"}
	if found, ok := f.Find(t.Context(), p); !ok || !slices.Equal(found.Tokens, []block.Token{9, 1}) {
		t.Errorf("found %+v, %v", found, ok)
	}
	p.Request = read(t, api.OpenAICompletions, `{"model":"m","prompt":"hello","truncate_prompt_tokens":5}`)
	if _, ok := f.Find(t.Context(), p); ok {
		t.Error("a truncated prompt was tokenized here")
	}
	if all, err = Open([]Path{{Name: "m", Path: dir}}); err != nil {
		t.Fatal(err)
	}
	p.Request = read(t, api.OpenAICompletions, `{"model":"m","prompt":"hello"}`)
	if _, ok := NewFinder(FinderParts{Given: all}).Find(t.Context(), p); ok {
		t.Error("another model's prompt was tokenized here")
	}
	broken := t.TempDir()
	write(t, broken, fstest.MapFS{"tokenizer.json": {Data: []byte("{")}})
	_, err = Open([]Path{{Path: dir}, {Name: "m", Path: dir}, {Name: "m", Path: dir},
		{Name: "x", Path: filepath.Join(dir, "missing")}, {Name: "y", Path: broken}})
	for _, part := range []string{"each needs its name", "has two paths", "missing", broken,
		"mend it or leave the path out"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
}

func TestAFolderOfAHuggingFaceCacheIsRead(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "snapshots", "abc"), files())
	if _, err := OpenOne(dir); err != nil {
		t.Errorf("without refs: %v", err)
	}
	write(t, filepath.Join(dir, "refs"), fstest.MapFS{"main": {Data: []byte("abc\n")}})
	if _, err := OpenOne(dir); err != nil {
		t.Errorf("with refs: %v", err)
	}
	empty := t.TempDir()
	write(t, filepath.Join(empty, "snapshots"), nil)
	if _, err := OpenOne(empty); err == nil || !strings.Contains(err.Error(), "no snapshot") {
		t.Errorf("an empty cache: %v", err)
	}
}

func write(t *testing.T, dir string, fsys fstest.MapFS) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, f := range fsys {
		if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPromptThatNoModelTakesIsNotEncoded(t *testing.T) {
	m := load(t, files())
	long := strings.Repeat("a", maxPrompt+1)
	for d, body := range map[api.Dialect]string{
		api.OpenAICompletions: `{"model":"m","prompt":"` + long + `"}`,
		api.OpenAIChat:        `{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`,
	} {
		if got, err := m.Tokens(nil, read(t, d, body), tokens.VLLM); !errors.Is(err, ErrElsewhere) {
			t.Errorf("%s: %d ids, error %v", d, len(got), err)
		}
	}
}

// A decoded value takes up to a hundred times as much memory as its text in the body. So the number of values is
// bounded.
func TestABodyOfManyValuesTakesBoundedMemory(t *testing.T) {
	const size = 4 << 20
	plain, sighted := load(t, files()), load(t, seeing(qwenConfig, qwenPictures))
	hello := `"messages":[{"role":"user","content":"hello"}]`
	// calls returns tool calls whose arguments have the given number of bytes in total. Each call has fewer values than
	// a request may have.
	calls := func(bytes int) string {
		arguments := `{\"a\":[` + strings.Repeat(`1,`, 200_000) + `1]}`
		call := `{"id":"c","type":"function","function":{"name":"f","arguments":"` + arguments + `"}}`
		return `{"role":"assistant","tool_calls":[` + strings.Repeat(call+`,`, bytes/len(call)-1) + call + `]}`
	}
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + golden(t).Images[0].Data + `"}}`
	shown := func(more string) string {
		return `{"messages":[{"role":"user","content":[` + image + `]},` + more + `]}`
	}
	for _, c := range []struct {
		what, body string
		model      *Model
		most       int // bound of the memory, in bytes
	}{
		{"messages", `{"messages":[` + strings.Repeat(`{},`, size/3-9) + `{}]}`, plain, 32 * size},
		{"template", `{` + hello + `,"chat_template_kwargs":{"a":[` + strings.Repeat(`1,`, size/2) + `1]}}`, plain,
			32 * size},
		{"unknown field", `{` + hello + `,"x":[` + strings.Repeat(`{},`, size/3) + `1]}`, plain, 32 * size},
		{"a long text", `{"messages":[{"role":"user","content":"` + strings.Repeat("a", 8*size) + `"}]}`, plain, 32 * size},
		{"tool calls", `{"messages":[` + calls(size-size/10) + `]}`, plain, 32 * size},
		{"tool calls beside an image", shown(calls(30 << 20)), sighted, 32*size + 60<<20},
		{"a long text beside an image", shown(`{"role":"user","content":"` + strings.Repeat(`\n`, 15<<20) + `"}`), sighted,
			60 << 20},
	} {
		for _, kind := range []tokens.Kind{tokens.VLLM, tokens.SGLang} {
			r := read(t, api.OpenAIChat, c.body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			found, ok := c.model.find(&tokens.Prompt{Request: r, Kind: kind, Root: "org/model"})
			runtime.ReadMemStats(&after)
			if ok {
				t.Errorf("%s: %d ids were made here (%s)", c.what, len(found.Tokens), found.Outcome)
			}
			took := int(after.TotalAlloc - before.TotalAlloc)
			if took > c.most {
				t.Errorf("%s: more than %d MiB", c.what, c.most>>20)
			}
			t.Logf("%s: %d MiB for a body of %d", c.what, took>>20, len(c.body)>>20)
		}
	}
}
