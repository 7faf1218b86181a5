package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestSettingsThatCannotWorkAreRefusedWithTheirPosition(t *testing.T) {
	dir := t.TempDir()
	empty, file := filepath.Join(dir, "empty"), filepath.Join(dir, "tokenizer.json")
	for _, name := range []string{empty, file} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"listen: ':99999'", `1:9: listen: ":99999": the port is not within 0..65535`},
		{"listen: ':-1'", "1:9: listen: "},
		{"listen: '8080'", `1:9: listen: "8080" is not host:port`},
		{"listen: 'http://a:8080'", "1:9: listen: "},
		{"listen: 'a b:8080'", "1:9: listen: "},
		{"listen: ':http'", "1:9: listen: "},
		{"\nadmin: {listen: '127.0.0.1:70000'}", "2:17: admin.listen: "},
		{"listen: ':9090'", `1:9: admin.listen: 127.0.0.1:9090 is taken by listen, :9090: give each its own port`},
		{"listen: localhost:7000\nadmin:\n  listen: 127.0.0.1:7000", "3:11: admin.listen: 127.0.0.1:7000 is taken by listen"},
		{"listen: ':7000'\nevents: {listen: 'tcp://*:7000'}", "2:18: events.listen: tcp://*:7000 is taken by listen, :7000"},
		{"events:\n  listen: tcp://nope", `2:11: events.listen: "tcp://nope" names no port`},
		{"events: {listen: 'nope'}", `1:18: events.listen: "nope" does not begin with tcp:// or ipc://`},
		{"events: {listen: 'tcp://:5557'}", "1:18: events.listen: "},
		{"events: {listen: 'tcp://*:99999'}", "1:18: events.listen: "},
		{"events: {listen: 'ipc:///no/such/folder/x'}", `1:18: events.listen: "ipc:///no/such/folder/x": there is no folder /no/such/folder`},
		{"models: [{path: /no/such/model}]", "1:17: models[0].path: open model folder: stat /no/such/model: no such file or directory"},
		{"models: [{path: no-org/no-model}]", "1:17: models[0].path: open model folder: stat no-org/no-model: no such file or directory; if no-org/no-model is a model's name, " +
			"write its folder (in the Hugging Face cache models--no-org--no-model), or hub:no-org/no-model with --allow-hub"},
		{"models: [{name: x}]", "models[0].path: open model folder: no folder is named"},
		{"models: [{path: " + file + "}]", "1:17: models[0].path: open model folder: " + file + " is a file"},
		{"models: [{path: /}]", "1:17: models[0].path: /: no tokenizer.json, tekken.json or .tiktoken file"},
		{"models: [{path: " + dir + "}, {path: " + dir + "}]", "models[0]: with several models each needs a name"},
		{"models: [{name: a, path: " + dir + "}, {name: a, path: " + dir + "}]", "models[1].name: a is also the name of models[0]"},
		{"hub: {endpoint: nope}", `1:17: hub.endpoint: "nope" is not a URL`},
		{"proxy: {retry_statuses: [99]}", "1:26: proxy.retry_statuses[0]: 99 is outside 400..599"},
		{"proxy: {retry_statuses: [500, 200]}", "1:31: proxy.retry_statuses[1]: 200 is outside 400..599"},
		{"proxy: {retry_texts: ['']}", "1:23: proxy.retry_texts[0]: must not be empty: every answer contains the empty text"},
		{"workers: [{url: 'http://a:0'}]", "workers[0]: URL \"http://a:0\": port 0 is not within 1..65535"},
		{"workers: [{url: 'http://a:99999'}]", "port 99999 is not within"},
		{"workers: [{url: 'unix:///run/x.sock', events: 'tcp://*:5557'}]", "workers[0]: events endpoint: tcp://*:5557 needs a host"},
		{"workers: [{url: 'https://a', tls: {ca_file: /no/such/file}}]", "workers[0]: tls: ca_file: open /no/such/file"},
		{"workers: [{url: 'https://a', tls: {cert_file: /c}}]", "cert_file and key_file belong together"},
		{"workers: [{url: 'http://a', api_key_file: /no/such/file}]", "workers[0].api_key_file: open /no/such/file"},
		{"workers: [{url: 'http://a', api_key_env: NO_SUCH_VARIABLE}]", "the environment variable NO_SUCH_VARIABLE is not set"},
		{"workers: [{url: 'http://a', api_key: k3y, api_key_env: X}]", "keep one of api_key, api_key_file and api_key_env"},
		{"workers:\n  - url: http://a\n  - url: HTTP://A:80/v1", "3:5: workers[1]: HTTP://A:80/v1 is listed twice, first as workers[0]"},
		{"workers:\n  - {url: http://a, events: tcp://h:5557}\n  - {url: http://b, events: tcp://h:5557}", "3:29: workers[1].events: tcp://h:5557 is also the endpoint of workers[0].events"},
		{"workers:\n  - {url: http://h:1, events: tcp://*:5557}\n  - {url: http://h:2, events: tcp://*:5557}", "3:31: workers[1].events: tcp://*:5557 is also the endpoint of workers[0].events"},
		{"workers:\n  - {url: http://h:1, events: tcp://*:5557, replay: tcp://*:5557}", "2:53: workers[0].replay: tcp://*:5557 is also the endpoint of workers[0].events"},
		{"workers:\n  - {url: http://h:1, events: tcp://127.0.0.1:5557}\n  - {url: http://h:2, events: tcp://LocalHost:5557}", "3:31: workers[1].events: tcp://LocalHost:5557 is also the endpoint of workers[0].events"},
		{"workers:\n  - {url: http://localhost:1, events: tcp://*:5557}\n  - {url: http://127.0.0.1:2, events: tcp://*:5557}", "3:39: workers[1].events: tcp://*:5557 is"},
		{"workers:\n  - {url: http://h:1, events: 'tcp://[fd00:0::1]:5557'}\n  - {url: http://i:2, events: 'tcp://[fd00::1]:5557'}", "3:31: workers[1].events: "},
		{"workers:\n  - {url: http://h:1, events: ipc:///run/kv}\n  - {url: http://i:2, events: ipc:///run/../run/kv}", "3:31: workers[1].events: "},
		{"workers:\n  - url: http://localhost:8000\n  - url: http://127.0.0.1:8000", "3:5: workers[1]: http://127.0.0.1:8000 is listed twice"},
		{"listen: '[::1]:7000'\nevents: {listen: 'tcp://[0:0::1]:7000'}", "2:18: events.listen: "},
		{"listen: ':7000'\nworkers: [{url: 'http://localhost:7000/v1'}]", "2:11: workers[0]: http://localhost:7000/v1 is this router's own listen, :7000"},
		{"events: {listen: 'tcp://127.0.0.1:7001'}\nworkers: [{url: 'http://h', events: 'tcp://localhost:7001'}]", "2:37: workers[0].events: tcp://localhost:7001 is this router's own events.listen, tcp://127.0.0.1:7001"},
		{"events: {listen: 'ipc://*'}", `1:18: events.listen: "ipc://*" names no path`},
		{"workers:\n  - {url: http://h:1, events: none, replay: tcp://*:5557}", "workers[0].replay: must be empty: without events there is no replay"},
		{"tokens: {service: 'http://a:99999'}", "1:19: tokens.service: "},
		{"admin: {key_file: /no/such/key}", "1:19: admin.key_file: open /no/such/key: no such file or directory"},
		{"admin: {key_file: " + empty + "}", "1:19: admin.key_file: " + empty + " is empty"},
		{"admin: {key: 12345678, key_file: " + file + "}", "1:34: admin.key_file: it is given twice: keep one of key and key_file"},
	} {
		message := errorOf(t, c.text)
		if !strings.Contains(message, c.want) {
			t.Errorf("%s\nsays %q\nwant %q", c.text, message, c.want)
		}
		// At most two problems, and the line that says what to do next.
		if n := strings.Count(message, "\n"); n > 2 {
			t.Errorf("%s\nis reported in %d lines: %s", c.text, n+1, message)
		}
	}
}

func TestSettingsThatWorkAreAccepted(t *testing.T) {
	for _, text := range []string{
		"listen: '127.0.0.1:0'\nadmin: {listen: '127.0.0.1:0'}",
		"listen: '[::1]:7000'\nadmin: {listen: '127.0.0.1:7000'}",
		"listen: gpu_host-1.example.com:8080",
		"admin: {listen: ''}\nlisten: ':9090'",
		"events: {listen: 'tcp://*:*'}",
		"events: {listen: 'tcp://[::]:5557'}",
		"events: {listen: 'ipc://@warmpath'}",
		"workers: [{url: 'http://h:1', events: 'tcp://*:5557'}, {url: 'http://i:1', events: 'tcp://*:5557', replay: 'tcp://*:5657'}]",
		"workers: [{url: 'http://h:1', events: none}, {url: 'http://i:1', events: none, replay: none}]",
		"workers: [{url: 'http://h:1', events: 'ipc:///run/kv'}, {url: 'http://i:1', events: 'ipc:///run/KV'}]",
		"listen: ':7000'\nworkers: [{url: 'http://h:7000'}, {url: 'http://127.0.0.1:7001'}]",
		"workers: []",
	} {
		if message := errorOf(t, text); message != "" {
			t.Errorf("%s\nis refused: %s", text, message)
		}
	}
}

// The test finds the durations by reflection, so that a new duration cannot be forgotten.
func TestNoDurationIsNegative(t *testing.T) {
	var walk func(v reflect.Value, path string)
	seen := 0
	cfg := Default()
	walk = func(v reflect.Value, path string) {
		if v.Kind() != reflect.Struct {
			return
		}
		for _, field := range reflect.VisibleFields(v.Type()) {
			key := fieldKey(field)
			if key == "" {
				continue
			}
			f, at := v.FieldByIndex(field.Index), strings.TrimPrefix(path+"."+key, ".")
			if d, ok := f.Addr().Interface().(*time.Duration); ok {
				seen++
				was := *d
				*d = -time.Second
				cfg.Index.Backend = BackendMemory
				if strings.HasPrefix(at, "index.valkey.") { // the section counts only with its backend
					cfg.Index.Backend = BackendValkey
				}
				if err := cfg.Validate(); err == nil || !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(at)+`: `).MatchString(err.Error()) {
					t.Errorf("%s may be negative: %v", at, err)
				}
				*d = was
				continue
			}
			walk(f, path+"."+key)
		}
	}
	walk(reflect.ValueOf(&cfg).Elem(), "")
	t.Logf("%d durations", seen)
	if seen < 20 {
		t.Errorf("%d durations were found", seen)
	}
}

func TestAnUnknownSectionIsOneMistake(t *testing.T) {
	// This file is the configuration of another router.
	message := errorOf(t, `mode:
  type: vllm_prefill_decode
  prefill_urls:
    - ["http://prefill1:8081", null]
  decode_urls:
    - "http://decode1:8083"
  decode_policy:
    type: kv_aware
    block_size: 16
  kv_events:
    topic_filter: ""
    default_port: 5557
model_path: "meta-llama/Llama-3.1-8B-Instruct"
`)
	lines := strings.Split(strings.TrimSpace(message), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `:1:1: unknown field "mode"; a file of another router? `+"`warmpath config migrate`") ||
		!strings.HasSuffix(lines[1], `:13:1: unknown field "model_path"; write models: [{path: …}]`) {
		t.Errorf("%d lines:\n%s", len(lines), message)
	}
}

func TestHintsAreNearAndRight(t *testing.T) {
	known := keys(reflect.TypeFor[Config](), "")
	for unknown, want := range map[string]string{
		"mode": "disaggregation.mode", "url": "workers.url", "port": "", "lissten": "listen", "block-size": "routing.block_size", "polcy": "policy", "policys": "policy",
		"worker": "workers", "wrokers": "workers", "time": "", "tokenizer": "", "retries": "", "timeouts": "body.timeout",
	} {
		if got := nearest(unknown, known, slips(unknown), lastStep); got != want {
			t.Errorf("%s: %s", unknown, fmt.Sprintf("%q, want %q", got, want))
		}
	}
	flags := []string{"--json", "--policy", "--worker", "--model-path", "--retries"}
	for unknown, want := range map[string]string{
		"--policies": "--policy", "--workers": "--worker", "--retry": "--retries", "--models": "--model-path", "--model": "--model-path", "--police": "--policy", "--port": "",
	} {
		if got := Meant(unknown, flags); got != didYouMean(want) {
			t.Errorf("%s%s, want %q", unknown, got, want)
		}
	}
}
