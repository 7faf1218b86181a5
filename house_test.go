package warmpath_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// outside matches citations of material that lies outside the repository, where a reader cannot follow them. Cite the
// public source: the paper, the engine's file at its version, the issue.
var outside = regexp.MustCompile(`\.\./shared\b|\bshared/(design|engines|facts|seeds|tools|traces|vectors)\b|\bfacts/|\bfacts on |\bseeds?[ /]0[0-9]{2}\b|WARMPATH_SHARED`)

func TestNothingOutsideTheRepositoryIsCited(t *testing.T) {
	eachFile(t, func(path string, text []byte) {
		if path == "house_test.go" || bytes.IndexByte(text, 0) >= 0 {
			return
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if found := outside.Find(line); found != nil {
				t.Errorf("%s:%d cites %q: cite a public source", path, i+1, found)
			}
		}
	})
}

// sleeps bounds the calls of time.Sleep in tests. A test waits for an event, or runs in virtual time (testing/synctest).
const sleeps = 10

// longest bounds a function in lines.
const longest = 100

func TestFiguresOfTheHouse(t *testing.T) {
	var sleeping []string
	eachFile(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		test := strings.HasSuffix(path, "_test.go")
		if !test && file.Name.Name != "main" {
			for _, name := range undocumented(file) {
				t.Errorf("%s: %s is exported and has no comment", files.Position(name.Pos()), name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if lines := files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1; !test && lines > longest {
					t.Errorf("%s: %s has %d lines, %d are allowed", files.Position(n.Pos()), n.Name, lines, longest)
				}
			case *ast.CallExpr:
				if called, ok := n.Fun.(*ast.SelectorExpr); test && ok && called.Sel.Name == "Sleep" {
					if name, ok := called.X.(*ast.Ident); ok && name.Name == "time" {
						sleeping = append(sleeping, files.Position(n.Pos()).String())
					}
				}
			}
			return true
		})
	})
	if len(sleeping) > sleeps {
		t.Errorf("%d calls of time.Sleep in tests, %d are allowed:\n%s", len(sleeping), sleeps, strings.Join(sleeping, "\n"))
	}
}

// undocumented returns the exported functions, methods and types of a file that have no comment.
func undocumented(file *ast.File) (names []*ast.Ident) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d)) {
				names = append(names, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok && d.Doc == nil && s.Doc == nil && s.Name.IsExported() {
					names = append(names, s.Name)
				}
			}
		}
	}
	return names
}

func exportedReceiver(d *ast.FuncDecl) bool {
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	name, ok := of.(*ast.Ident)
	return ok && name.IsExported()
}

// eachFile calls f with every file of the repository. It leaves out built binaries, and folders with a name that begins with
// a dot.
func eachFile(t *testing.T, f func(path string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"bin", "dist", "target"}, d.Name()) || path != "." && path != ".ci" && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(filepath.ToSlash(path), text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
