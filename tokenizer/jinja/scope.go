package jinja

// slot is the place of a variable during a render. Parsing a template determines the slots.
type slot struct {
	hops    int16 // number of frames to go outward; contextSlot: the variable is a variable of the render (run.vars)
	index   int16
	defined bool // set by resolve; used to detect a slot that was not resolved
}

const contextSlot = -1

// loadKind says how a slot gets its value when its scope is entered, as in jinja2's idtracking.
type loadKind uint8

const (
	loadParam     loadKind = iota // the statement that opens the scope sets the value, such as a parameter of a macro
	loadContext                   // the value is copied from the render's variable of the same name
	loadOuter                     // the value is copied from an outer scope's variable: assignments do not change the outer variable
	loadUndefined                 // the variable has no value until the scope assigns a value
)

type load struct {
	kind loadKind
	from slot // source of the value for loadContext and loadOuter
}

// scope has the variables of one body, such as the body of the template, of a loop or of a macro. A frame holds the
// values of these variables during a render.
type scope struct {
	loads  []load
	framed bool // the scope has a frame of its own; a body without variables uses the frame of the scope around it
	fresh  bool // frames must not be reused, because a macro in the body may refer to a frame after the body has ended
}

// symbols is the analysis of one scope, like jinja2's class Symbols. The names of each branch are tracked separately,
// and then merged.
type symbols struct {
	parent *symbols
	refs   map[string]bool
	loads  map[string]loadKind
	stores map[string]bool
	slots  map[string]int16 // by name: the index of a variable of this scope in its frame; finish sets the indexes
	hop    bool             // the scope has its own frame
	out    *scope
}

func newSymbols(parent *symbols) *symbols {
	return &symbols{parent: parent, refs: map[string]bool{}, loads: map[string]loadKind{}, stores: map[string]bool{}}
}

// known reports whether this scope or an outer scope refers to the name.
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

// branches analyses alternative branches, such as the branches of an if. If one branch assigns to a name, the name
// keeps its outer value in the other branches.
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

// stmt records the names that a statement reads and assigns in this scope. Bodies with scopes of their own are left
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

// lookup returns the slot of a name that is used in this scope.
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
