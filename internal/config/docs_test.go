package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocsNameSettingsThatExist: if a page for users names a `section.key`, this setting exists.
func TestDocsNameSettingsThatExist(t *testing.T) {
	known := keys(reflect.TypeFor[Config](), "")
	var sections []string
	for _, k := range known {
		if section, _, nested := strings.Cut(k, "."); nested && !slices.Contains(sections, section) {
			sections = append(sections, section)
		}
	}
	named := regexp.MustCompile("`(" + strings.Join(sections, "|") + `)\.([a-z_.0-9]+)`)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			seen++
			if key := m[1] + "." + m[2]; !slices.Contains(known, key) {
				t.Errorf("%s: there is no %s", filepath.Base(page), key)
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d settings found: the test looks for them in the wrong way", seen)
	}
}
