package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An example that is copied from a page is accepted.
func TestTheFilesThatPagesShowWork(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	policies, _ := filepath.Glob("../../docs/policies/*.md")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	seen := 0
	for _, page := range append(pages, policies...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks.FindAllStringSubmatch(string(text), -1) {
			seen++
			example, command := block[1], []string{"config", "check"}
			// The examples of simulator.md are experiments for the command sim. The test runs each experiment with two generated
			// requests in place of its trace.
			if filepath.Base(page) == "simulator.md" {
				example = regexp.MustCompile(`(?m)^workload: .*$`).ReplaceAllString(example, "workload: gen:independent")
				command = []string{"sim", "--limit", "2", "--experiment"}
			}
			file := filepath.Join(t.TempDir(), "example.yaml")
			if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
				t.Fatal(err)
			}
			var complaint bytes.Buffer
			if code := run(append(command, file), io.Discard, &complaint); code != 0 {
				t.Errorf("%s: warmpath %s refuses the example (%d): %s", filepath.Base(page), strings.Join(command, " "), code, complaint.String())
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d examples found: the test looks for them in the wrong way", seen)
	}
}
