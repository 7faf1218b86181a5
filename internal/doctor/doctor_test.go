package doctor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// mock runs a mock engine until the test ends.
func mock(t *testing.T, change func(*mockengine.Config)) *mockengine.Server {
	t.Helper()
	c := mockengine.DefaultConfig()
	if change != nil {
		change(&c)
	}
	s, err := mockengine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	<-s.Ready()
	return s
}

// pages are answers that replace those of a worker, by path.
type pages map[string]func(http.ResponseWriter)

func page(status int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { w.WriteHeader(status); io.WriteString(w, body) }
}

// front returns the URL of a proxy in front of the worker at url, which answers some paths itself. edit changes the
// other answers.
func front(t *testing.T, url string, own pages, edit *strings.Replacer) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := own[r.URL.Path]; answer != nil {
			answer(w)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		w.WriteHeader(resp.StatusCode)
		io.WriteString(w, edit.Replace(string(body)))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// examined returns the report about workers, with short times.
func examined(t *testing.T, change func(*Options), targets ...discovery.Target) *Report {
	t.Helper()
	o := Options{Targets: targets, Listen: 3 * time.Second, Prompt: 20 * time.Second, FilesOff: true}
	if change != nil {
		change(&o)
	}
	r := Examine(t.Context(), o)
	if len(r.Workers) != len(targets) {
		t.Fatalf("%d workers in the report, want %d", len(r.Workers), len(targets))
	}
	for _, f := range r.Findings {
		if !slices.Contains(Checks, f.Check) || f.Severity.rank() < 0 || f.Seen == "" || f.Expected == "" || f.Fix == "" {
			t.Errorf("incomplete finding %+v", f)
		}
	}
	return r
}

// summary has the check and the severity of each finding.
func summary(r *Report) (all []string) {
	for _, f := range r.Findings {
		all = append(all, f.Check+" "+string(f.Severity))
	}
	return all
}

// TestEachFaultIsFound examines one worker for each fault. fix is a part of the advice that must be given.
func TestEachFaultIsFound(t *testing.T) {
	sglang := func(c *mockengine.Config) { c.Kind = mockengine.SGLang }
	for _, test := range []struct {
		name   string
		mock   func(*mockengine.Config)
		own    pages
		edit   []string // old and new texts of answers
		target discovery.Target
		set    func(*Options)
		want   []string
		fix    string
	}{
		{name: "a healthy vLLM"},
		{name: "a healthy SGLang", mock: sglang},
		{name: "a healthy worker with two ranks", mock: func(c *mockengine.Config) { c.Ranks = 2 }},
		{name: "no events", mock: func(c *mockengine.Config) { c.Events, c.Replay = "", "" }, want: []string{"events error"}, fix: "enable_kv_cache_events"},
		{name: "no events of SGLang", mock: func(c *mockengine.Config) { sglang(c); c.Events, c.Replay = "", "" },
			want: []string{"events error"}, fix: "start SGLang with --kv-events-config"},
		{name: "events=none", target: discovery.Target{Events: discovery.None}, want: []string{"events note"}, fix: "remove events=none"},
		{name: "a wrong event port", target: discovery.Target{Events: "tcp://127.0.0.1:1"}, set: func(o *Options) { o.Listen = 200 * time.Millisecond },
			want: []string{"event_stream error"}, fix: "correct events="},
		{name: "an old engine that does not report its endpoint", mock: func(c *mockengine.Config) { c.HideEventSources = true },
			set: func(o *Options) { o.Listen = 200 * time.Millisecond }, want: []string{"event_stream error"}, fix: "events=tcp://*:PORT"},
		{name: "a reported endpoint that cannot be used", edit: []string{"tcp://127.0.0.1:", "udp://127.0.0.1:"}, want: []string{"events error"}, fix: "with a host: --worker URL,events="},
		{name: "a wrong topic", target: discovery.Target{Topic: "other"}, set: func(o *Options) { o.Listen = 200 * time.Millisecond },
			want: []string{"event_stream error"}, fix: "correct events= and topic="},
		{name: "no replay socket", mock: func(c *mockengine.Config) { c.Replay = "" }, want: []string{"replay warning"}, fix: "replay_endpoint"},
		{name: "a replay socket that does not answer", target: discovery.Target{Replay: "tcp://127.0.0.1:1"}, set: func(o *Options) { o.Listen = 500 * time.Millisecond },
			want: []string{"replay warning"}, fix: "correct replay="},
		{name: "no prefix cache", mock: func(c *mockengine.Config) { c.NoPrefixCaching = true }, want: []string{"prefix_cache error"}, fix: "--no-enable-prefix-caching"},
		{name: "no prefix cache of SGLang", mock: func(c *mockengine.Config) { sglang(c); c.NoPrefixCaching = true },
			want: []string{"prefix_cache error"}, fix: "--disable-radix-cache"},
		{name: "a prefix cache that is secretly off", mock: func(c *mockengine.Config) { c.NoPrefixCaching = true }, edit: []string{`enable_prefix_caching="False"`, ""},
			want: []string{"prefix_cache error", "events error"}, fix: "--enable-prefix-caching"},
		{name: "no cached tokens in answers", mock: func(c *mockengine.Config) { c.HideCachedTokens = true },
			want: []string{"cached_tokens warning"}, fix: "--enable-prompt-tokens-details"},
		{name: "no cached tokens in answers of SGLang", mock: func(c *mockengine.Config) { sglang(c); c.HideCachedTokens = true },
			want: []string{"cached_tokens warning"}, fix: "--enable-cache-report"},
		{name: "no metrics of SGLang", mock: sglang, own: pages{"/metrics": page(404, "")}, want: []string{"metrics warning"}, fix: "--enable-metrics"},
		{name: "no metrics", own: pages{"/metrics": page(404, "")}, want: []string{"metrics warning"}, fix: "/metrics"},
		{name: "a failed health check", own: pages{"/health": page(503, "")}, want: []string{"health error"}, fix: "log"},
		{name: "prompts are refused", own: pages{"/v1/completions": page(500, "no memory left")}, want: []string{"prompt error"}, fix: "curl"},
		{name: "no tokenizer", own: pages{"/tokenize": page(404, "")}, want: []string{"tokenize warning"}, fix: "--model-path"},
		{name: "ids that are not the engine's", own: pages{"/tokenize": page(200, `{"count":99,"tokens":[`+strings.Repeat("7,", 98)+`7]}`)},
			set: func(o *Options) { o.Listen = 300 * time.Millisecond }, want: []string{"event_tokens error"}, fix: "belongs to this engine"},
		{name: "another block size than reported", edit: []string{`block_size="16"`, `block_size="32"`}, want: []string{"block_size warning"}, fix: "mock: 16"},
		{name: "another block size than configured", set: func(o *Options) { o.BlockSizes = map[string]int{"mock": 32} },
			want: []string{"block_size error"}, fix: "routing.block_sizes"},
		{name: "a router's block size that does not fit", set: func(o *Options) { o.BlockSize = 24 }, want: []string{"block_size warning"}, fix: "routing.block_size"},
		{name: "small pages", mock: func(c *mockengine.Config) { sglang(c); c.BlockSize = 1 }, want: []string{"block_size note"}, fix: "--page-size 16"},
		{name: "a random hash seed", mock: func(c *mockengine.Config) { c.HashSeed = "drawn at random" }, want: []string{"hash_chain note"}, fix: "PYTHONHASHSEED"},
		{name: "a hash seed that was named", mock: func(c *mockengine.Config) { c.HashSeed = "ours" }, set: func(o *Options) { o.Seeds = []string{"ours"} }},
		{name: "a clock ahead", mock: func(c *mockengine.Config) { c.ClockSkew = time.Hour }, want: []string{"clock warning"}, fix: "chrony"},
		{name: "a clock behind", mock: func(c *mockengine.Config) { c.ClockSkew = -time.Minute }, want: []string{"clock warning"}, fix: "chrony"},
		{name: "a key that is missing", mock: func(c *mockengine.Config) { c.APIKey = "k" }, want: []string{"reachable error"}, fix: "api_key"},
		{name: "a key", mock: func(c *mockengine.Config) { c.APIKey = "k" }, target: discovery.Target{APIKey: "k"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			target := test.target
			target.URL = mock(t, test.mock).URL()
			if test.own != nil || test.edit != nil {
				target.URL = front(t, target.URL, test.own, strings.NewReplacer(test.edit...))
			}
			r := examined(t, test.set, target)
			if got := summary(r); !slices.Equal(got, test.want) {
				t.Fatalf("findings %q, want %q\n%+v", got, test.want, r.Findings)
			}
			if test.fix != "" && !slices.ContainsFunc(r.Findings, func(f Finding) bool { return strings.Contains(f.Fix, test.fix) }) {
				t.Errorf("no finding advises %q: %+v", test.fix, r.Findings)
			}
			if test.want == nil && (len(r.Workers[0].Prompts) != 3 || r.Workers[0].Prompts[1].CachedTokens <= 0 || r.Workers[0].HashChain == "") {
				t.Errorf("a healthy worker was examined as %+v", r.Workers[0])
			}
		})
	}
}

// A worker that is dead, hangs, or answers nonsense is a finding, and the others are examined all the same.
func TestADeadWorkerIsAFinding(t *testing.T) {
	good := mock(t, nil)
	nonsense := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))
	defer nonsense.Close()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"data":[{"id":"m","owned_by":"warmpath"}]}`)
	}))
	defer gateway.Close()
	r := examined(t, nil, discovery.Target{URL: "http://127.0.0.1:1"}, discovery.Target{URL: nonsense.URL}, discovery.Target{URL: gateway.URL},
		discovery.Target{URL: good.URL() + "/v1"})
	if got := summary(r); !slices.Equal(got, []string{"reachable error", "reachable error", "reachable error"}) {
		t.Errorf("findings %q\n%+v", got, r.Findings)
	}
	if r.Problems() != 3 || len(r.Workers[3].Prompts) != 3 {
		t.Errorf("%d problems, the good worker %+v", r.Problems(), r.Workers[3])
	}
	var out strings.Builder
	if err := r.WriteText(&out); err != nil || !strings.Contains(out.String(), "3 problems found.") || !strings.Contains(out.String(), "ERROR    reachable") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if want := "all 4 workers\n  are not compared: fewer than two answered\n"; !strings.Contains(out.String(), want) {
		t.Errorf("not %q:\n%s", want, out.String())
	}
}

func TestWorkersThatDisagreeAreFound(t *testing.T) {
	one := mock(t, nil)
	two := mock(t, func(c *mockengine.Config) {
		c.BlockSize, c.MaxModelLen, c.HashSeed, c.Version = 32, 4096, "0", "0.31.0"
	})
	other := mock(t, func(c *mockengine.Config) { c.Model = "other" })
	r := examined(t, nil, discovery.Target{URL: one.URL()}, discovery.Target{URL: two.URL()}, discovery.Target{URL: other.URL()})
	want := []string{"same_block_size warning", "same_length warning", "same_hash_chain warning", "same_model note", "same_version note"}
	if got := summary(r); !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q\n%+v", got, want, r.Findings)
	}
}

// otherModel returns the folder of a model that is not the mock engine's.
func otherModel(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json": `{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"decoder":null,"post_processor":null,
			"model":{"type":"WordLevel","vocab":{"[UNK]":0,"hello":1,"world":2},"unk_token":"[UNK]"}}`,
		"chat_template.jinja": `{% for m in messages %} {{ m.content }}{% endfor %}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The first worker's files are named by the operator, the second worker reports its folder, and the third has no files.
func TestFilesOfAnotherModelAreFound(t *testing.T) {
	dir := otherModel(t)
	reporting := front(t, mock(t, nil).URL(), nil, strings.NewReplacer(`"root":"mock"`, `"root":"`+dir+`"`))
	for _, test := range []struct {
		url       string
		models    []inprocess.Path
		want, fix string
	}{
		{mock(t, nil).URL(), []inprocess.Path{{Path: dir}}, "token_files error", "--model-path mock=DIR"},
		{reporting, nil, "token_files warning", "--model-path"},
		{mock(t, nil).URL(), nil, "token_files note", "--model-path mock=DIR"},
	} {
		r := examined(t, func(o *Options) { o.FilesOff, o.Models = false, test.models }, discovery.Target{URL: test.url})
		if got := summary(r); !slices.Equal(got, []string{test.want}) || !strings.Contains(r.Findings[0].Fix, test.fix) || r.Findings[0].Worker != test.url {
			t.Errorf("findings %q, want %s and %q\n%+v", got, test.want, test.fix, r.Findings)
		}
	}
}

// A worker cannot hold the doctor for longer than its time limits.
func TestAHangingWorkerEndsWithTheContext(t *testing.T) {
	s := mock(t, func(c *mockengine.Config) { c.Faults.Stalled = true })
	r := examined(t, func(o *Options) { o.Prompt = 100 * time.Millisecond }, discovery.Target{URL: s.URL()})
	if got := summary(r); !slices.Equal(got, []string{"prompt error"}) {
		t.Errorf("findings %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan *Report)
	said := make(chan string, 64)
	go func() {
		done <- Examine(ctx, Options{Targets: []discovery.Target{{URL: s.URL()}}, FilesOff: true, Progress: func(line string) { said <- line }})
	}()
	for line := range said {
		if strings.Contains(line, "prompt 1") {
			break
		}
	}
	cancel()
	if r := <-done; len(r.Workers) != 1 {
		t.Errorf("report %+v", r)
	}
}

// The page explains every check.
func TestChecksAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range Checks {
		if !strings.Contains(string(page), fmt.Sprintf("| `%s` |", check)) {
			t.Errorf("docs/troubleshooting.md does not explain the check %s", check)
		}
	}
}
