package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fixedSecrets are the secrets that an environment variable with a fixed name overrides. text is a file with SECRET in
// the place of the setting.
var fixedSecrets = []struct {
	name, env, text string
	inline          bool // the secret itself may be in the file
	of              func(c *Config) string
}{
	{"key", EnvAdminKey, "admin: {SECRET}", true, func(c *Config) string { return c.Admin.Key }},
	{"key", EnvIndexKey, "index: {url: 'http://index:1', SECRET}", true, func(c *Config) string { return c.Index.Key }},
	{"key", EnvIndexKey, "index_service: {listen: '127.0.0.1:1', SECRET}", true, func(c *Config) string { return c.IndexService.Key }},
	{"key", EnvSyncKey, "sync: {nats: 'nats://h:1', SECRET}", true, func(c *Config) string { return c.Sync.Key }},
	{"password", EnvSyncPassword, "sync: {nats: 'nats://h:1', user: u, SECRET}", true, func(c *Config) string { return c.Sync.Password }},
	{"token", EnvSyncToken, "sync: {nats: 'nats://h:1', SECRET}", true, func(c *Config) string { return c.Sync.Token }},
	{"tenant_salt_key", EnvTenantSaltKey, "SECRET", false, func(c *Config) string { return c.TenantSaltKey }},
}

// namedSecrets are the secrets whose environment variable is named in the file.
var namedSecrets = []struct {
	name, text string
	of         func(c *Config) string
}{
	{"api_key", "workers: [{url: 'http://w:1', SECRET}]", func(c *Config) string { return c.Workers[0].APIKey }},
	{"api_key", "worker_defaults: {SECRET}", func(c *Config) string { return c.WorkerDefaults.APIKey }},
	{"api_key", "workers_dns: {names: [{url: 'http://w:1', SECRET}]}", func(c *Config) string { return c.WorkersDNS.Names[0].APIKey }},
	{"password", "index: {backend: valkey, valkey: {url: 'valkey://h:1', SECRET}}", func(c *Config) string { return c.Index.Valkey.Password }},
}

// secretFile returns the name of a file with a text.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const plainSecret = "0123456789abcdef0123456789abcdef"

// A Secret of Kubernetes that was made from a file ends with a new line, as a file or as a variable.
func TestWhiteSpaceAroundASecretDoesNotCount(t *testing.T) {
	padded := plainSecret + "\n"
	file := secretFile(t, padded)
	read := func(t *testing.T, text, setting string, of func(c *Config) string) {
		t.Helper()
		text = strings.ReplaceAll(text, "SECRET", setting)
		if cfg, err := filled(t, text); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := of(cfg); got != plainSecret {
			t.Errorf("%s: %q, want %q", text, got, plainSecret)
		}
	}
	for _, s := range fixedSecrets {
		t.Run(s.env, func(t *testing.T) {
			read(t, s.text, s.name+"_file: "+file, s.of)
			if s.inline {
				read(t, s.text, s.name+`: "`+plainSecret+`\n"`, s.of)
			}
			t.Setenv(s.env, padded)
			read(t, s.text, s.name+"_file: /nowhere", s.of)
		})
	}
	t.Setenv("NAMED", padded)
	for _, s := range namedSecrets {
		t.Run(s.text, func(t *testing.T) {
			read(t, s.text, s.name+"_file: "+file, s.of)
			read(t, s.text, s.name+`: "`+plainSecret+`\n"`, s.of)
			read(t, s.text, s.name+"_env: NAMED", s.of)
		})
	}
	t.Setenv(EnvAdminKey, padded)
	t.Setenv(EnvHubToken, padded)
	if got := AdminKey(); got != plainSecret {
		t.Errorf("AdminKey: %q", got)
	}
	if got := Hub(Default().Hub).Token; got != plainSecret {
		t.Errorf("the token of the hub: %q", got)
	}
}

func TestASecretOfWhiteSpaceIsRefused(t *testing.T) {
	spaces := strings.Repeat(" ", len(plainSecret))
	file := secretFile(t, spaces)
	refuse := func(t *testing.T, text, setting, want string) {
		t.Helper()
		text = strings.ReplaceAll(text, "SECRET", setting)
		if err := Check("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, s := range fixedSecrets {
		t.Run(s.env, func(t *testing.T) {
			refuse(t, s.text, s.name+"_file: "+file, s.name+"_file: "+file+" is empty")
			if s.inline {
				refuse(t, s.text, s.name+": '"+spaces+"'", "it has only white space")
			}
			t.Setenv(s.env, spaces)
			refuse(t, s.text, s.name+"_file: "+file, "the environment variable "+s.env+" has only white space")
		})
	}
	t.Setenv("NAMED", spaces)
	for _, s := range namedSecrets {
		t.Run(s.text, func(t *testing.T) {
			refuse(t, s.text, s.name+"_file: "+file, s.name+"_file: "+file+" is empty")
			refuse(t, s.text, s.name+": '"+spaces+"'", "it has only white space")
			refuse(t, s.text, s.name+"_env: NAMED", s.name+"_env: the environment variable NAMED has only white space")
		})
	}
}
