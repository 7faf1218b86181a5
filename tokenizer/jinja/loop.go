package jinja

// loop is the state of a running for loop, and the value of its variable loop (jinja2's LoopContext). If the sequence
// is a list or a tuple, the items come from the field list. Otherwise the items come from the iterator in the field it.
type loop struct {
	stmt   *forStmt
	frame  *frame // frame outside of the loop, in which a recursive call starts
	seq    Value  // the sequence; the zero value if the loop has a condition
	list   *list
	pos    int // index in list of the next item
	it     iterator
	index  int // index of the current item, from 0
	length int // number of items; -1: not known yet
	depth0 int

	peeked  bool // ahead has the next item
	ahead   Value
	current Value
	before  Value
	changed []Value
	asked   bool // changed() was called
}

// fetch takes the next item from the source.
func (l *loop) fetch(r *run) (Value, bool, error) {
	if l.list == nil {
		return l.it.next(r)
	}
	if l.pos >= len(l.list.items) {
		return Value{}, false, nil
	}
	l.pos++
	return l.list.items[l.pos-1], true, nil
}

// advance moves to the next item, and returns this item. After the last item the boolean result is false.
func (l *loop) advance(r *run) (Value, bool, error) {
	item, ok := l.ahead, true
	if l.peeked {
		l.peeked = false
	} else {
		var err error
		if item, ok, err = l.fetch(r); err != nil {
			return item, false, err
		}
	}
	if !ok || item.kind == kindMissing {
		return item, false, nil
	}
	l.index++
	l.before, l.current = l.current, item
	return item, true, nil
}

// peek returns the item after the current item. At the last item it returns missing.
func (l *loop) peek(r *run) (Value, error) {
	if l.peeked && l.ahead.kind != kindMissing {
		return l.ahead, nil
	}
	item, ok, err := l.fetch(r)
	if err != nil {
		return item, err
	}
	if !ok {
		item = missing
	}
	l.ahead, l.peeked = item, true
	return item, nil
}

// len returns the number of items. If the sequence has no length, len reads the sequence to its end.
func (l *loop) len(r *run) (int, error) {
	if l.length >= 0 {
		return l.length, nil
	}
	if n, ok := r.length(&l.seq); ok && l.seq.kind != KindUndefined && l.seq.kind != kindMissing {
		l.length = n
		return n, nil
	}
	var rest []Value
	for {
		item, ok, err := l.fetch(r)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		rest = append(rest, item)
		if err := r.grow(valueBytes); err != nil {
			return 0, err
		}
	}
	l.list, l.pos = &list{rest}, 0
	l.length = len(rest) + l.index + 1
	if l.peeked && l.ahead.kind != kindMissing {
		l.length++
	}
	return l.length, nil
}

// attr returns loop.name, an attribute of the loop variable.
func (l *loop) attr(r *run, name string) (Value, bool, error) {
	switch name {
	case "index":
		return integer(int64(l.index) + 1), true, nil
	case "index0":
		return integer(int64(l.index)), true, nil
	case "first":
		return Bool(l.index == 0), true, nil
	case "depth":
		return integer(int64(l.depth0) + 1), true, nil
	case "depth0":
		return integer(int64(l.depth0)), true, nil
	case "last":
		next, err := l.peek(r)
		return Bool(next.kind == kindMissing), true, err
	case "nextitem":
		next, err := l.peek(r)
		if next.kind == kindMissing {
			next = undefined("there is no next item")
		}
		return next, true, err
	case "previtem":
		if l.index == 0 {
			return undefined("there is no previous item"), true, nil
		}
		return l.before, true, nil
	case "length", "revindex", "revindex0":
		n, err := l.len(r)
		switch name {
		case "revindex":
			n -= l.index
		case "revindex0":
			n -= l.index + 1
		}
		return integer(int64(n)), true, err
	case "cycle", "changed":
		return Value{kind: kindMethod, ref: &method{Value{kind: kindLoop, ref: l}, name}}, true, nil
	}
	return Value{}, false, nil
}

// call does a call loop(seq) in a recursive loop: it runs the loop's body for the items of seq, one level deeper.
func (l *loop) call(r *run, a *callArgs) (Value, error) {
	if !l.stmt.recursive {
		return None, failf("the loop must have the 'recursive' marker to be called recursively")
	}
	if len(a.pos) != 1 || len(a.kw) != 0 {
		return None, failf("loop() takes one argument")
	}
	if err := r.deeper(); err != nil {
		return None, err
	}
	defer func() { r.depth-- }()
	seq := a.pos[0]
	s, err := r.capture(func() error {
		_, err := l.stmt.loop(r, l.frame, &seq, l.depth0+1)
		return err
	})
	return Text(s), err
}

func (l *loop) method(r *run, name string, a *callArgs) (Value, error) {
	if len(a.kw) != 0 {
		return None, failf("loop.%s() takes no keyword arguments", name)
	}
	if name == "cycle" {
		if len(a.pos) == 0 {
			return None, failf("no items for cycling given")
		}
		return a.pos[l.index%len(a.pos)], nil
	}
	same := l.asked && len(l.changed) == len(a.pos)
	for i := 0; same && i < len(a.pos); i++ {
		var err error
		if same, err = r.equal(&l.changed[i], &a.pos[i], 0); err != nil {
			return None, err
		}
	}
	if same {
		return falseValue, nil
	}
	l.asked = true
	l.changed = append([]Value(nil), a.pos...)
	return trueValue, r.grow(valueBytes * len(a.pos))
}
