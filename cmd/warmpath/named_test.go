package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command and flag that a help text or a page names exists.
func TestCommandsThatAreNamedExist(t *testing.T) {
	texts := map[string]string{}
	var collect func(c *cobra.Command)
	collect = func(c *cobra.Command) {
		texts[c.CommandPath()+" --help"] = c.Long + "\n" + c.Short + "\n" + c.Flags().FlagUsages()
		for _, sub := range c.Commands() {
			collect(sub)
		}
	}
	collect(newRoot())
	var list bytes.Buffer
	if code := run([]string{"workload", "list"}, &list, io.Discard); code != 0 {
		t.Fatalf("workload list exits with %d", code)
	}
	texts["warmpath workload list"] = list.String()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	policies, _ := filepath.Glob("../../docs/policies/*.md")
	for _, page := range append(append(pages, policies...), "../../README.md", "../../bench/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(page)] = string(text)
	}
	quoted := regexp.MustCompile("[`\"](?:bin/)?warmpath ([a-z][^`\"\n]*)[`\"]")
	line := regexp.MustCompile(`(?m)^\s*(?:bin/)?warmpath ([a-z][^\n]*)$`)
	seen := 0
	for where, text := range texts {
		for _, m := range append(quoted.FindAllStringSubmatch(text, -1), line.FindAllStringSubmatch(text, -1)...) {
			seen++
			checkNamed(t, where, m[1])
		}
	}
	if seen < 20 {
		t.Errorf("%d commands found: the test looks for them in the wrong way", seen)
	}
}

// checkNamed checks the command in a text, with its subcommand and flags.
func checkNamed(t *testing.T, where, text string) {
	t.Helper()
	text, _, _ = strings.Cut(text, " # ")
	words := strings.Fields(text)
	command, rest, err := newRoot().Find(words[:min(2, len(words))])
	if err != nil || !command.HasParent() {
		t.Errorf("%s names `warmpath %s`: there is no such command", where, text)
		return
	}
	if word := regexp.MustCompile(`^[a-z]+$`); command.HasSubCommands() && len(rest) > 0 && word.MatchString(rest[0]) {
		t.Errorf("%s names `warmpath %s`: %s has no %q", where, text, command.Name(), rest[0])
	}
	for _, flag := range regexp.MustCompile(`(?:^|[\s\[])--([a-z][a-z0-9-]*)`).FindAllStringSubmatch(text, -1) {
		if command.InheritedFlags(); command.Flags().Lookup(flag[1]) == nil && flag[1] != "help" {
			t.Errorf("%s names `warmpath %s`: there is no --%s", where, text, flag[1])
		}
	}
}
