package script

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

const (
	maxSource  = 64 << 10  // the bytes of a file: a policy has a few hundred lines
	maxNesting = 100       // how many brackets may be open: the parser calls itself for each of them
	loadSteps  = 1_000_000 // the steps of the file's own statements, which run once
)

// Error is a problem of a script, with the place in its file.
type Error struct {
	File         string
	Line, Column int // from 1; 0 is not known
	Problem      string
}

// Error returns FILE:LINE:COLUMN: PROBLEM.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// program is a compiled script. It is immutable.
type program struct {
	file     string
	compiled *starlark.Program
}

// compile compiles the text of a script.
func compile(file string, text []byte) (*program, error) {
	if len(text) > maxSource {
		return nil, &Error{File: file, Problem: fmt.Sprintf("more than %d KiB: is it the right file?", maxSource>>10)}
	}
	if err := checkNesting(file, text); err != nil {
		return nil, err
	}
	options := &syntax.FileOptions{}
	parsed, err := options.Parse(file, text, 0)
	if err != nil {
		return nil, placed(file, err)
	}
	var r rewriter
	r.stmts(parsed.Stmts)
	if r.err != nil {
		return nil, r.err
	}
	names := predeclared(nil)
	compiled, err := starlark.FileProgram(parsed, names.Has)
	if err != nil {
		return nil, placed(file, err)
	}
	return &program{file, compiled}, nil
}

// checkNesting bounds the brackets and the signs that the parser follows by calling itself. It counts brackets in texts
// and comments, too: no script for people has that many.
func checkNesting(file string, text []byte) error {
	open, signs, line := 0, 0, 1
	for _, b := range text {
		switch b {
		case '(', '[', '{':
			open++
		case ')', ']', '}':
			open = max(open-1, 0)
		case '-', '+', '~':
			signs++
		case '\n':
			line++
			signs = 0
		}
		if open > maxNesting || signs > 10*maxNesting {
			return &Error{file, line, 1, fmt.Sprintf("more than %d brackets in each other, or signs in a row", maxNesting)}
		}
	}
	return nil
}

// functions are the functions that a script defines. A nil function is not defined.
type functions struct {
	choose, routed, finished starlark.Callable
}

// run runs the statements of the file, and returns the functions that they define. s is the memory of the script.
func (p *program) run(s *state) (functions, error) {
	var f functions
	t := &starlark.Thread{Name: "load"}
	t.SetLocal(meterKey, &meter{writable: true})
	t.SetMaxExecutionSteps(loadSteps)
	globals, err := p.compiled.Init(t, predeclared(s))
	if err != nil {
		return f, placed(p.file, err)
	}
	globals.Freeze()
	for _, want := range []struct {
		name       string
		parameters int
		to         *starlark.Callable
	}{{"choose", 2, &f.choose}, {"on_routed", 2, &f.routed}, {"on_finished", 1, &f.finished}} {
		defined, ok := globals[want.name]
		if !ok {
			continue
		}
		function, ok := defined.(*starlark.Function)
		if !ok {
			return f, &Error{File: p.file, Problem: want.name + " is not a function"}
		}
		if function.NumParams() != want.parameters || function.HasVarargs() || function.HasKwargs() {
			at := function.Position()
			return f, &Error{p.file, int(at.Line), int(at.Col), fmt.Sprintf("%s takes %d parameters, not %d", want.name, want.parameters, function.NumParams())}
		}
		*want.to = function
	}
	if f.choose == nil {
		return f, &Error{File: p.file, Problem: "there is no function choose(request, workers)"}
	}
	return f, nil
}

// placed returns err as an Error with its place in the file.
func placed(file string, err error) error {
	var known *Error
	var parse syntax.Error
	var unresolved resolve.ErrorList
	var running *starlark.EvalError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &parse):
		return &Error{file, int(parse.Pos.Line), int(parse.Pos.Col), parse.Msg}
	case errors.As(err, &unresolved) && len(unresolved) > 0:
		first := unresolved[0]
		return &Error{file, int(first.Pos.Line), int(first.Pos.Col), first.Msg}
	case errors.As(err, &running):
		e := &Error{File: file, Problem: shorten(words(running.Msg), maxReason)}
		for _, frame := range running.CallStack {
			if frame.Pos.Filename() == file {
				e.Line, e.Column = int(frame.Pos.Line), int(frame.Pos.Col)
			}
		}
		return e
	}
	return &Error{File: file, Problem: shorten(err.Error(), maxReason)}
}

// words replaces the interpreter's words for its bounds.
func words(message string) string {
	if strings.HasPrefix(message, "Starlark computation cancelled: too many steps") {
		return "too many steps: is there a loop without an end? (max_steps)"
	}
	return cmp.Or(message, "error")
}
