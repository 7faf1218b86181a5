package testenv_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// canary is the beginning of every secret in TestNoSecretIsEverPrinted.
const canary = "cAnArY"

// echo starts a worker for the model parrot. Each error of this worker repeats the whole head of the request.
func echo(t *testing.T) string {
	t.Helper()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said := fmt.Sprintf("wrong key %v in %q of %s", r.Header["Authorization"], r.Header, r.RequestURI)
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"parrot","object":"model"}]}`)
		case r.Method == http.MethodGet:
			io.WriteString(w, "{}")
		case asked.Add(1)%4 == 0:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"message\":%q,\"code\":500}}\n\n", said)
		default:
			w.WriteHeader([]int{0, 401, 500, 400}[asked.Load()%4])
			fmt.Fprintf(w, "{\"error\":{\"message\":%q}}%s", said, strings.Repeat("x", 220)+r.Header.Get("Authorization"))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// parrot starts a worker that answers every request with an error and repeats the request's header in it.
func parrot(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" || r.URL.Path == "/health" || r.URL.Path == "/version" {
			w.WriteHeader(http.StatusInternalServerError)
		} else {
			w.WriteHeader(http.StatusBadGateway)
		}
		fmt.Fprintf(w, "you sent %v", r.Header)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestNoSecretIsEverPrinted(t *testing.T) {
	t.Setenv("HF_TOKEN", canary+"-hub")
	engine := mock(t, func(c *mockengine.Config) { c.APIKey = canary + "-client" })
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	good := fmt.Sprintf(`telemetry: {log_level: debug}
gateway: {tenant_header: Authorization}
admin:
  key: @-admin
workers:
  - url: %s
    api_key: @-client
  - url: %s
    model: mock
    api_key: "@-worker"
  - url: %s
policies:
  - type: lmcache_aware
    controller_url: http://127.0.0.1:1
    controller_api_key: @-controller
`, engine.URL(), parrot(t), echo(t))
	good = strings.ReplaceAll(good, "@", canary)
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(good)
	gateway := testenv.Serve(t, "--config", file)
	gateway.WorkersReady(t, 2)     // all but the worker that answers every request with an error
	printed := map[string]string{} // by process or request: everything that it printed
	ask := func(method, url, body string, headers ...string) {
		req, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		printed[method+" "+url] += fmt.Sprint(resp.Status, resp.Header) + string(text)
	}
	chat := `{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":2}`
	for range 4 {
		ask("POST", gateway.URL+"/v1/chat/completions", chat, "Authorization", "Bearer "+canary+"-client", "X-Api-Key", canary+"-client", "Cookie", "k="+canary)
		ask("POST", gateway.URL+"/v1/chat/completions?api_key="+canary, "{", "Authorization", "Bearer "+canary+"-other")
		ask("GET", gateway.URL+"/v1/models", "", "Authorization", "Bearer "+canary)
		ask("GET", gateway.URL+"/nothing", "", "Authorization", "Bearer "+canary)
	}
	failed := 0
	for i := range 12 { // an answer to a client may show the client's own key
		body := fmt.Sprintf(`{"model":"parrot","stream":%v,"messages":[{"role":"user","content":"hi"}]}`, i%2 == 0)
		req, err := http.NewRequest(http.MethodPost, gateway.URL+"/v1/chat/completions?token="+canary+"-query", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+canary+"-reflected-and-long-enough-to-be-cut")
		for _, name := range []string{"Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Tenant-Key", "X-Auth-Token", "X-Amz-Security-Token",
			"X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "Cf-Access-Client-Secret", "X-Session-Id", "X-Custom", "Referer"} {
			req.Header.Set(name, "key="+canary+"-"+name)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode >= 400 && resp.StatusCode != http.StatusNotFound {
			failed++
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	for i := range 8 { // requests of another client
		ask("POST", gateway.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":"parrot","stream":%v,"messages":[{"role":"user","content":"hi"}]}`, i%2 == 0))
	}
	if failed < 3 {
		t.Errorf("%d answers of the worker that repeats what it was sent", failed)
	}
	key := []string{"Authorization", "Bearer " + canary + "-admin"}
	operate := func() {
		for _, path := range []string{"/metrics", "/health", "/admin/workers", "/admin/decisions", "/admin/queue", "/admin/nothing"} {
			ask("GET", gateway.Admin+path, "", key...)
			ask("GET", gateway.Admin+path, "", "Authorization", "Bearer "+canary+"-wrong")
		}
		ask("POST", gateway.Admin+"/admin/explain", chat, key...)
	}
	operate()
	lines := strings.SplitAfter(good, "\n")
	refused := 0
	for i, line := range lines {
		for _, broken := range []string{"", " " + line, strings.Replace(line, ":", "", 1), strings.Replace(line, ": ", ": [", 1), "x" + line, "\t" + line, strings.Replace(line, "\n", "\"\n", 1), line + line} {
			write(strings.Join(lines[:i], "") + broken + strings.Join(lines[i+1:], ""))
			ask("POST", gateway.Admin+"/admin/reload", "", key...)
		}
		gateway.Signal(syscall.SIGHUP)
		out, err := exec.Command(testenv.Binary(t), "config", "check", file).CombinedOutput()
		if err != nil {
			refused++
		}
		printed["config check"] += string(out)
	}
	testenv.WaitFor(t, 5*time.Second, "a reload by signal", func() error {
		if !strings.Contains(gateway.Log(), "reload refused") {
			return fmt.Errorf("the log does not say that one was refused")
		}
		return nil
	})
	write(strings.Replace(good, "-worker", "-worker2", 1))
	ask("POST", gateway.Admin+"/admin/reload", "", key...)
	operate()
	for _, args := range [][]string{
		{"--worker", "http://a,api_key=" + canary}, {"--worker", "http://u:" + canary + "@a"}, {"--worker", "http://a,token=" + canary},
		{"--admin-key=" + canary}, {"--policy", "lmcache_aware:controller_api_key=" + canary}, {"api_key=" + canary},
	} {
		out, err := exec.Command(testenv.Binary(t), append([]string{"serve"}, args...)...).CombinedOutput()
		if err == nil {
			t.Errorf("serve %v is accepted", args)
		}
		printed[fmt.Sprint("serve ", args[0])] += string(out)
	}
	out, err := exec.Command(testenv.Binary(t), "load", strings.Replace(engine.URL(), "://", "://user:"+canary+"@", 1), "--workload", "gen:independent",
		"--requests", "1", "--model", "mock", "--json").CombinedOutput()
	printed["the report of load"] = string(out)
	if err != nil || !strings.Contains(string(out), `"command": "warmpath load`) {
		t.Errorf("load: %v\n%.300s", err, out)
	}
	gateway.Stop(syscall.SIGTERM)
	printed["the log"] = gateway.Log()
	for source, text := range printed {
		if i := strings.Index(text, canary); i >= 0 {
			t.Errorf("%s shows a secret: …%s…", source, text[max(0, i-200):min(len(text), i+60)])
		}
		if len(text) < 20 {
			t.Errorf("%s says nothing: %q", source, text)
		}
	}
	if refused < len(lines)/2 {
		t.Errorf("%d of %d broken files were refused", refused, len(lines))
	}
}
