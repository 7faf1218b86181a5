package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// compilePattern compiles a pattern. If the machine could match differently from the pattern, compilePattern returns
// errPattern or errFold.
func compilePattern(src string) (*automaton, error) {
	root, err := parsePattern(src)
	if err != nil {
		return nil, err
	}
	return compileNode(root)
}

func compileNode(root *patternNode) (*automaton, error) {
	if root.nullable() {
		return nil, fmt.Errorf("%w: it matches the empty text", errPattern)
	}
	b := &automatonBuilder{}
	if err := b.emit(root, nil); err != nil {
		return nil, err
	}
	b.prog = append(b.prog, inst{op: opMatch})
	return b.build()
}

func (n *patternNode) nullable() bool {
	switch n.kind {
	case nodeClass:
		return false
	case nodeConcat:
		return !slices.ContainsFunc(n.sub, func(s *patternNode) bool { return !s.nullable() })
	case nodeAlternate:
		return slices.ContainsFunc(n.sub, (*patternNode).nullable)
	case nodeRepeat:
		return n.min == 0 || n.sub[0].nullable()
	}
	return true
}

// first returns the characters with which a match of n can begin. If these characters are not known, ok is false.
func (n *patternNode) first() (set charset, ok bool) {
	switch n.kind {
	case nodeClass:
		return n.set, true
	case nodeConcat:
		for _, s := range n.sub {
			f, ok := s.first()
			if !ok {
				return nil, false
			}
			set = set.union(f)
			if !s.nullable() {
				return set, true
			}
		}
		return set, true
	case nodeAlternate:
		for _, s := range n.sub {
			f, ok := s.first()
			if !ok {
				return nil, false
			}
			set = set.union(f)
		}
		return set, true
	case nodeRepeat:
		return n.sub[0].first()
	}
	return nil, true // an empty node and a lookahead match no character
}

type opcode uint8

const (
	opClass opcode = iota // take a character of set, and continue at the next instruction
	opSplit               // try x first, and then y
	opJump                // continue at x
	opLook                // continue if the next character, or the end of the text, satisfies the lookahead
	opMatch
)

type inst struct {
	op    opcode
	set   charset
	atEnd bool
	x, y  int
}

type automatonBuilder struct {
	prog    []inst
	classOf []charRange // intervals of code points, in order
	class   []int       // class of each interval of classOf
	sample  []rune      // one character of each class
	sets    [][]bool    // by instruction and class: whether the class is in the instruction's set
	states  map[string]uint32
	queue   [][]int
	edges   []uint32
}

// emit appends the instructions of n to the program. follow has the nodes between n and the pattern's end, for the
// check of possessive quantifiers.
func (b *automatonBuilder) emit(n *patternNode, follow []*patternNode) error {
	if len(b.prog) > 20_000 {
		return fmt.Errorf("%w: too large", errPattern)
	}
	switch n.kind {
	case nodeClass:
		b.prog = append(b.prog, inst{op: opClass, set: n.set})
	case nodeLook:
		b.prog = append(b.prog, inst{op: opLook, set: n.set, atEnd: n.atEnd})
	case nodeConcat:
		for i, s := range n.sub {
			if err := b.emit(s, append(slices.Clone(n.sub[i+1:]), follow...)); err != nil {
				return err
			}
		}
	case nodeAlternate:
		return b.emitAlternate(n, follow)
	case nodeRepeat:
		return b.emitRepeat(n, follow)
	}
	return nil
}

func (b *automatonBuilder) emitAlternate(n *patternNode, follow []*patternNode) error {
	var jumps []int
	for i, s := range n.sub {
		last := i == len(n.sub)-1
		split := len(b.prog)
		if !last {
			b.prog = append(b.prog, inst{op: opSplit, x: split + 1})
		}
		if err := b.emit(s, follow); err != nil {
			return err
		}
		if !last {
			jumps = append(jumps, len(b.prog))
			b.prog = append(b.prog, inst{op: opJump})
			b.prog[split].y = len(b.prog)
		}
	}
	for _, j := range jumps {
		b.prog[j].x = len(b.prog)
	}
	return nil
}

func (b *automatonBuilder) emitRepeat(n *patternNode, follow []*patternNode) error {
	body := n.sub[0]
	if body.nullable() {
		return fmt.Errorf("%w: a repeated part that matches the empty text", errPattern)
	}
	if n.possessive && !n.keepsAll(follow) {
		return fmt.Errorf("%w: a possessive quantifier that changes the match", errPattern)
	}
	again := append([]*patternNode{n}, follow...)
	for range n.min {
		if err := b.emit(body, again); err != nil {
			return err
		}
	}
	if n.max < 0 {
		split := len(b.prog)
		b.prog = append(b.prog, inst{op: opSplit})
		if err := b.emit(body, again); err != nil {
			return err
		}
		b.prog = append(b.prog, inst{op: opJump, x: split})
		b.branch(split, split+1, len(b.prog), n.lazy)
		return nil
	}
	var splits []int
	for range n.max - n.min {
		splits = append(splits, len(b.prog))
		b.prog = append(b.prog, inst{op: opSplit})
		if err := b.emit(body, again); err != nil {
			return err
		}
	}
	for _, s := range splits {
		b.branch(s, s+1, len(b.prog), n.lazy)
	}
	return nil
}

func (b *automatonBuilder) branch(split, body, out int, lazy bool) {
	if lazy {
		body, out = out, body
	}
	b.prog[split].x, b.prog[split].y = body, out
}

// keepsAll reports whether the possessive quantifier n matches the same texts as a greedy quantifier. This holds if the
// quantifier repeats single characters, and if no match of the following nodes begins with one of these characters.
// Then backtracking into the repetition can never help.
func (n *patternNode) keepsAll(follow []*patternNode) bool {
	body, ok := n.sub[0].single()
	if !ok {
		return false
	}
	for _, f := range follow {
		if f.kind == nodeLook {
			return false
		}
		first, ok := f.first()
		if !ok || len(body.intersect(first)) > 0 {
			return false
		}
		if !f.nullable() {
			return true
		}
	}
	return true
}

func (b *automatonBuilder) build() (*automaton, error) {
	if err := b.partition(); err != nil {
		return nil, err
	}
	classes := len(b.sample)
	a := &automaton{end: classes, width: 1}
	for a.width < classes+1 {
		a.width <<= 1
		a.shift++
	}
	runs := make([]runeRun, 0, len(b.classOf))
	for i, r := range b.classOf {
		runs = append(runs, runeRun{r.lo, r.hi, uint8(b.class[i])})
	}
	a.classes = newRuneTable(runs)
	for c := range a.ascii {
		a.ascii[c] = a.classes.get(rune(c))
	}
	b.states = map[string]uint32{"": 0}
	b.queue = [][]int{nil}
	a.start = b.state([]int{0})
	for s := 0; s < len(b.queue); s++ {
		if len(b.queue) > maxStates {
			return nil, fmt.Errorf("%w: more than %d states", errPattern, maxStates)
		}
		for c := range a.width {
			b.edges = append(b.edges, b.step(b.queue[s], c, classes))
		}
	}
	a.edge = b.edges
	a.starts = make([]bool, a.width)
	for c := range classes {
		a.starts[c] = a.edge[int(a.start)<<a.shift|c]>>1 != 0
	}
	return a, nil
}

// partition divides the code points into classes. Each set of the program has either all characters of a class or no
// character of the class.
func (b *automatonBuilder) partition() error {
	cuts := []rune{0}
	for _, in := range b.prog {
		for _, r := range in.set {
			cuts = append(cuts, r.lo, r.hi+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	known := map[string]int{}
	for i, lo := range cuts {
		if lo > utf8.MaxRune {
			break
		}
		hi := rune(utf8.MaxRune)
		if i+1 < len(cuts) {
			hi = cuts[i+1] - 1
		}
		member := make([]byte, 0, len(b.prog))
		for _, in := range b.prog {
			if in.set.contains(lo) {
				member = append(member, 1)
			} else {
				member = append(member, 0)
			}
		}
		id, ok := known[string(member)]
		if !ok {
			id = len(known)
			if id >= maxClasses {
				return fmt.Errorf("%w: more than %d classes of characters", errPattern, maxClasses)
			}
			known[string(member)] = id
			b.sample = append(b.sample, lo)
		}
		b.classOf = append(b.classOf, charRange{lo, hi})
		b.class = append(b.class, id)
	}
	b.sets = make([][]bool, len(b.prog))
	for i, in := range b.prog {
		b.sets[i] = make([]bool, len(b.sample)+1)
		for c, sample := range b.sample {
			b.sets[i][c] = in.set.contains(sample)
		}
		b.sets[i][len(b.sample)] = in.atEnd
	}
	return nil
}

// state returns the number of the state that consists of these threads. The threads are in order of preference.
func (b *automatonBuilder) state(threads []int) uint32 {
	key := make([]byte, 0, 2*len(threads))
	for _, t := range threads {
		key = append(key, byte(t), byte(t>>8))
	}
	id, ok := b.states[string(key)]
	if !ok {
		id = uint32(len(b.queue))
		b.states[string(key)] = id
		b.queue = append(b.queue, threads)
	}
	return id
}

// step returns the edge that leads from a list of threads over class c. c may be the class end, which stands for the
// end of the text. A class above end is padding.
func (b *automatonBuilder) step(threads []int, c, end int) uint32 {
	if c > end {
		return 0
	}
	var next []int
	seen := make([]bool, len(b.prog))
	matched := uint32(0)
	var walk func(pc int) bool
	walk = func(pc int) bool { // walk returns false if all threads of lower preference must be dropped
		if seen[pc] {
			return true
		}
		seen[pc] = true
		in := &b.prog[pc]
		switch in.op {
		case opMatch:
			matched = 1
			return false
		case opJump:
			return walk(in.x)
		case opSplit:
			return walk(in.x) && walk(in.y)
		case opLook:
			return !b.sets[pc][c] || walk(pc+1)
		}
		if c != end && b.sets[pc][c] && !slices.Contains(next, pc+1) {
			next = append(next, pc+1)
		}
		return true
	}
	for _, t := range threads {
		if !walk(t) {
			break
		}
	}
	return b.state(next)<<1 | matched
}
