package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/policy"
)

// TestEachPolicyHasAPageWithItsParameters: each type of policy has a page docs/policies/TYPE.md. The page has a row for
// each parameter, with its default. -update writes the tables that begin with tableHead.
func TestEachPolicyHasAPageWithItsParameters(t *testing.T) {
	g := &generator{t: t, docs: map[string]map[string]string{}}
	for _, k := range warmpath.PolicyKinds() {
		page := filepath.Join("..", "..", "docs", "policies", k.Name+".md")
		data, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
			continue
		}
		table := g.parameterTable(k)
		if before, rest, ok := strings.Cut(string(data), tableHead); ok && *update {
			for strings.HasPrefix(rest, "|") {
				_, rest, _ = strings.Cut(rest, "\n")
			}
			data = []byte(before + table + rest)
			if err := os.WriteFile(page, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, row := range strings.Split(table, "\n")[min(2, strings.Count(table, "\n")):] {
			cells := strings.Split(row, "|")
			if len(cells) < 4 {
				continue
			}
			key, value := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
			if !hasRow(string(data), key, value) {
				t.Errorf("%s lacks a row | %s | %s | …", page, key, value)
			}
		}
	}
}

// hasRow reports whether a page has a row with this key and value. A number of bytes may be written with or without a
// unit.
func hasRow(page, key, value string) bool {
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		if got := strings.TrimSpace(cells[1]); strings.ContainsAny(value, "[{,") && strings.HasPrefix(got, strings.TrimSuffix(key, "`")) {
			return true // a list or a group may be written in another form
		} else if got != key {
			continue
		}
		got := strings.Trim(strings.TrimSpace(cells[2]), "`\"")
		a, wrongA := parseBytes(got)
		b, wrongB := parseBytes(value)
		return got == strings.Trim(value, `"`) || (wrongA == nil && wrongB == nil && a == b) ||
			strings.ReplaceAll(got, ",", "") == value
	}
	return false
}

// TestEachPolicysPageNamesItsTerms: the page of each type of policy has a paragraph that begins with termsHead. The
// paragraph names the terms of the type's default policy, which explanations show. The page also names the branches:
// each decision of each policy has one.
func TestEachPolicysPageNamesItsTerms(t *testing.T) {
	for _, k := range warmpath.PolicyKinds() {
		t.Run(k.Name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("..", "..", "docs", "policies", k.Name+".md"))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), "Branch") {
				t.Error("the page names no branches")
			}
			_, rest, ok := strings.Cut(string(data), "\n\n"+termsHead)
			if !ok {
				t.Fatalf("no paragraph begins with %q", termsHead)
			}
			defaults := k.Defaults()
			if err := defaults.Validate(); err != nil {
				t.Skipf("the terms are not known, because the defaults are not a valid policy: %v", err)
			}
			p, err := policy.Build(defaults.Spec(k.Name))
			if err != nil {
				t.Fatal(err)
			}
			paragraph, _, _ := strings.Cut(rest, "\n\n")
			paragraph = strings.Join(strings.Fields(paragraph), " ") // a name may be broken at the end of a line
			for _, term := range p.Terms() {
				if !strings.Contains(paragraph, "`"+term+"`") {
					t.Errorf("the terms on the page lack `%s`", term)
				}
			}
			if none := strings.HasPrefix(paragraph, "none."); none != (len(p.Terms()) == 0) {
				t.Errorf("the policy has the terms %q, and the page says: %s", p.Terms(), paragraph)
			}
		})
	}
}

const termsHead = "Terms (the parts of the score): "

const tableHead = "| parameter | default | meaning |\n"

// parameterTable returns the table of a kind's parameters; "" when it has none.
func (g *generator) parameterTable(k policy.Kind) string {
	var out strings.Builder
	routing := Default().Routing
	g.parameterRows(&out, "", reflect.ValueOf(routing.defaults(k)).Elem())
	if out.Len() == 0 {
		return ""
	}
	return tableHead + "|---|---|---|\n" + out.String()
}

func (g *generator) parameterRows(out *strings.Builder, under string, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := fieldKey(f)
		if key == "" {
			continue
		}
		doc := strings.Join(strings.Fields(g.doc(v.Type(), f.Name)), " ")
		doc = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(doc, key+" is "), key+" are "), key+" ")
		if v.Field(i).Kind() != reflect.Struct {
			fmt.Fprintf(out, "| `%s` | %s | %s |\n", under+key, scalar(g.t, v.Field(i)), strings.ReplaceAll(doc, "|", "\\|"))
			continue
		}
		var inner []string
		for j := range v.Field(i).NumField() {
			name := fieldKey(v.Field(i).Type().Field(j))
			inner = append(inner, name+" "+scalar(g.t, v.Field(i).Field(j)))
		}
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", under+key, strings.Join(inner, ", "), doc)
	}
}
