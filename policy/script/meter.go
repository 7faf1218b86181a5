package script

import (
	"fmt"

	"go.starlark.net/starlark"
)

const (
	// maxBytes bounds the memory that the operations of one call may ask for, in all. A decision among 200 workers with
	// lists and texts for each needs less than 100 KB. What operations do not ask for is bounded by the steps: a step
	// takes 200 bytes at most.
	maxBytes = 4 << 20
	// maxBits bounds whole numbers. Times in nanoseconds and hashes have 64 bits, and a product of two has 128.
	maxBits = 256
	// maxTuple bounds the values of a tuple, those of tuples in it included, so that a tuple is hashed quickly.
	maxTuple = 64
	// maxDepth bounds how deep values that are compared may lie in each other. Starlark itself has this bound.
	maxDepth = 10
	// bytesPerStep says how many bytes of an operation count as much as a step.
	bytesPerStep = 64
	// A value of a list, a pair of a dict.
	valueBytes, pairBytes = 16, 128
)

// meter counts what one call asks for. It belongs to the thread of the call.
type meter struct {
	bytes    int
	writable bool // the call may change the state
}

const meterKey = "meter"

func meterOf(t *starlark.Thread) *meter { return t.Local(meterKey).(*meter) }

// charge charges n bytes to the call.
func charge(t *starlark.Thread, n int) error {
	m := meterOf(t)
	m.bytes += n
	if n < 0 || n > maxBytes || m.bytes > maxBytes {
		return fmt.Errorf("too much memory: one call may use %d MiB", maxBytes>>20)
	}
	t.Steps += uint64(n / bytesPerStep)
	return nil
}

// size returns the bytes of v itself, without the values that it holds.
func size(v starlark.Value) int {
	switch v := v.(type) {
	case starlark.String:
		return len(v)
	case starlark.Bytes:
		return len(v)
	case *starlark.List:
		return v.Len() * valueBytes
	case starlark.Tuple:
		return len(v) * valueBytes
	case *starlark.Dict:
		return v.Len() * pairBytes
	case starlark.Sequence: // range
		return v.Len() * valueBytes
	}
	return 0
}

// chargeTree charges for a walk through v and all values that it holds, as often as they are there. A list that holds
// itself is an error.
func chargeTree(t *starlark.Thread, v starlark.Value) error { return chargeLevel(t, v, maxDepth) }

func chargeLevel(t *starlark.Thread, v starlark.Value, depth int) error {
	n := size(v)
	if n == 0 {
		return nil
	}
	if depth == 0 {
		return fmt.Errorf("lists and dicts in each other, more than %d deep, cannot be compared", maxDepth)
	}
	if err := charge(t, n); err != nil {
		return err
	}
	switch v := v.(type) {
	case *starlark.List:
		for i := range v.Len() {
			if err := chargeLevel(t, v.Index(i), depth-1); err != nil {
				return err
			}
		}
	case starlark.Tuple:
		for _, x := range v {
			if err := chargeLevel(t, x, depth-1); err != nil {
				return err
			}
		}
	case *starlark.Dict:
		for _, pair := range v.Items() {
			if err := chargeLevel(t, pair[1], depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTuple returns an error if v is a tuple of too many values.
func checkTuple(v starlark.Value) error {
	if n := tupleValues(v); n > maxTuple {
		return fmt.Errorf("a tuple holds at most %d values: use a list", maxTuple)
	}
	return nil
}

func tupleValues(v starlark.Value) int {
	tuple, ok := v.(starlark.Tuple)
	if !ok {
		return 1
	}
	n := 0
	for _, x := range tuple {
		if n += tupleValues(x); n > maxTuple {
			break
		}
	}
	return n
}
