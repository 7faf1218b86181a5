package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/doctor"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// aMock returns the URL of a mock engine that runs until the test ends.
func aMock(t *testing.T, cfg mockengine.Config) string {
	t.Helper()
	s, err := mockengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(t.Context()); err != nil { // ends before t.Cleanup runs
			t.Error(err)
		}
	})
	t.Cleanup(wg.Wait)
	<-s.Ready()
	return s.URL()
}

// aFile writes a file into a folder of its own, and returns its path.
func aFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDoctorsExitCodeSaysWhetherThereIsAProblem(t *testing.T) {
	healthy := aMock(t, mockengine.DefaultConfig())
	silent := mockengine.DefaultConfig()
	silent.Events, silent.Replay = "", ""
	file := aFile(t, "warmpath.yaml", "workers: [{url: "+aMock(t, silent)+"}]\n")
	sources := aFile(t, "sources.yaml", "workers_file: "+aFile(t, "list.yaml", "workers: [{url: "+healthy+"}]\n")+
		"\nworkers_dns: {names: [{url: "+strings.Replace(aMock(t, silent), "127.0.0.1", "localhost", 1)+"}]}\n")
	empty := aFile(t, "empty.yaml", "workers: []\n")
	for _, test := range []struct {
		args []string
		code int
		out  string // text in the output, or in the errors if code is 2
	}{
		{[]string{"--worker", healthy, "--no-files"}, 0, "No problem found."},
		{[]string{"--worker", healthy}, 0, "NOTE     token_files"},
		{[]string{"--config", file}, 1, "ERROR    events"},
		{[]string{"--config", sources, "--no-files"}, 1, "all 2 workers"},
		{[]string{"--config", empty}, 2, "empty.yaml has none: add workers to it"},
		{[]string{"--config", file, "--worker", healthy}, 0, "No problem found."},
		{[]string{"--worker", "http://127.0.0.1:1"}, 1, "ERROR    reachable"},
		{nil, 2, "name it with --worker URL"},
		{[]string{"--worker", "gpu-1:8000"}, 2, "write http://gpu-1:8000"},
		{[]string{"--worker", healthy, "--listen-time", "0s"}, 2, "longer than 0"},
		{[]string{"--worker", healthy, "--model-path", "hub:a/b"}, 2, "--model-path"},
		{[]string{healthy}, 2, "write --worker"},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"doctor"}, test.args...), &out, &errs)
		if test.code == 2 {
			out.Write(errs.Bytes())
		}
		if code != test.code || !strings.Contains(out.String(), test.out) {
			t.Errorf("doctor %q: exit code %d, want %d with %q\n%s%s", test.args, code, test.code, test.out, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"doctor", "--config", file, "--json"}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "prompt 1 of 3") {
		t.Errorf("exit code %d\n%s", code, errs.String())
	}
	var report doctor.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || len(report.Findings) == 0 || report.Findings[0].Check != "events" {
		t.Errorf("%v: %s", err, out.String())
	}
}
