package discovery

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

func TestAWorkersOwnSettingsComeBeforeTheDefaults(t *testing.T) {
	files := network.PeerTLS{CAFile: "/default"}
	d := Defaults{APIKey: "k", APIKeyUse: "always", Protocol: "http2", TLS: files}
	own := Target{URL: "https://a", APIKey: "own", APIKeyUse: "missing", Protocol: "auto", TLS: network.PeerTLS{ServerName: "a"}}
	for _, c := range []struct{ in, want Target }{
		{own, own},
		{Target{URL: "https://a"}, Target{URL: "https://a", APIKey: "k", APIKeyUse: "always", Protocol: "http2", TLS: files}},
		{Target{URL: "http://a"}, Target{URL: "http://a", APIKey: "k", APIKeyUse: "always", Protocol: "http2"}},
		{Target{URL: "unix:///a", APIKey: "own"}, Target{URL: "unix:///a", APIKey: "own", APIKeyUse: "always", Protocol: "http2"}},
	} {
		if got := d.Fill(c.in); !got.Equal(c.want) || !d.Fill(got).Equal(got) {
			t.Errorf("%+v: %+v, want %+v", c.in, got, c.want)
		}
	}
	if got := (Defaults{APIKeyUse: "always"}).Fill(Target{URL: "http://a"}); got.APIKeyUse != "" {
		t.Errorf("a use without a key: %+v", got)
	}
	for text, d := range map[string]Defaults{"none of questions, missing, always": {APIKeyUse: "x"}, "none of auto": {Protocol: "h2"}, "tls: ca_file": {TLS: network.PeerTLS{CAFile: "/absent"}}} {
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", d, err)
		}
	}
}

func TestDefaultsCountForTheWorkersOfAllSources(t *testing.T) {
	f := fleet.New(fleet.Config{})
	s, err := NewWatcher(f, []Target{{URL: "http://a"}}, DefaultConfig(), NewClient(nil, nil), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Add(Target{URL: "http://b"}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"k", "l", ""} {
		s.SetDefaults(Defaults{APIKey: key})
		if a, b := s.Target("http://a"), s.Target("http://b"); a.APIKey != key || b.APIKey != key {
			t.Errorf("the keys are %q and %q, want %q", a.APIKey, b.APIKey, key)
		}
	}
}
