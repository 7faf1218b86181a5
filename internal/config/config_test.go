package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

func TestGoodFilesLoad(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		if _, err := Load(f, nil); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestErrorsOfBadFilesHaveTheirPositions(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(f, ".yaml") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			_, err = Load(f, nil)
			if err == nil {
				t.Fatal("the file is accepted")
			}
			for line := range strings.Lines(string(want)) {
				if line = strings.TrimSpace(line); !strings.Contains(err.Error(), line) {
					t.Errorf("the error does not say %q:\n%v", line, err)
				}
			}
		})
	}
}

func TestEmptyFileIsTheDefaults(t *testing.T) {
	for _, f := range []string{"testdata/good/empty.yaml", "testdata/good/nothing.yaml"} {
		got, err := Load(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Default(), *got); diff != "" {
			t.Errorf("%s:\n%s", f, diff)
		}
	}
}

func TestAFileWithoutWorkersDiffersFromAnEmptyList(t *testing.T) {
	for text, said := range map[string]bool{"": false, "policy: random": false, "workers:": false, "workers: []": true, "workers: [{url: http://a}]": true} {
		path := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path, nil)
		if err != nil || (got.Workers != nil) != said {
			t.Errorf("%q: workers %#v, %v", text, got.Workers, err)
		}
	}
}

func TestAFileChangesOnlyItsOwnKeys(t *testing.T) {
	got, err := Load("testdata/good/workers.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Policy = "round_robin"
	want.Workers = []discovery.Target{
		{URL: "http://gpu-1:8000"},
		{URL: "http://gpu-2:8000/v1", Events: "tcp://*:5557", Replay: "tcp://*:5657", Model: "m"},
	}
	want.Tokens.Budget = 20 * time.Millisecond
	want.Tokens.CacheBytes = 3 << 29
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Error(diff)
	}
}

func TestWorkersHaveDefaults(t *testing.T) {
	t.Setenv("ENGINE_KEY", "s3cret")
	path := filepath.Join(t.TempDir(), "f.yaml")
	load := func(defaults string) (*Config, error) {
		t.Helper()
		text := "worker_defaults: {" + defaults + "}\nworkers: [{url: http://a}, {url: http://b, api_key: own, protocol: http1}]"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(path, nil)
	}
	got, err := load("api_key_env: ENGINE_KEY, api_key_use: always, protocol: http2")
	if err != nil {
		t.Fatal(err)
	}
	want := []discovery.Target{{URL: "http://a", APIKey: "s3cret", APIKeyUse: "always", Protocol: "http2"}, {URL: "http://b", APIKey: "own", APIKeyUse: "always", Protocol: "http1"}}
	if diff := cmp.Diff(want, got.Workers); diff != "" {
		t.Error(diff)
	}
	_, err = load("api_key: s3cret, protocol: h2")
	if err == nil || strings.Count(err.Error(), "none of auto, http1, http2") != 1 || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
}

func TestFlagsOverrideTheFile(t *testing.T) {
	got, err := Load("testdata/good/workers.yaml", func(c *Config) { c.Policy = "random" })
	if err != nil || got.Policy != "random" {
		t.Errorf("policy %v, %v", got, err)
	}
	if _, err := Load("testdata/good/workers.yaml", func(c *Config) { c.Policy = "best" }); err == nil {
		t.Error("a flag's bad value is accepted")
	}
}

func TestAMissingFileIsReportedWithTheNextStep(t *testing.T) {
	_, err := Load("testdata/absent.yaml", nil)
	if err == nil || !strings.Contains(err.Error(), "warmpath config sample") {
		t.Error(err)
	}
}

func TestTheAdminKeyHasOneSource(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("  from-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(c *Config) { c.Admin.Listen = ":9090" }
	if _, err := Load("", open); err == nil || !strings.Contains(err.Error(), "needs a key") {
		t.Errorf("an open admin listener without a key: %v", err)
	}
	got, err := Load("", func(c *Config) { open(c); c.Admin.KeyFile = key })
	if err != nil || got.Admin.Key != "from-the-file" {
		t.Errorf("key file: %v, %v", got, err)
	}
	if _, err := Load("", func(c *Config) { c.Admin.Key, c.Admin.KeyFile = "12345678", key }); err == nil {
		t.Error("two keys are accepted")
	}
	if _, err := Load("", func(c *Config) { c.Admin.Key = "short" }); err == nil {
		t.Error("a short key is accepted")
	}
	t.Setenv(EnvAdminKey, "from-the-environment")
	got, err = Load("", func(c *Config) { open(c); c.Admin.KeyFile = key })
	if err != nil || got.Admin.Key != "from-the-environment" {
		t.Errorf("environment: %v, %v", got, err)
	}
}

func TestPolicyTakesItsWeights(t *testing.T) {
	c := Default()
	c.Policy = "kv_aware"
	c.Routing.TierWeights.CPU = 0.5
	c.Routing.ImbalanceTokens = 100
	s := c.Spec()
	if s.TierWeights[block.TierCPU] != 0.5 || s.ImbalanceTokens != 100 {
		t.Errorf("kv_aware: %+v", s)
	}
	c.Policy = "round_robin"
	if s := c.Spec(); s.ImbalanceTokens != 0 {
		t.Errorf("round_robin has no use for the bound: %+v", s)
	}
	for _, built := range warmpath.PolicyKinds().BuiltIn() {
		c.Policy = built.Name
		if _, err := policy.Build(c.Spec()); err != nil {
			t.Error(err)
		}
	}
}

func TestBlockKeysAndBlockSizesAreReadAndChecked(t *testing.T) {
	cfg := Default()
	if err := fill(&cfg, "f", []byte("routing: {block_keys: fnv1a, block_sizes: {meta-llama/Llama-3.1-8B: 32}}"), nil); err != nil {
		t.Fatal(err)
	}
	if cfg.Options().Algorithm != block.FNV1a || cfg.Routing.BlockSizes["meta-llama/Llama-3.1-8B"] != 32 {
		t.Errorf("%v, %v", cfg.Options().Algorithm, cfg.Routing.BlockSizes)
	}
	for text, want := range map[string]string{
		"routing: {block_keys: md5}":           `f:1:23: routing.block_keys: "md5" is none of xxh3, fnv1a`,
		"routing: {block_sizes: {a.b/c-1: 0}}": "f:1:34: routing.block_sizes.a.b/c-1: 0 is outside 1..65536",
		"routing: {block_sizes: {a: x}}":       `f:1:28: "x" is not a whole number`,
	} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(text), nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTheSettingsOfTheIndexReachTheRouter(t *testing.T) {
	cfg := Default()
	if err := fill(&cfg, "f", []byte("index: {bytes: 2MiB, max_speculative: 7}"), nil); err != nil {
		t.Fatal(err)
	}
	if o := cfg.Options(); o.Index.Bytes != 2<<20 || o.MaxSpeculative != 7 {
		t.Errorf("%+v, %d", o.Index, o.MaxSpeculative)
	}
}

func TestEmptyPartsOfAFileChangeNothing(t *testing.T) {
	for _, text := range []string{"%YAML 1.2\n---\nlisten: ':80'", "listen: ':80'\ngateway: {}\nqueue:\nproxy: {idle_timeout: }"} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(text), nil); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		want := Default()
		want.Listen = ":80"
		if diff := cmp.Diff(want, cfg); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestEveryMistakeOfASectionIsReported(t *testing.T) {
	const text = `queue:
  order: fair
  max_requests: 5.5
  max_wait: soon
  max_wait: 1s
  max_backlog: [1]
  quantum: 99999999999999999999
  high_first: *unknown
  max_kv_used: !percent 3
`
	cfg := Default()
	err := fill(&cfg, "f", []byte(text), nil)
	want := `f:3:17: "5.5" is not a whole number
f:4:13: "soon" is not a duration such as 50ms, 2s or 1m30s
f:5:3: the key "max_wait" stands twice, first on line 4
f:6:16: a list stands where a duration such as 2s is expected
f:7:12: "99999999999999999999" is out of range
f:8:15: there is no anchor (&…) of this alias before it: write a value that begins with * in quotes
f:9:16: a tag (!…) has no meaning here: leave it out, or write a value that begins with ! in quotes
f: correct these 7 problems and check again`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
}

func TestAMistakeHidesNoOtherMistakeOfItsSection(t *testing.T) {
	again := "\nf: correct this problem and check again: further checks need the corrected values"
	for _, c := range []struct{ name, text, want string }{
		{"another value is out of range", "queue: {order: fifo, max_wait: 5}",
			`f:1:16: queue.order: "fifo" is none of off, fcfs, shortest, priority, deadline, fair
f:1:32: "5" is not a duration such as 50ms, 2s or 1m30s
f: correct these 2 problems and check again`},
		{"the other value was compared with a default", "breaker: {delay: 5, max_delay: 1ms}", `f:1:18: "5" is not a duration such as 50ms, 2s or 1m30s` + again},
		{"an unknown key may be the missing one", "breaker: {dely: 5s, max_delay: 1ms}", `f:1:11: unknown field breaker.dely; did you mean breaker.delay?` + again},
		{"a setting as its flag is written", "admin_listen: ':9'", `f:1:1: unknown field "admin_listen"; write admin: {listen: …}`},
		{"a worker is listed twice", "workers: [{url: 'http://a'}, {url: 'http://a', ranks: x}, {url: 'http://a', ranks: 300}]",
			`f:1:30: workers[1]: http://a is listed twice, first as workers[0]
f:1:55: "x" is not a whole number
f:1:59: workers[2]: http://a is listed twice, first as workers[0]
f:1:59: workers[2]: ranks: 300 is outside 1..256
f: correct these 4 problems and check again`},
		{"an entry with a value that cannot be read is not checked", "workers: [{url: a, ranks: x}]", `f:1:27: "x" is not a whole number` + again},
		{"a swap of two letters", "wrokers: []", `f:1:1: unknown field "wrokers"; did you mean workers?`},
		{"a key of another section in an entry", "models: [{model: x, path: .}]", `f:1:11: unknown field models.model (known: name, path)` + again},
		{"an entry with an unknown key is not checked", "workers: [{url: 'http://a', modle: m, ranks: 300}]",
			`f:1:29: unknown field workers.modle; did you mean workers.model?` + again},
		{"an unknown key hides no wrong value beside it", "routing: {bloc: 1, block_size: 99999, block_sizes: {a: 0, b: x}, block_keys: fnv}",
			`f:1:11: unknown field routing.bloc (known: tier_weights, imbalance_tokens, speculative_ttl, approximate_ttl, block_size, block_sizes, block_keys, max_requests)
f:1:32: routing.block_size: 99999 is outside 0..65536
f:1:56: routing.block_sizes.a: 0 is outside 1..65536
f:1:62: "x" is not a whole number
f:1:78: routing.block_keys: "fnv" is none of xxh3, fnv1a
f: correct these 5 problems and check again`},
		{"the right key is there, too", "routing: {block_siz: 16, block_size: 99999}",
			`f:1:11: unknown field routing.block_siz; did you mean routing.block_size?
f:1:38: routing.block_size: 99999 is outside 0..65536
f: correct these 2 problems and check again`},
		{"a token in place of a section", "hub: hf_s3cret", `f:1:6: a value stands where keys with values are expected`},
		{"a path in place of a model", "models: [/x]", `f:1:10: "/x" stands where a model is expected: a model is written as path: DIR, with name: NAME if there are several` + again},
		{"a path in place of models", "models: /x", `f:1:9: "/x" stands where a list is expected: a line with - for each, such as - path: DIR`},
		{"an address without a scheme, in braces", "index: {peers: [router-1:9090]}",
			`f:1:17: index.peers[0]: "router-1:9090" is not the admin address of a router, such as http://router-2:9090`},
		{"a key with a value in place of an address", "index: {peers: [router-1: 9090]}", "f:1:17: keys with values stand where a text is expected"},
		{"braces in place of an address", "index: {peers: [{router-1:9090}]}", "f:1:17: keys with values stand where a text is expected"},
		{"a quoted key in place of an address", `index: {peers: ["router-1":9090]}`, "f:1:17: keys with values stand where a text is expected"},
		{"all is well beside it", "breaker: {delay: 5, failures: 2}", `f:1:18: "5" is not a duration such as 50ms, 2s or 1m30s`},
	} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(c.text), nil); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v\nwant\n%s", c.name, err, c.want)
		}
	}
}

// A file is refused if it has settings after an empty document, or an alias that contains itself. If a file has very
// many mistakes, only the first maxMistakes are reported.
func TestFilesThatCannotBeReadAreRefused(t *testing.T) {
	for _, text := range []string{"---\n# c\n---\nlisten: ':80'", "<<: &a {<<: *a}", "workers: &a [*a]", "<<: &a {queue: {order: fair, <<: *a}}"} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(text), nil); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	many := "workers: [" + strings.Repeat("{labels: *a}, ", 2000) + "]\nx: &a {" + strings.Repeat("k, ", 10) + "}"
	cfg := Default()
	if err := fill(&cfg, "f", []byte(many), nil); err == nil || strings.Count(err.Error(), "\n") != maxMistakes {
		t.Errorf("%d lines", strings.Count(err.Error(), "\n"))
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1024": 1024, "64MiB": 64 << 20, "1.5 GiB": 3 << 29, "2GB": 2e9, "5KiB": 5 << 10, "7B": 7, "1_000": 1000, "-1": -1,
	} {
		got, err := parseBytes(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
		if got, err = parseBytes(formatBytes(want)); err != nil || got != want {
			t.Errorf("%d is written as %s and read as %d, %v", want, formatBytes(want), got, err)
		}
	}
	for _, text := range []string{"", "MiB", "x", "8G", "8gb", "9999999TiB", "1.5", "NaNMiB", "1e300GiB", "99999999999999999999"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

func TestEverySettingInBytesTakesUnits(t *testing.T) {
	for text, want := range map[string]string{
		"proxy: {max_header_bytes: 64KiB}":                       "",
		"proxy: {max_header_bytes: 0x10000}":                     "",
		"index: {bytes: 8GB}":                                    "",
		"policy: cache_aware:max_bytes=1GB":                      "",
		"policies: [{type: cache_aware, max_bytes: 1.5 GiB}]":    "",
		"proxy: {max_header_bytes: 64K}":                         `"64K" is not a number of bytes`,
		"index: {bytes: 8G}":                                     "the units are KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000) and B",
		"policy: cache_aware:max_bytes=1G":                       `policy: max_bytes: "1G" is not a number of bytes such as`,
		"policies: [{type: cache_aware, max_bytes: 8gb}]":        `"8gb" is not a number of bytes`,
		"gateway: {max_headers: 8GB}":                            `"8GB" is not a whole number`,
		"policy: cache_aware:max_byte=1G":                        "did you mean max_bytes?",
		"routing: {imbalance_tokens: 8GB}":                       `"8GB" is not a whole number`,
		"policies: [{type: kv_aware, imbalance_tokens: '8KiB'}]": `"8KiB" is not a whole number`,
	} {
		cfg := Default()
		err := fill(&cfg, "f", []byte(text), nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	cfg := Default()
	if err := fill(&cfg, "f", []byte("proxy: {max_header_bytes: 64KB}\npolicy: cache_aware:max_bytes=1GB"), nil); err != nil {
		t.Fatal(err)
	}
	if p := cfg.Parameters()[cfg.Policy].(*peers.CacheAware); cfg.Proxy.MaxHeaderBytes != 64000 || p.MaxBytes != 1e9 {
		t.Errorf("%d, %d", cfg.Proxy.MaxHeaderBytes, p.MaxBytes)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(Sample()))
	f.Add([]byte("workers: [{url: http://a}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("<<: &a [*a]\n"))
	f.Add([]byte("%TAG !! x\n---\na: !!b\n")) // goccy/go-yaml 1.19.2 panics on this document
	f.Add([]byte("workers: !0000 00000"))
	f.Add([]byte("policies: &a\n  - type: random\n"))
	f.Add([]byte("<<: {policies: [{name: a}]}\n"))
	f.Add([]byte("<<: {nothing: 1, policies: [{name: a}]}\n"))
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := Default()
		if err := fill(&cfg, "f", data, nil); err != nil && err.Error() == "" {
			t.Error("an error says nothing")
		}
	})
}

// A section may have settings of two packages: those of an embedded struct, and its own.
func TestTheFieldsOfAnEmbeddedStructAreKeysOfItsSection(t *testing.T) {
	type Inner struct {
		Low  int `yaml:"lowest"`
		High int `yaml:"highest"`
	}
	type section struct {
		Inner
		Own int `yaml:"own"`
	}
	var got section
	r, root, err := newReader("f", []byte("own: 1\nhighest: 2\nloweest: 3\n"), reflect.TypeFor[section]())
	if err != nil {
		t.Fatal(err)
	}
	r.value(root, reflect.ValueOf(&got).Elem())
	if got.Own != 1 || got.High != 2 || got.Low != 0 {
		t.Errorf("read %+v", got)
	}
	if err := r.err(); err == nil || !strings.Contains(err.Error(), "did you mean lowest") {
		t.Errorf("the misspelled key: %v", err)
	}
}
