package script

import (
	"container/list"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.starlark.net/starlark"
)

// The bounds of one entry of the state, in bytes.
const (
	maxKey   = 256
	maxValue = 1024
)

// state is the memory of a script: a dict of texts to numbers, texts and tuples of these. It holds at most `most`
// entries; then the entry that was set longest ago makes room. It is safe for concurrent use. Only on_routed and
// on_finished, and the script's own beginning, may change it, because explanations call choose, too.
type state struct {
	most int

	mu      sync.RWMutex
	entries map[string]*list.Element // guarded by mu
	order   list.List                // *entry, the one that was set last at the back; guarded by mu
}

type entry struct {
	key   string
	value starlark.Value
}

func newState(most int) *state { return &state{most: most, entries: map[string]*list.Element{}} }

// String, Type, Freeze, Truth and Hash make a starlark.Value of the state.
func (s *state) String() string        { return "state" }
func (s *state) Type() string          { return "state" }
func (s *state) Freeze()               {} // only writable calls change it
func (s *state) Hash() (uint32, error) { return 0, errors.New("the state is no key") }
func (s *state) Truth() starlark.Bool  { return s.Len() > 0 }

// Len returns the number of entries.
func (s *state) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.entries)
}

// Get returns state[key], and also answers: key in state.
func (s *state) Get(key starlark.Value) (starlark.Value, bool, error) {
	k, ok := key.(starlark.String)
	if !ok {
		return nil, false, fmt.Errorf("a key of the state is a text, not %s", brief(key))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, found := s.entries[string(k)]
	if !found {
		return nil, false, nil
	}
	return e.Value.(*entry).value, true, nil
}

var errReadOnly = errors.New("choose cannot change the state: change it in on_routed or on_finished")

func (s *state) set(t *starlark.Thread, key, value starlark.Value) error {
	if !meterOf(t).writable {
		return errReadOnly
	}
	k, ok := key.(starlark.String)
	switch {
	case !ok:
		return fmt.Errorf("a key of the state is a text, not %s", brief(key))
	case len(k) > maxKey:
		return fmt.Errorf("a key of the state has at most %d bytes", maxKey)
	}
	value, n, err := kept(value)
	switch {
	case err != nil:
		return err
	case n > maxValue:
		return fmt.Errorf("a value of the state has at most %d bytes", maxValue)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, found := s.entries[string(k)]; found {
		e.Value.(*entry).value = value
		s.order.MoveToBack(e)
		return nil
	}
	if len(s.entries) >= s.most {
		s.drop(s.order.Front())
	}
	own := strings.Clone(string(k))
	s.entries[own] = s.order.PushBack(&entry{own, value})
	return nil
}

// drop removes an entry; nil is none. Callers hold mu.
func (s *state) drop(e *list.Element) {
	if e != nil {
		delete(s.entries, s.order.Remove(e).(*entry).key)
	}
}

// kept returns v in a form that can be kept, and its size. A text may be a part of a larger text, which would stay in
// memory with it.
func kept(v starlark.Value) (starlark.Value, int, error) {
	switch v := v.(type) {
	case starlark.String:
		if len(v) > maxValue {
			return nil, len(v), nil
		}
		return starlark.String(strings.Clone(string(v))), len(v), nil
	case starlark.Tuple:
		own, n := make(starlark.Tuple, len(v)), 0
		for i, x := range v {
			if _, nested := x.(starlark.Tuple); nested {
				return nil, 0, errors.New("the state keeps no tuple in a tuple")
			}
			y, size, err := kept(x)
			if err != nil {
				return nil, 0, err
			}
			own[i] = y
			n += size + valueBytes
		}
		return own, n, nil
	}
	if isPlain(v) {
		return v, valueBytes, nil
	}
	return nil, 0, fmt.Errorf("the state keeps numbers, texts and tuples of these, not a %s: keep worker.url, for example", v.Type())
}

// call runs a method of the state.
func (s *state) call(t *starlark.Thread, name string, args starlark.Tuple) (starlark.Value, error) {
	switch name {
	case "keys":
		return s.keys(t)
	case "get", "pop", "setdefault":
	default:
		return nil, fmt.Errorf("the state has no method .%s (known: get, keys, pop, setdefault)", name)
	}
	if name != "get" && !meterOf(t).writable {
		return nil, errReadOnly
	}
	v, found, err := get(s, args)
	if err != nil {
		return nil, err
	}
	if found && name == "pop" {
		s.mu.Lock()
		s.drop(s.entries[string(args[0].(starlark.String))])
		s.mu.Unlock()
	}
	if !found && name == "setdefault" {
		return v, s.set(t, args[0], v)
	}
	return v, nil
}

// get returns the value of the key args[0]. If there is none, it returns the default args[1], or None.
func get(m starlark.Mapping, args starlark.Tuple) (v starlark.Value, found bool, err error) {
	if len(args) < 1 || len(args) > 2 {
		return nil, false, errors.New("give a key, and a default if you want one")
	}
	if v, found, err = m.Get(args[0]); err != nil || found {
		return v, found, err
	}
	if len(args) == 2 {
		return args[1], false, nil
	}
	return starlark.None, false, nil
}

// keys returns all keys, the one that was set longest ago first.
func (s *state) keys(t *starlark.Thread) (starlark.Value, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := charge(t, len(s.entries)*valueBytes); err != nil {
		return nil, err
	}
	keys := make([]starlark.Value, 0, len(s.entries))
	for e := s.order.Front(); e != nil; e = e.Next() {
		keys = append(keys, starlark.String(e.Value.(*entry).key))
	}
	return starlark.NewList(keys), nil
}
