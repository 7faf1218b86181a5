package warmpath_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// These patterns find the names of this repository's documents in code, scripts and other documents.
var (
	link      = regexp.MustCompile(`\]\(([^)\s#]+)`)
	fence     = regexp.MustCompile("(?s)```.*?```")
	named     = regexp.MustCompile(`\b(?:docs|bench/results)/[a-z0-9_/-]+\.(?:md|svg)`)
	designRef = regexp.MustCompile(`\bdocs/design/(\d{4})`)
)

// Every link in a document to a file of the repository has a target that exists. Every document that a file names
// exists, too.
func TestDocumentsThatAreNamedExist(t *testing.T) {
	seen := 0
	eachFile(t, func(path string, data []byte) {
		markdown := filepath.Ext(path) == ".md"
		if !markdown && filepath.Ext(path) != ".go" && filepath.Ext(path) != ".sh" {
			return
		}
		text := string(data)
		for _, name := range named.FindAllString(text, -1) {
			seen++
			if !exists(name) && !exists(filepath.Join(filepath.Dir(path), name)) {
				t.Errorf("%s names %s: there is no such file", path, name)
			}
		}
		for _, m := range designRef.FindAllStringSubmatch(text, -1) {
			if pages, _ := filepath.Glob("docs/design/" + m[1] + "-*.md"); len(pages) != 1 {
				t.Errorf("%s names %s: there are %d such pages", path, m[0], len(pages))
			}
		}
		if !markdown {
			return
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			seen++
			if !strings.Contains(m[1], "://") && !exists(filepath.Join(filepath.Dir(path), m[1])) {
				t.Errorf("%s has a link to %s: there is no such file", path, m[1])
			}
		}
	})
	if seen < 50 {
		t.Errorf("%d documents named: the test looks for them in the wrong way", seen)
	}
}

var (
	testNamed = regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9_]*`)
	testFunc  = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9_]*)\(`)
)

// Every test that a document names exists. TestName is an example that stands for any test.
func TestTestsThatDocumentsNameExist(t *testing.T) {
	inCode := map[string]bool{"TestName": true}
	named := map[string]string{} // for each name of a test, a document that has the name
	eachFile(t, func(path string, data []byte) {
		switch {
		case strings.HasSuffix(path, "_test.go"):
			for _, m := range testFunc.FindAllSubmatch(data, -1) {
				inCode[string(m[1])] = true
			}
		case filepath.Ext(path) == ".md":
			for _, name := range testNamed.FindAllString(string(data), -1) {
				named[name] = path
			}
		}
	})
	for name, path := range named {
		if !inCode[name] {
			t.Errorf("%s names %s: there is no such test", path, name)
		}
	}
	if len(named) < 50 {
		t.Errorf("%d tests named: the test looks for them in the wrong way", len(named))
	}
}

// docs/policies.md has a link to the page of every policy, so that a reader who chooses a policy finds the page.
func TestEveryPolicysPageHasALink(t *testing.T) {
	text, err := os.ReadFile("docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/policies/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, page := range pages {
		if !strings.Contains(string(text), "(policies/"+filepath.Base(page)+")") {
			t.Errorf("docs/policies.md has no link to %s", page)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
