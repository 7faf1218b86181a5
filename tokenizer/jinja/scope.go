package jinja

// slot is the place of a variable during a render; it is known when the template is parsed.
type slot struct {
	hops    int16 // how many frames outward; contextSlot: the render's own variables
	index   int16
	defined bool // false until resolved; a sanity check
}

const contextSlot = -1

// loadKind says how a slot of a scope gets its value when the scope is entered, as in jinja2's idtracking.
type loadKind uint8

const (
	loadParam     loadKind = iota // bound by the statement that opens the scope
	loadContext                   // the render's variable of that name
	loadOuter                     // a copy of an outer scope's variable: assignments stay inside
	loadUndefined                 // not there until assigned
)

type load struct {
	kind loadKind
	from slot // loadContext, loadOuter
}

// scope has the variables of one body: of the template, a loop, a macro and so on. A frame holds their values.
type scope struct {
	loads  []load
	framed bool // has frames; a body without variables of its own uses the frame around it
	fresh  bool // a frame may outlive the body, because a macro inside refers to it: do not reuse frames
}

// symbols is the analysis of one scope, as jinja2's Symbols. The names of each branch are tracked apart, then merged.
type symbols struct {
	parent *symbols
	refs   map[string]bool
	loads  map[string]loadKind
	stores map[string]bool
	slots  map[string]int16 // final slots of this scope; set by finish
	hop    bool             // the scope has a frame of its own
	out    *scope
}

func newSymbols(parent *symbols) *symbols {
	return &symbols{parent: parent, refs: map[string]bool{}, loads: map[string]loadKind{}, stores: map[string]bool{}}
}

// known reports whether the name has a reference in this scope or in one around it.
func (s *symbols) known(name string) bool {
	for ; s != nil; s = s.parent {
		if s.refs[name] {
			return true
		}
	}
	return false
}

func (s *symbols) define(name string, kind loadKind) {
	s.refs[name] = true
	s.loads[name] = kind
}

func (s *symbols) load(name string) {
	if !s.known(name) {
		s.define(name, loadContext)
	}
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if s.refs[name] {
		return
	}
	if s.parent.known(name) {
		s.define(name, loadOuter)
		return
	}
	s.define(name, loadUndefined)
}

func (s *symbols) param(name string) {
	s.stores[name] = true
	s.define(name, loadParam)
}

// branches analyses alternatives. If one branch assigns a name, the name keeps its outer value in the others.
func (s *symbols) branches(visits ...func(*symbols)) {
	stored := map[string]bool{}
	done := make([]*symbols, len(visits))
	for i, visit := range visits {
		b := newSymbols(s.parent)
		copyInto(b, s)
		visit(b)
		done[i] = b
		for name := range b.stores {
			if !s.stores[name] {
				stored[name] = true
			}
		}
	}
	for _, b := range done {
		copyInto(s, b)
	}
	for name := range stored {
		s.loads[name] = loadContext
		if s.parent.known(name) {
			s.loads[name] = loadOuter
		}
	}
}

func copyInto(to, from *symbols) {
	for name := range from.refs {
		to.refs[name] = true
	}
	for name, kind := range from.loads {
		to.loads[name] = kind
	}
	for name := range from.stores {
		to.stores[name] = true
	}
}

// read records the names that an expression reads.
func (s *symbols) read(n any) {
	if e, ok := n.(*nameExpr); ok {
		s.load(e.name)
		return
	}
	children(n, s.read)
}

// assign records the names to which a target assigns.
func (s *symbols) assign(target expr, note func(string)) {
	switch t := target.(type) {
	case *nameExpr:
		note(t.name)
	case *tupleExpr:
		for _, item := range t.items {
			s.assign(item, note)
		}
	case *nsRef:
		s.load(t.name.name)
	}
}

func (s *symbols) body(stmts []stmt) {
	for _, n := range stmts {
		s.stmt(n)
	}
}

// stmt records the names that a statement reads and assigns in this scope. Bodies with a scope of their own are left
// out.
func (s *symbols) stmt(n stmt) {
	switch n := n.(type) {
	case *outputStmt:
		s.read(n.val)
	case *ifStmt:
		s.read(n.conds[0])
		s.branches(
			func(b *symbols) { b.body(n.then[0]) },
			func(b *symbols) {
				for i := 1; i < len(n.conds); i++ {
					b.read(n.conds[i])
					b.branches(func(c *symbols) { c.body(n.then[i]) }, func(*symbols) {}, func(*symbols) {})
				}
			},
			func(b *symbols) { b.body(n.other) },
		)
	case *forStmt:
		s.read(n.iter)
	case *setStmt:
		s.read(n.val)
		s.assign(n.target, s.store)
	case *setBlock:
		s.assign(n.target, s.store)
	case *macroStmt:
		s.store(n.def.name)
	case *callBlock:
		s.read(n.call)
	case *filterBlock:
		s.read(n.filter)
	case *withStmt:
		for _, v := range n.vals {
			s.read(v)
		}
	}
}

// lookup returns the slot of a name, seen from this scope.
func (s *symbols) lookup(name string, r *resolver) slot {
	var hops int16
	for at := s; at != nil; at = at.parent {
		if at.refs[name] {
			if i, ok := at.slots[name]; ok {
				return slot{hops, i, true}
			}
			return r.context(name)
		}
		if at.hop {
			hops++
		}
	}
	return r.context(name)
}
