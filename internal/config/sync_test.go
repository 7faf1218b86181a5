package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// checkSync reads a file with the settings of sync, and returns the error's text.
func checkSync(t *testing.T, text string) (*Config, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte("workers: [{url: http://w:1}]\nsync: "+text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(file, nil)
	if err != nil {
		return nil, err.Error()
	}
	return cfg, ""
}

func TestSyncIsWrittenOnOneLine(t *testing.T) {
	cfg, problem := checkSync(t, "{nats: nats://host:4222}")
	if problem != "" || cfg.Sync.NATS != "nats://host:4222" {
		t.Error(problem)
	}
	cfg, problem = checkSync(t, "{embedded: true, listen: 127.0.0.1:4248, routes: [nats-route://other:4248]}")
	if problem != "" || !slices.Equal(cfg.Sync.Routes, []string{"nats-route://other:4248"}) {
		t.Error(problem)
	}
	if _, problem = checkSync(t, "{embedded: true, routes: [nats-route://other: 4248]}"); problem == "" {
		t.Error("a key with a value is taken for a route")
	}
}

func TestMistakesInSyncAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"{nats: nats://h:1, embedded: true}":                           "sync.embedded: sync.nats is set, too",
		"{nats: http://h:1}":                                           "sync.nats: the scheme",
		"{nats: \"nats://u:s3cret-password@\"}":                        "sync.nats: the URL names no host",
		"{routes: [nats-route://h:1]}":                                 "sync.routes: only an embedded server has routes",
		"{embedded: true, routes: [nats-route://h]}":                   "sync.routes[0]: the URL names no port",
		"{embedded: true, listen: nowhere}":                            "sync.listen: \"nowhere\" is not host:port",
		"{embedded: true, token: s3cret-token}":                        "sync.token: an embedded server asks for user and password",
		"{nats: nats://h:1, key: s3cret}":                              "sync.key: 6 characters are too few",
		"{nats: nats://h:1, group: \"a.b\"}":                           "sync.group:",
		"{nats: nats://h:1, user: u}":                                  "sync.user: user and password belong together",
		"{nats: nats://h:1, key_file: /nowhere}":                       "no such file or directory: write the key that the routers have in common (openssl rand",
		"{nats: nats://h:1, key_file: /dev/null}":                      "/dev/null is empty: write the key",
		"{nats: nats://h:1, user: u, password_file: /nowhere}":         "write the password that the NATS server asks for into this file, or give it in WARMPATH_SYNC_PASSWORD",
		"{nats: nats://h:1, listen: 127.0.0.1:1}":                      "sync.listen: only an embedded server listens: set embedded: true",
		"{listen: 127.0.0.1:1}":                                        "sync.listen: only an embedded server listens: set embedded: true",
		"{group: g}":                                                   "sync.group: it has no effect, because no requests are shared: set sync.nats",
		"{name: n}":                                                    "sync.name: it has no effect",
		"{key: s3cret-s3cret-s3cret}":                                  "sync.key: it has no effect",
		"{key_file: /nowhere}":                                         "sync.key_file: it has no effect",
		"{user: u, password: s3cret}":                                  "sync.user: it has no effect",
		"{token: s3cret}":                                              "sync.token: it has no effect",
		"{credentials_file: f}":                                        "sync.credentials_file: it has no effect",
		"{tls: {ca_file: f}}":                                          "sync.tls: it has no effect",
		"{nats: nats://h:1, tls: {cert_file: a}}":                      "sync.tls: cert_file and key_file belong together",
		"{nats: nats://h:1, token: s3cret-token, credentials_file: f}": "sync.user: keep one of",
	} {
		_, problem := checkSync(t, text)
		if !strings.Contains(problem, want) || strings.Contains(problem, "s3cret") {
			t.Errorf("%s: %s, want %s", text, problem, want)
		}
	}
}

func TestSecretsOfSyncComeFromTheEnvironment(t *testing.T) {
	t.Setenv(EnvSyncKey, "0123456789abcdef")
	t.Setenv(EnvSyncPassword, "a password")
	cfg, problem := checkSync(t, "{nats: nats://h:1, user: u}")
	if problem != "" || cfg.Sync.Key != "0123456789abcdef" || cfg.Sync.Password != "a password" {
		t.Error(problem)
	}
	if cfg, problem = checkSync(t, "{}"); problem != "" || cfg.Sync.Key != "" {
		t.Errorf("without sync the variable counts: %s", problem)
	}
}

func TestSecretsOfSyncComeFromFilesAndTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(" a secret from the file \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []struct {
		name, settings, env string
		of                  func(c *Config) string
	}{
		{"password", "user: u, ", EnvSyncPassword, func(c *Config) string { return c.Sync.Password }},
		{"token", "", EnvSyncToken, func(c *Config) string { return c.Sync.Token }},
		{"key", "", EnvSyncKey, func(c *Config) string { return c.Sync.Key }},
	} {
		t.Run(secret.name, func(t *testing.T) {
			on := "{nats: nats://h:1, " + secret.settings
			read := func(text, want string) {
				t.Helper()
				cfg, problem := checkSync(t, text)
				if problem != "" {
					t.Errorf("%s: %s", text, problem)
				} else if got := secret.of(cfg); got != want {
					t.Errorf("%s: %q, want %q", text, got, want)
				}
			}
			inFile, inline := secret.name+"_file: "+file+"}", secret.name+": \"a secret of the settings\"}"
			read(on+inFile, "a secret from the file")
			read(on+inline, "a secret of the settings")
			if _, problem := checkSync(t, on+secret.name+"_file: "+file+", "+inline); !strings.Contains(problem, "keep one") {
				t.Errorf("both are set: %s", problem)
			}
			t.Setenv(secret.env, "a secret of the environment")
			read(on+inFile, "a secret of the environment")
			read(on+inline, "a secret of the environment")
			read("{}", "")
		})
	}
}
