package app_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/policy/script"
	"github.com/warmpath/warmpath/test/testenv"
)

// A changed script is in force without a reload by the operator. A script with a mistake changes nothing, and the log
// says where the mistake is. A call that fails is counted and logged, and the request is served.
func TestAScriptIsReadAgainWhenItsFileChanges(t *testing.T) {
	e := engine(t, nil)
	file := filepath.Join(t.TempDir(), "choose.star")
	write := func(reason string) {
		t.Helper()
		text := "def choose(request, workers):\n    return choice(workers[0], reason=" + reason + ")\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func() (*config.Config, error) {
		c := settings(e)
		p := script.Default()
		p.File = file
		c.Policies = []config.Policy{{Name: "script", Type: "script", Parameters: &p}}
		c.Policy, c.WatchInterval = "script", 50*time.Millisecond
		return c, c.Validate()
	}
	write(`"the first rule"`)
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	log := &testenv.Buffer{}
	r := startWith(t, cfg, app.Options{File: file, Log: slog.New(slog.NewTextHandler(log, nil)), Load: load})
	r.exact(1)
	decided := func() string { r.chat("hello"); return r.adminText("/admin/decisions?n=1") }
	if text := decided(); !strings.Contains(text, "the first rule") || !strings.Contains(text, `"script"`) {
		t.Fatalf("%s", text)
	}
	write(`"the first rule" +`)
	r.wait("the log names the mistake", func() bool { return strings.Contains(log.String(), "choose.star:2:") })
	if text := decided(); !strings.Contains(text, "the first rule") {
		t.Errorf("after a mistake: %s", text)
	}
	write(`"the second rule, which fails for %d" % request.session`)
	r.wait("the changed script decides", func() bool { return strings.Contains(decided(), "the default policy decided") })
	if text := r.scrape(); !strings.Contains(text, `warmpath_policy_failures_total{call="choose",policy="script"}`) {
		t.Error("no metric counts the failures")
	}
	if n := strings.Count(log.String(), "a policy failed"); n != 1 {
		t.Errorf("the log has %d lines about the failures:\n%s", n, log)
	}
}

// A script that only the name of a policy names is read again, too, without a configuration file. The flag --policy
// script:file=FILE is such a name.
func TestAScriptInTheNameOfAPolicyIsReadAgainWhenItsFileChanges(t *testing.T) {
	e := engine(t, nil)
	file := filepath.Join(t.TempDir(), "choose.star")
	write := func(reason string) {
		t.Helper()
		text := "def choose(request, workers):\n    return choice(workers[0], reason=\"" + reason + "\")\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func() (*config.Config, error) {
		return config.Load("", func(c *config.Config) {
			*c = *settings(e)
			c.Policy, c.WatchInterval = "script:file="+file, 50*time.Millisecond
		})
	}
	write("the first rule")
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler), Load: load})
	r.exact(1)
	decided := func() string { r.chat("hello"); return r.adminText("/admin/decisions?n=1") }
	if text := decided(); !strings.Contains(text, "the first rule") {
		t.Fatalf("%s", text)
	}
	write("the second rule")
	r.wait("the changed script decides", func() bool { return strings.Contains(decided(), "the second rule") })
}
