package jinja

// eval makes sliceExpr an expr. It is not called: the parser uses a sliceExpr only inside brackets, and getItem calls
// apply.
func (n *sliceExpr) eval(*run, *frame) (Value, error) {
	return None, failf("a slice is only an index")
}

// apply returns obj[start:stop:step].
func (n *sliceExpr) apply(r *run, f *frame, obj *Value) (Value, error) {
	var bounds [3]Value
	for i, e := range [...]expr{n.start, n.stop, n.step} {
		bounds[i] = None
		if e == nil {
			continue
		}
		v, err := e.eval(r, f)
		if err != nil {
			return None, err
		}
		bounds[i] = v
	}
	if obj.kind == KindUndefined {
		return None, using(obj)
	}
	for i := range bounds {
		if bounds[i].kind != KindNone && !bounds[i].isInteger() {
			return None, failf("slice indices must be integers or None")
		}
	}
	if bounds[2].isInteger() && !bounds[2].truthy() {
		return None, failf("slice step cannot be zero")
	}
	switch obj.kind {
	case KindString:
		return r.sliceText(obj, &bounds)
	case KindList, kindTuple:
		items := obj.items()
		start, count, step := sliceRange(&bounds, len(items))
		out := make([]Value, count)
		for i := range out {
			out[i] = items[start+i*step]
		}
		return Value{kind: obj.kind, ref: &list{out}}, r.grow(count * valueBytes)
	case kindRange:
		rg := obj.ref.(*pyRange)
		_, count, _ := sliceRange(&bounds, int(rg.length))
		start, stop, step := sliceIndices(&bounds, int(rg.length))
		at := func(i int) int64 { return rg.start + int64(i)*rg.step }
		return Value{kind: kindRange, ref: &pyRange{at(start), at(stop), rg.step * int64(step), int64(count)}}, nil
	}
	return None, failf("'%s' object cannot be sliced", obj.typeName())
}

// sliceRange returns the first index, the length and the step of a slice of n items.
func sliceRange(bounds *[3]Value, n int) (start, count, step int) {
	start, stop, step := sliceIndices(bounds, n)
	switch {
	case step > 0 && stop > start:
		count = (stop-start-1)/step + 1
	case step < 0 && start > stop:
		count = (start-stop-1)/-step + 1
	}
	return start, count, step
}

// sliceIndices does the same as Python's slice.indices.
func sliceIndices(bounds *[3]Value, n int) (start, stop, step int) {
	clip := func(v *Value, low, high, byDefault int) int {
		if v.kind == KindNone {
			return byDefault
		}
		i := v.num
		if v.kind == KindBig {
			i = int64(v.bigOf().Sign()) << 62
		}
		if i < 0 {
			if i += int64(n); i < int64(low) {
				return low
			}
		}
		return int(min(i, int64(high)))
	}
	step = 1
	if bounds[2].kind != KindNone {
		step = clipStep(&bounds[2])
	}
	if step > 0 {
		return clip(&bounds[0], 0, n, 0), clip(&bounds[1], 0, n, n), step
	}
	return clip(&bounds[0], -1, n-1, n-1), clip(&bounds[1], -1, n-1, -1), step
}

// clipStep bounds a step, so that arithmetic on indexes cannot overflow. No sequence is longer than the bound.
func clipStep(v *Value) int {
	const most = 1 << 30
	i := v.num
	if v.kind == KindBig {
		i = int64(v.bigOf().Sign()) * most
	}
	return int(max(-most, min(i, most)))
}

func (r *run) sliceText(obj *Value, bounds *[3]Value) (Value, error) {
	if err := r.scan(len(obj.str)); err != nil {
		return None, err
	}
	out := Value{kind: KindString, safe: obj.safe}
	s := obj.str
	if isASCII(s) {
		start, count, step := sliceRange(bounds, len(s))
		if count == 0 {
			return out, nil
		}
		if step == 1 {
			out.str = s[start:][:count]
			return out, nil
		}
		b := make([]byte, count)
		for i := range b {
			b[i] = s[start+i*step]
		}
		out.str = string(b)
		return out, r.grow(count)
	}
	runes := []rune(s)
	start, count, step := sliceRange(bounds, len(runes))
	picked := make([]rune, count)
	for i := range picked {
		picked[i] = runes[start+i*step]
	}
	out.str = string(picked)
	return out, r.grow(4 * len(runes))
}
