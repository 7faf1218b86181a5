package tokens

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// withService returns a Source whose service is the host svc.
func withService(hosts map[string]handler) (*Source, *engines) {
	e := &engines{hosts: hosts}
	cfg := DefaultConfig()
	cfg.Service = "http://svc/"
	return New(cfg, &http.Client{Transport: e}), e
}

func TestTheServiceIsAskedBeforeEnginesAndWithoutTheClientsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := withService(map[string]handler{"a": tokenizing, "svc": func(r *http.Request, body string) (int, string) {
			if r.Header.Get("Authorization") != "" {
				t.Error("the client's key went to the service")
			}
			return rendering(r, body)
		}})
		defer s.Close()
		p := chat("hi")
		p.Authorization = "Bearer secret"
		wants(t, find(t, s, p, a), Service, 1, 2, 3)
		wants(t, find(t, s, p, a), Cached, 1, 2, 3)
		wants(t, find(t, s, prompt(api.OpenAICompletions, `{"prompt":"x"}`)), Service, 1, 2, 3)
		if got := e.calls(); !slices.Equal(got, []string{"svc/v1/chat/completions/render", "svc/v1/completions/render"}) {
			t.Errorf("calls %v", got)
		}
	})
}

func TestEnginesAreAskedWhenTheServiceFailsRefusesOrIsSlow(t *testing.T) {
	for name, service := range map[string]handler{
		"fails":   func(*http.Request, string) (int, string) { return 500, "" },
		"refuses": func(*http.Request, string) (int, string) { return 400, `{"error":"no such template"}` },
		"unknown": func(*http.Request, string) (int, string) { return 404, `{"error":"no such model"}` },
		"lacks":   func(*http.Request, string) (int, string) { return 404, "" },
		"frozen":  func(r *http.Request, _ string) (int, string) { <-r.Context().Done(); return 500, "" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := withService(map[string]handler{"a": tokenizing, "svc": service})
				defer s.Close()
				wants(t, find(t, s, chat("hi"), a), Tokenize, 4, 5)
			})
		})
	}
}

func TestAFailingServiceIsNotAskedForAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := withService(map[string]handler{"a": tokenizing,
			"svc": func(*http.Request, string) (int, string) { return 500, "" }})
		defer s.Close()
		for i := range 10 {
			wants(t, find(t, s, chat(strings.Repeat("x", i)), a), Tokenize, 4, 5)
		}
		asked := 0
		for _, c := range e.calls() {
			if strings.HasPrefix(c, "svc/") {
				asked++
			}
		}
		if asked != DefaultConfig().Failures {
			t.Errorf("the service was asked %d times", asked)
		}
		pass(DefaultConfig().Pause)
		find(t, s, chat("later"), a)
		if got := e.calls(); !slices.ContainsFunc(got[13:], func(c string) bool { return strings.HasPrefix(c, "svc/") }) {
			t.Errorf("it is not tried again: %v", got)
		}
	})
}

func TestTheServiceComesAfterInProcessAndBeforeTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := withService(map[string]handler{"a": tokenizing, "svc": rendering})
		defer s.Close()
		s.Local = made{4, 5}
		wants(t, find(t, s, chat("hi")), InProcess, 4, 5)
		tools := prompt(api.OpenAIChat, `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}`)
		wants(t, find(t, s, tools), Service, 1, 2, 3)
		s.checks.note("", "", false) // the model of these prompts is distrusted now
		wants(t, find(t, s, chat("hi"), a), Tokenize, 4, 5)
	})
}

func TestAServiceIsReachedOverAUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Skip(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		_, _ = io.WriteString(w, `[{"token_ids":[7,8]}]`)
	})}}
	server.Start()
	defer server.Close()
	cfg := DefaultConfig()
	cfg.Service = "unix://" + path
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg.Budget = time.Hour // so long that the shortest wait (a fiftieth of the budget) is enough for an answer
	s := New(cfg, &http.Client{})
	defer s.Close()
	wants(t, find(t, s, prompt(api.OpenAICompletions, `{"prompt":"x"}`)), Service, 7, 8)
}

func TestAServicesAddressIsChecked(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "unix:///run/t.sock": true, "http://h:1": true, "https://h/prefix": true,
		"unix://run/t.sock": false, "unix:run": false, "h:1": false, "http://": false, "ftp://h": false,
		"http://u:p@h": false, "http://h?x": false, ":": false,
	} {
		cfg := DefaultConfig()
		cfg.Service = address
		if err := cfg.Validate(); (err == nil) != ok {
			t.Errorf("%q: error %v", address, err)
		}
	}
	cfg := DefaultConfig()
	cfg.Forward = "always"
	if cfg.Validate() == nil {
		t.Error("forward: always is taken")
	}
}
