package jinja

import (
	"errors"
	"fmt"
)

// ErrSyntax is matched by the errors of Parse. The source is not a template, or it uses include, import, extends or
// blocks, which this package refuses.
var ErrSyntax = errors.New("template syntax error")

// ErrLimit is matched by the errors of a render or a Decoder that reached one of its limits.
var ErrLimit = errors.New("template limit reached")

// RaisedError says that the template called raise_exception. The fault is in the request, not in the template. Engines
// answer such a request with status 400.
type RaisedError struct {
	Message string // the argument of raise_exception
}

// Error returns the template's message.
func (e *RaisedError) Error() string { return "template raised: " + e.Message }

// RenderError is a failure of a render for which the package has no other error: an undefined value is used, a type is
// wrong, or an attribute is forbidden. Engines fail in these cases, too.
type RenderError struct {
	Line    int // line of the template's source; 0: not known
	Message string
}

// Error returns the message and, if the line is known, the line of the template.
func (e *RenderError) Error() string {
	if e.Line == 0 {
		return "render template: " + e.Message
	}
	return fmt.Sprintf("render template: line %d: %s", e.Line, e.Message)
}

// syntaxError says why the source is refused, and in which line the refused part is.
type syntaxError struct {
	line    int
	message string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("parse template: line %d: %s", e.line, e.message)
}
func (e *syntaxError) Is(target error) bool { return target == ErrSyntax }

// limitError says which limit a render reached.
type limitError struct{ what string }

func (e *limitError) Error() string        { return "render template: " + e.what }
func (e *limitError) Is(target error) bool { return target == ErrLimit }

func failf(format string, args ...any) error {
	return &RenderError{Message: fmt.Sprintf(format, args...)}
}

// atLine sets the line of a RenderError. If an inner expression has already set a line, the error keeps that line.
func atLine(err error, line int) error {
	if e, ok := err.(*RenderError); ok && e.Line == 0 {
		e.Line = line
	}
	return err
}

// using returns the error for the use of an undefined value.
func using(v *Value) error {
	if v.ref != nil {
		return failf("%s", v.str)
	}
	if v.str == "" {
		return failf("value is undefined")
	}
	return failf("%s", v.str)
}
