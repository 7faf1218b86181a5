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
	"unicode/utf8"
)

// outside matches citations of material outside of the repository. A reader cannot open such material. Cite the public
// source instead: the paper, the engine's file at its version, or the issue.
var outside = regexp.MustCompile(`\.\./shared\b|\bshared/(design|engines|facts|hooks|seeds|tools|traces|vectors)\b|\bfacts/|\bfacts on |\bseeds?[ /]0[0-9]{2}\b|WARMPATH_SHARED`)

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

// sleeps bounds the number of places where tests wait for a time. A test should wait for an event, or run in virtual
// time (testing/synctest).
const sleeps = 10

// longest is the greatest allowed length of a function, in lines.
const longest = 100

// interfaces bounds the number of interfaces for each 10,000 lines of the main module. Tests and their helpers do not
// count.
const interfaces = 5

// makefileLines is the greatest allowed length of the Makefile. Longer recipes belong in scripts.
const makefileLines = 80

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
		if test || strings.HasPrefix(path, "test/testenv/") {
			for _, pos := range waits(file) {
				sleeping = append(sleeping, files.Position(pos).String())
			}
		}
		if !test && file.Name.Name != "main" {
			for _, name := range undocumented(file) {
				t.Errorf("%s: %s is exported and has no comment", files.Position(name.Pos()), name)
			}
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || test {
				continue
			}
			if lines := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; lines > longest {
				t.Errorf("%s: %s has %d lines, %d are allowed", files.Position(f.Pos()), f.Name, lines, longest)
			}
		}
	})
	if text, err := os.ReadFile("Makefile"); err != nil || bytes.Count(text, []byte("\n")) > makefileLines {
		t.Errorf("the Makefile has %d lines, %d are allowed (%v)", bytes.Count(text, []byte("\n")), makefileLines, err)
	}
	if len(sleeping) > sleeps {
		t.Errorf("%d places where tests wait for a time, %d are allowed:\n%s", len(sleeping), sleeps, strings.Join(sleeping, "\n"))
	}
}

func TestInterfacesAreFew(t *testing.T) {
	var declared []string
	lines := 0
	eachFile(t, func(path string, text []byte) {
		dir, _, _ := strings.Cut(path, "/")
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || slices.Contains(nested, dir) ||
			slices.Contains(testOnly, filepath.ToSlash(filepath.Dir(path))) {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(text, []byte("\n"))
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, is := spec.Type.(*ast.InterfaceType); is {
					declared = append(declared, files.Position(spec.Pos()).String()+" "+spec.Name.Name)
				}
			}
			return true
		})
	})
	if len(declared) == 0 || len(declared)*10_000 > interfaces*lines {
		t.Errorf("%d interfaces in %d lines, %d in 10,000 lines are allowed:\n%s", len(declared), lines, interfaces, strings.Join(declared, "\n"))
	}
	t.Logf("%d interfaces in %d lines", len(declared), lines)
}

// waits returns the places where a file waits for a time: calls of time.Sleep, receives from time.After, and tickers. A
// receive in a select does not count, because it is a deadline. A test that waits for a condition (testenv.Until) does
// not count either: it goes on as soon as the condition holds, however fast or slow the machine is. In a file that
// imports synctest only Sleep counts, because the other waits take no real time there.
func waits(file *ast.File) (found []token.Pos) {
	virtual := slices.ContainsFunc(file.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing/synctest"` })
	deadlines := map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			if s, ok := n.Comm.(*ast.ExprStmt); ok {
				deadlines[s.X] = true
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && calls(n.X, "time", "After") && !virtual && !deadlines[n] {
				found = append(found, n.Pos())
			}
		case *ast.CallExpr:
			if calls(n, "time", "Sleep") || !virtual && (calls(n, "time", "Tick") || calls(n, "time", "NewTicker")) {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

// A test may call testenv.Missing if something is not installed: Missing skips the test and names the installation. Any
// other skip must be inside an if statement with a known reason: testing.Short, testenv.Race, -update, or an error of
// the machine.
func TestTestsSkipForAReason(t *testing.T) {
	eachFile(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "bench/") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, pos := range groundlessSkips(file) {
			t.Errorf("%s: the test skips and does not say which installation it needs: use testenv.Missing", files.Position(pos))
		}
	})
}

var skipReason = map[string]bool{"Short": true, "Race": true, "update": true, "err": true}

// groundlessSkips returns the calls of Skip, Skipf and SkipNow that are not inside an if statement with a known reason
// (skipReason).
func groundlessSkips(file *ast.File) (found []token.Pos) {
	reasons := map[ast.Node]bool{} // the bodies of the if statements whose condition is a known reason
	ast.Inspect(file, func(n ast.Node) bool {
		if n, ok := n.(*ast.IfStmt); ok {
			ast.Inspect(n.Cond, func(in ast.Node) bool {
				if name, ok := in.(*ast.Ident); ok && skipReason[name.Name] {
					reasons[n.Body] = true
				}
				return true
			})
		}
		if reasons[n] {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, f.Sel.Name) {
				if on, ok := f.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f"}, on.Name) {
					found = append(found, n.Pos())
				}
			}
		}
		return true
	})
	return found
}

func TestGroundlessSkipsAreFound(t *testing.T) {
	const source = `package p
func f() {
	if testing.Short() || os.Getenv("A") == "" {
		t.Skip("takes long")
	}
	if os.Getenv("A") == "" {
		t.Skip("set A")
	}
	t.SkipNow()
}
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if found := groundlessSkips(file); len(found) != 2 {
		t.Errorf("%d skips without a reason, want 2", len(found))
	}
}

// column is the last column that a line of a comment or of a document may use.
const column = 120

func TestCommentsAndDocumentsEndByTheColumn(t *testing.T) {
	eachFile(t, func(path string, text []byte) {
		var long []int
		switch {
		case strings.HasSuffix(path, ".go"):
			long = longComments(string(text))
		case strings.HasSuffix(path, ".md") && !strings.HasPrefix(path, "bench/results/"): // programs write the results
			long = longProse(string(text))
		}
		for _, line := range long {
			t.Errorf("%s:%d ends beyond column %d", path, line, column)
		}
	})
}

// longComments returns the numbers of the lines of Go comments that are too long. Code in a comment, the output of an
// example, and directives may be longer.
func longComments(text string) (lines []int) {
	n, output := 0, false
	for line := range strings.Lines(text) {
		n++
		comment, is := strings.CutPrefix(strings.TrimSpace(line), "//")
		output = is && (output || strings.HasPrefix(comment, " Output:") || strings.HasPrefix(comment, " Unordered output:"))
		if is && !output && strings.HasPrefix(comment, " ") && utf8.RuneCountInString(strings.TrimRight(line, "\n")) > column {
			lines = append(lines, n)
		}
	}
	return lines
}

// longProse returns the numbers of the lines of a Markdown document that are too long. Tables, code, and lines that end
// in a link may be longer.
func longProse(text string) (lines []int) {
	n, code := 0, false
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if code || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") || linkAtEnd.MatchString(line) {
			continue
		}
		if utf8.RuneCountInString(line) > column {
			lines = append(lines, n)
		}
	}
	return lines
}

var linkAtEnd = regexp.MustCompile(`(\]\(\S+|https?://\S+)$`)

func TestLongLinesAreFound(t *testing.T) {
	long := strings.Repeat("x ", column/2) + "x"
	source := "// " + long + "\n//\t" + long + "\n//go:" + long + "\n// Output:\n// " + long + "\n\n\t// " + long + "\n"
	if got := longComments(source); !slices.Equal(got, []int{1, 7}) {
		t.Errorf("long comments in the lines %v", got)
	}
	document := long + "\n| " + long + "\n```\n" + long + "\n```\n" + long + " [a](b)\n" + long + "\n"
	if got := longProse(document); !slices.Equal(got, []int{1, 7}) {
		t.Errorf("long prose in the lines %v", got)
	}
}

// calls reports whether n is a call of pkg.function.
func calls(n ast.Expr, pkg, function string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || called.Sel.Name != function {
		return false
	}
	x, ok := called.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func TestWaitsForATimeAreFound(t *testing.T) {
	const body = `
func f() {
	time.Sleep(1)
	<-time.After(1)
	for range time.Tick(1) {
	}
	for ; ; <-time.After(1) {
	}
	select {
	case <-time.After(1):
		<-time.After(1)
	case <-c:
	}
}
`
	for head, want := range map[string]int{"package p\nimport \"time\"\n": 5, "package p\nimport \"testing/synctest\"\n": 1} {
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", head+body, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if found := waits(file); len(found) != want {
			t.Errorf("%s%d waits, want %d", head, len(found), want)
		}
	}
}

// undocumented returns the exported functions, methods, types, constants and variables of a file that have no comment.
// For a constant or a variable, a comment of its group, or on its line, is enough.
func undocumented(file *ast.File) (names []*ast.Ident) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d)) {
				names = append(names, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if d.Doc == nil && s.Doc == nil && s.Name.IsExported() {
						names = append(names, s.Name)
					}
				case *ast.ValueSpec:
					if d.Doc == nil && s.Doc == nil && s.Comment == nil {
						names = append(names, slices.DeleteFunc(slices.Clone(s.Names), func(n *ast.Ident) bool { return !n.IsExported() })...)
					}
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

// eachFile calls f with every file of the repository. It leaves out the folders of built binaries, and folders with a
// name that begins with a dot, except .ci.
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
