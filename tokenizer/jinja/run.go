package jinja

import (
	"time"
)

// Limits bound the cost of one render. If a field is zero, its default is used.
type Limits struct {
	// Steps bounds the work. A statement, an operator, a call and an item of a loop count about one step each. Reading 256
	// bytes of text also counts one step. Default 10 million steps, which take about a second. A conversation of 1,000
	// messages with tools takes some 100,000 steps.
	Steps int
	// OutputBytes bounds the rendered text in bytes. Default 64 MiB, which is more than any engine's context length.
	OutputBytes int
	// Memory bounds the bytes of all values that the render builds, except its output: strings, lists, captured blocks.
	// Values that are not used any more count, too. Default 256 MiB.
	Memory int
	// Depth bounds the nesting of macro calls and of recursive loops. Default 200. Python's limit is near 300.
	Depth int
}

// DefaultLimits are used for a render without Limits.
var DefaultLimits = Limits{Steps: 10_000_000, OutputBytes: 64 << 20, Memory: 256 << 20, Depth: 200}

func (l Limits) orDefault() Limits {
	if l.Steps <= 0 {
		l.Steps = DefaultLimits.Steps
	}
	if l.OutputBytes <= 0 {
		l.OutputBytes = DefaultLimits.OutputBytes
	}
	if l.Memory <= 0 {
		l.Memory = DefaultLimits.Memory
	}
	if l.Depth <= 0 {
		l.Depth = DefaultLimits.Depth
	}
	return l
}

// run is the state of one render. Only one goroutine uses it.
type run struct {
	vars   []Value // variables of the render, in the resolver's order; a variable that the caller did not give is missing
	out    []byte
	start  int // position in out at which this render's text begins
	limits Limits
	steps  int // number of steps that are left
	memory int // number of bytes of Memory that are left
	depth  int
	stack  []Value // positional arguments of the calls in progress
	now    time.Time

	filters map[string]filterFunc // filters by name; used by filters and tests whose argument is the name of a filter
	tests   map[string]testFunc
}

// frame holds the variables of a scope while its body runs.
type frame struct {
	parent *frame
	vars   []Value
}

// valueBytes is the size of a value in memory.
const valueBytes = 56

// bytesPerStep is how many bytes of text count as one step.
const bytesPerStep = 256

var errSteps = &limitError{"the step limit is reached"}

func (r *run) step(n int) error {
	if r.steps -= n; r.steps < 0 {
		return errSteps
	}
	return nil
}

// scan charges the steps for reading n bytes of text.
func (r *run) scan(n int) error { return r.step(1 + n/bytesPerStep) }

// grow charges n bytes of memory, and the steps for writing these bytes.
func (r *run) grow(n int) error {
	if n < 0 {
		return &limitError{"the memory limit is reached"}
	}
	if r.memory -= n; r.memory < 0 {
		return &limitError{"the memory limit is reached"}
	}
	return r.step(n / bytesPerStep)
}

func (r *run) emit(s string) error {
	if len(r.out)-r.start+len(s) > r.limits.OutputBytes {
		return &limitError{"the output limit is reached"}
	}
	r.out = append(r.out, s...)
	return r.step(len(s) / bytesPerStep)
}

// deeper counts one more level of a recursion that a template controls. If there are too many levels, it returns an
// error. If there is no error, the caller must defer r.depth--.
func (r *run) deeper() error {
	if r.depth++; r.depth > r.limits.Depth {
		return &limitError{"the depth limit is reached"}
	}
	return nil
}

// enter opens a scope, and returns the frame for its body. A new frame gets the values that the scope takes from
// outside.
func (r *run) enter(sc *scope, parent *frame) *frame {
	if !sc.framed {
		return parent
	}
	f := &frame{parent: parent, vars: make([]Value, len(sc.loads))}
	r.reset(sc, f)
	return f
}

// reset gives the variables of a frame the values that they have at the beginning of the scope.
func (r *run) reset(sc *scope, f *frame) {
	for i := range sc.loads {
		l := &sc.loads[i]
		switch l.kind {
		case loadContext, loadOuter:
			f.vars[i] = *r.at(f.parent, l.from)
		default:
			f.vars[i] = missing
		}
	}
}

// at returns the variable in slot s. The slot counts frames outward from f.
func (r *run) at(f *frame, s slot) *Value {
	if s.hops == contextSlot {
		return &r.vars[s.index]
	}
	for range s.hops {
		f = f.parent
	}
	return &f.vars[s.index]
}

// capture runs body. The text that body prints is returned, and not printed.
func (r *run) capture(body func() error) (string, error) {
	from := len(r.out)
	err := body()
	if err != nil {
		return "", err
	}
	s := string(r.out[from:])
	r.out = r.out[:from]
	return s, r.grow(len(s))
}
