package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const digestOfTest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestTenantsAreReadFromTheListAndTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tenants.jsonl")
	if err := os.WriteFile(file, []byte(`{"name": "b", "keys_sha256": ["`+strings.Repeat("ab", 32)+`"], "max_concurrent": 3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := filled(t, `
tenants:
  - {name: acme, keys_sha256: [`+digestOfTest+`], requests_per_second: 10, burst: 20, max_concurrent: 8, tokens_per_minute: 200000, models: ["llama-*", tiny], default_model: tiny, priority: 0, cache_salt: off}
tenants_file: `+file+`
tenant_service_levels: {acme: []}
`)
	if err != nil {
		t.Fatal(err)
	}
	if all := cfg.AllTenants; len(all) != 2 || all[0].Burst != 20 || all[0].CacheSalt != "off" || all[1].Name != "b" || all[1].MaxConcurrent != 3 {
		t.Errorf("tenants %+v", all)
	}
	if cfg.Tenants == nil {
		t.Error("a list was read, and none is there")
	}
	if cfg, err := filled(t, "tenants: []"); err != nil || cfg.Tenants == nil {
		t.Errorf("an empty list: %v", err)
	}
}

func TestEachMistakeInTenantsIsReportedAtItsPlaceWithoutAKey(t *testing.T) {
	t.Setenv(EnvTenantSaltKey, "")
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	empty, secret := write("empty", "\n"), write("salt", "too short")
	wrong := write("wrong", `{"name": "a", "keys_sha256": ["sk-very-secret"]}`)
	repeated := write("repeated", `{"name": "a", "keys_sha256": ["`+strings.Repeat("ab", 32)+`"]}`)
	entry := "{name: a, keys_sha256: [" + digestOfTest + "]"
	for text, want := range map[string]string{
		"tenants:": "f:1:10: there is no list: write [] for a gateway that is open to all",
		"tenants: [{name: a, keys_sha256: [sk-very-secret]}]":                                            "f:1:35: tenants[0].keys_sha256[0]: not a SHA-256 digest",
		"tenants: [{name: a, keys_sha256: sk-very-secret}]":                                              "where a list is expected",
		"tenants: [{name: a, keys: [sk-very-secret]}]":                                                   "keys_sha256",
		"jwt: {issuer: https://issuer.test, audience: a}":                                                "jwt.issuer: tokens name tenants, and there are none",
		"tenants: [" + entry + "}]\njwt: {issuer: http://issuer.test, algorithms: [HS256], refresh: 1s}": "jwt.algorithms[0]: \"HS256\" is none of",
		"tenants: [{name: a}]":                                                        "the tenant \"a\" has no key",
		"tenants: [" + entry + ", burst: 5}]":                                         "tenants[0].burst: it has no effect",
		"tenants: [" + entry + "}, " + entry + "}]":                                   "tenants[1].name: \"a\" is also the name of tenants[0]",
		"tenants: [" + entry + ", cache_salt: own}]":                                  "tenants[0].cache_salt: own needs a secret",
		"tenants: [" + entry + ", cache_salt: own}]\ntenant_salt_key_file: " + secret: "own needs a secret of at least 32 bytes",
		"tenants_file: " + wrong:                                                      "not a SHA-256 digest",
		"tenants_file: " + empty:                                                      "has no tenants",
		"tenants_file: " + dir + "/missing":                                           "no such file",
		"tenants: [" + entry + "}]\ntenants_file: " + repeated:                        "tenants_file.name: \"a\" is also the name of tenants[0]",
	} {
		_, err := filled(t, text)
		if err == nil || strings.Count(err.Error(), want) != 1 {
			t.Errorf("%s:\n%v\nwant %s, once", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "very-secret") {
			t.Errorf("%s: the error shows a key: %v", text, err)
		}
	}
}

func TestTheSecretOfSaltsComesFromItsFileOrTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "salt")
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "tenants: [{name: a, keys_sha256: [" + digestOfTest + "], cache_salt: own}]\ntenant_salt_key_file: " + file
	t.Setenv(EnvTenantSaltKey, "")
	if cfg, err := filled(t, text); err != nil || cfg.TenantSaltKey != strings.Repeat("x", 32) {
		t.Errorf("%v", err)
	}
	t.Setenv(EnvTenantSaltKey, strings.Repeat("y", 32))
	if cfg, err := filled(t, text); err != nil || cfg.TenantSaltKey != strings.Repeat("y", 32) {
		t.Errorf("%v", err)
	}
}
