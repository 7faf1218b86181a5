package jinja

import (
	"errors"
	"fmt"
)

// ErrSyntax is matched by errors.Is for a source that is not a template, or one that needs what this package leaves out
// (include, import, extends, blocks).
var ErrSyntax = errors.New("template syntax error")

// ErrLimit is matched by errors.Is when a render, or the reading of a request, was stopped because it cost too much.
var ErrLimit = errors.New("template limit reached")

// RaisedError is the template's own refusal: it called raise_exception. The request is at fault, not the template, and
// engines answer it with 400.
type RaisedError struct {
	Message string // what the template said
}

// Error returns what the template said, after what raised it.
func (e *RaisedError) Error() string { return "template raised: " + e.Message }

// RenderError is any other failure while rendering: an undefined value used, a wrong type, a forbidden attribute.
// Engines answer it with an error too.
type RenderError struct {
	Line    int // of the template's source; 0 when unknown
	Message string
}

// Error returns what went wrong and, where it is known, on which line of the template.
func (e *RenderError) Error() string {
	if e.Line == 0 {
		return "render template: " + e.Message
	}
	return fmt.Sprintf("render template: line %d: %s", e.Line, e.Message)
}

// syntaxError is a refusal of the source at a line.
type syntaxError struct {
	line    int
	message string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("parse template: line %d: %s", e.line, e.message)
}
func (e *syntaxError) Is(target error) bool { return target == ErrSyntax }

// limitError says which limit a render has reached.
type limitError struct{ what string }

func (e *limitError) Error() string        { return "render template: " + e.what }
func (e *limitError) Is(target error) bool { return target == ErrLimit }

func failf(format string, args ...any) error {
	return &RenderError{Message: fmt.Sprintf(format, args...)}
}

// atLine fills in the line where a failure happened; the innermost one stays.
func atLine(err error, line int) error {
	if e, ok := err.(*RenderError); ok && e.Line == 0 {
		e.Line = line
	}
	return err
}

// using is the failure of using an undefined value.
func using(v *Value) error {
	if v.ref != nil {
		return failf("%s", v.str)
	}
	if v.str == "" {
		return failf("value is undefined")
	}
	return failf("%s", v.str)
}
