package gateway_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The table in docs/operate.md has the reasons that are declared, and no others.
func TestReasonsOfRecoveryAreDocumented(t *testing.T) {
	source, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(source, func(n ast.Node) bool {
		if c, is := n.(*ast.ValueSpec); is && strings.HasPrefix(c.Names[0].Name, "reason") {
			label, err := strconv.Unquote(c.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, label)
		}
		return true
	})
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| `reason` | the stream did not continue because |\n")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("docs/operate.md has no table of the reasons")
	}
	var documented []string
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, label := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(first, -1) {
			documented = append(documented, label[1])
		}
	}
	slices.Sort(declared)
	slices.Sort(documented)
	if len(declared) == 0 || !slices.Equal(declared, documented) {
		t.Errorf("reasons.go has %v,\ndocs/operate.md has %v", declared, documented)
	}
}
