package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

func TestTheHubIsReadFromTheFileThenTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{EnvHubToken: "secret", EnvHubEndpoint: "http://mirror", EnvHubCache: "", EnvHubHome: "/hf", EnvHubOffline: "1"} {
		t.Setenv(name, value)
	}
	got := Hub(inprocess.HubConfig{Allow: true})
	if !got.Allow || got.Endpoint != "http://mirror" || got.Cache != filepath.FromSlash("/hf/hub") || got.Token != "secret" || !got.Offline {
		t.Errorf("from the environment: %+v", got)
	}
	t.Setenv(EnvHubCache, "/cache")
	file := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(file, []byte("hub: {allow: true, endpoint: 'http://ours'}\nmodels: [{path: 'hub:a/b'}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := Hub(cfg.Hub); !got.Allow || got.Endpoint != "http://ours" || got.Cache != "/cache" {
		t.Errorf("from the file: %+v", got)
	}
	t.Setenv(EnvHubEndpoint, "")
	t.Setenv(EnvHubOffline, "0")
	if got := Hub(inprocess.HubConfig{}); got.Allow || got.Offline || !strings.HasPrefix(got.Endpoint, "https://") {
		t.Errorf("by default: %+v", got)
	}
}

func TestAHubModelWithoutPermissionIsAProblemOfTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(file, []byte("models:\n  - path: /here\n  - path: hub:a/b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file, nil); err == nil || !strings.Contains(err.Error(), "w.yaml:3:") || !strings.Contains(err.Error(), "--allow-hub") {
		t.Errorf("error %v", err)
	}
}
