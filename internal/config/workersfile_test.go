package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWorkersAreReadFromAFileOfTheirOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.yaml")
	key := filepath.Join(t.TempDir(), "key")
	for path, text := range map[string]string{key: "sk-secret-of-the-engine\n", file: fmt.Sprintf("workers:\n- {url: http://a:1, labels: {zone: z}}\n- {url: http://b:1, api_key_file: %s}\n", key)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := filled(t, "workers: [{url: http://c:1}]\nworkers_file: "+file)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Workers) != 1 || len(cfg.FileWorkers) != 2 || cfg.FileWorkers[0].Labels["zone"] != "z" || cfg.FileWorkers[1].APIKey != "sk-secret-of-the-engine" {
		t.Errorf("%+v", cfg.FileWorkers)
	}
	for text, want := range map[string]string{
		"":                            "has no settings",
		"workers:\n":                  "has no list under workers",
		"workers: [{url: 'ftp://a'}]": "workers[0]",
		"workers: [{url: http://a:1}, {url: http://a:1/}]":                       "workers[1]: http://a:1/ is listed twice, first as workers[0]",
		"workers: [{uri: http://a:1}]":                                           "workers.yaml:1:12",
		"listen: ':80'\nworkers: []":                                             "workers.yaml:1:1",
		"workers: [{url: http://a:1, api_key: sk-very-secret-key, ranks: many}]": `"many" is not a whole number`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := filled(t, "workers_file: "+file)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sk-very-secret-key") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := filled(t, "workers_file: /nowhere/workers.yaml"); err == nil || !strings.Contains(err.Error(), "/nowhere/workers.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

// A service has another working directory than the operator who wrote the path.
func TestAMissingFileSaysWhereItsRelativePathBegins(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"workers_file", "tenants_file", "tenant_salt_key_file"} {
		want := key + ": open missing: no such file or directory; a relative path begins at the working directory, " + dir
		if _, err := filled(t, "workers: [{url: http://a:1}]\n"+key+": missing"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := filled(t, "workers: [{url: http://a:1}]\n"+key+": /nowhere/missing"); err == nil || strings.Contains(err.Error(), "relative") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
