package app_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/test/testenv"
)

// watched starts a router with a file in dir. The file has one tenant, and the key of the tenant is test.
func watched(t *testing.T, file string) (r *router, log *testenv.Buffer, text func(tenants string) []byte, status func() int) {
	t.Helper()
	e := engine(t, nil)
	base := settings(e)
	text = func(tenants string) []byte {
		return fmt.Appendf(nil, "workers: [{url: %q, events: %q, replay: %q}]\nwatch_interval: 10ms\n%s\n", base.Workers[0].URL, base.Workers[0].Events, base.Workers[0].Replay, tenants)
	}
	if err := os.WriteFile(file, text("tenants: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	load := func() (*config.Config, error) {
		return config.Load(file, func(c *config.Config) {
			was := *settings(e)
			c.Listen, c.Admin, c.Health, c.Events, c.Reports, c.Models = was.Listen, was.Admin, was.Health, was.Events, was.Reports, was.Models
		})
	}
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	log = &testenv.Buffer{}
	r = startWith(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(log, nil)), Load: load, File: file})
	return r, log, text, func() int {
		resp, err := r.client.Get("http://" + r.Addr().String() + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
}

const oneTenant = "tenants: [{name: acme, keys_sha256: [9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08]}]"

// replace changes a file as editors and deployment tools do: nobody sees the file while it is written.
func replace(file string, text []byte) error {
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func TestAFileThatChangesIsReloaded(t *testing.T) {
	write := func(file string, text []byte) error { return os.WriteFile(file, text, 0o600) }
	for name, change := range map[string]func(string, []byte) error{"written": write, "replaced": replace} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "f.yaml")
			r, log, text, status := watched(t, file)
			if got := status(); got != http.StatusOK {
				t.Fatalf("the open gateway answers %d", got)
			}
			if err := change(file, text(oneTenant)); err != nil {
				t.Fatal(err)
			}
			r.wait("the tenants are in force", func() bool { return status() == http.StatusUnauthorized })
			if err := change(file, []byte("tenants: [{")); err != nil { // a broken file
				t.Fatal(err)
			}
			r.wait("the log says what is wrong", func() bool { return strings.Contains(log.String(), "files changed and cannot be used") })
			if got := status(); got != http.StatusUnauthorized {
				t.Errorf("after a broken file the gateway answers %d", got)
			}
			if err := change(file, text("tenants: []")); err != nil {
				t.Fatal(err)
			}
			r.wait("the corrected file is in force", func() bool { return status() == http.StatusOK })
			told := "" // the file may also be seen while it is empty, before its text is written, at each change
			for line := range strings.Lines(log.String()) {
				_, what, _ := strings.Cut(line, "files changed and cannot be used")
				switch {
				case strings.Contains(line, "configuration reloaded"):
					told = ""
				case what != "" && what == told:
					t.Errorf("the log says twice: %s", what)
				case what != "":
					told = what
				}
			}
		})
	}
}

// Kubernetes mounts a ConfigMap as links: f.yaml → ..data/f.yaml, and ..data → a folder. An update replaces ..data.
func TestAFileBehindTheLinksOfKubernetesIsReloaded(t *testing.T) {
	dir := t.TempDir()
	version := func(name string, text []byte) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "f.yaml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", nil)
	file := filepath.Join(dir, "f.yaml")
	if err := os.Symlink(filepath.Join("..data", "f.yaml"), file); err != nil {
		t.Fatal(err)
	}
	r, _, text, status := watched(t, file)
	version("..2", text(oneTenant))
	r.wait("the tenants are in force", func() bool { return status() == http.StatusUnauthorized })
}

func TestATenantsFileThatChangesIsReloaded(t *testing.T) {
	dir := t.TempDir()
	file, list := filepath.Join(dir, "f.yaml"), filepath.Join(dir, "tenants.jsonl")
	if err := os.WriteFile(list, []byte(`{"name": "acme", "keys_sha256": ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, log, text, status := watched(t, file)
	if err := os.WriteFile(file, text("tenants_file: "+list), 0o600); err != nil {
		t.Fatal(err)
	}
	r.wait("the tenants are in force", func() bool { return status() == http.StatusUnauthorized })
	f, err := os.OpenFile(list, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"name": "more", "keys_sha256": ["` + strings.Repeat("ab", 32) + `"]}` + "\n"); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	r.wait("the further tenant is in force", func() bool { return strings.Contains(log.String(), "tenants: 2, 1 added, 0 changed, 0 removed") })
}

// Nothing is reloaded while a file is missing. Without a word about it, an operator would wait for the next change in
// vain.
func TestAFileThatIsMissingIsNamedInTheLog(t *testing.T) {
	dir := t.TempDir()
	file, list := filepath.Join(dir, "f.yaml"), filepath.Join(dir, "workers.yaml")
	write := func(path string, text []byte) {
		if err := replace(path, text); err != nil {
			t.Fatal(err)
		}
	}
	write(list, []byte("workers: []\n"))
	r, log, text, status := watched(t, file)
	write(file, text("tenants: []\nworkers_file: "+list))
	r.wait("the list is in force", func() bool { return strings.Contains(log.String(), "configuration reloaded") })
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	r.wait("the log names the missing file", func() bool { return strings.Contains(log.String(), "workers_file: open "+list) })
	if got := status(); got != http.StatusOK {
		t.Errorf("without the list the gateway answers %d", got)
	}
	write(list, []byte("workers: []\n"))
	write(file, text(oneTenant))
	r.wait("the next change is in force", func() bool { return status() == http.StatusUnauthorized })
	if n := strings.Count(log.String(), "files changed and cannot be used"); n > 2 { // 2: the files do not change at the same moment
		t.Errorf("the log names the missing file %d times:\n%s", n, log)
	}
}
