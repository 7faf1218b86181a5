package jinja

// expr is a node of the parsed tree that has a value. Nodes do not change after resolve, and concurrent renders share
// the nodes.
type expr interface {
	eval(r *run, f *frame) (Value, error)
}

// stmt is a statement.
type stmt interface {
	exec(r *run, f *frame) (flow, error)
}

// flow says how the execution of a statement ended.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

type (
	constExpr struct{ v Value }

	// nameExpr reads a variable. resolve fills in the variable's slot.
	nameExpr struct {
		name string
		line int
		at   slot
	}

	// getAttr is a.name. getItem is a[index]. sliceExpr is the start:stop:step inside the brackets.
	getAttr struct {
		obj  expr
		name string
		line int
	}
	getItem struct {
		obj, index expr
		line       int
	}
	sliceExpr struct{ start, stop, step expr } // each may be nil

	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct{ keys, vals []expr }

	// arguments has the arguments of a call, filter or test. star and starStar are the values of *args and **kwargs, or
	// nil.
	arguments struct {
		pos            []expr
		kw             []keyword
		star, starStar expr
	}
	keyword struct {
		name string
		val  expr
	}

	callExpr struct {
		fn   expr
		args arguments
		line int
	}
	filterExpr struct {
		obj  expr // operand; nil in a filter block, where the block's text is the operand
		name string
		fn   filterFunc
		args arguments
		line int
	}
	testExpr struct {
		obj  expr
		name string
		fn   testFunc
		args arguments
		line int
	}

	binaryExpr struct {
		op   string
		a, b expr
		line int
	}
	unaryExpr struct {
		op   byte // '-' or '+'
		a    expr
		line int
	}
	notExpr    struct{ a expr }
	andExpr    struct{ a, b expr }
	orExpr     struct{ a, b expr }
	concatExpr struct {
		parts []expr
		line  int
	}
	compareExpr struct {
		first expr
		ops   []comparison
		line  int
	}
	comparison struct {
		op   string // "==" … "in", "not in"
		with expr
	}
	condExpr struct {
		cond, then expr
		other      expr // value after else; nil: the value is undefined
		line       int
	}
)

type (
	dataStmt   struct{ text string }
	outputStmt struct {
		val  expr
		line int
	}
	ifStmt struct {
		conds []expr
		then  [][]stmt
		other []stmt
	}
	forStmt struct {
		target    expr
		iter      expr
		test      expr // condition of the loop; nil: the loop has no condition
		body      []stmt
		other     []stmt
		recursive bool
		line      int

		scope, testScope, otherScope *scope
		loopAt                       slot // slot of the loop variable
		usesLoop                     bool
		targets                      []slot // slots of the target, if it is a name or a tuple of names; see resolve
		testTarget                   expr   // copy of the target that is bound in testScope
	}
	setStmt struct {
		target, val expr
		line        int
	}
	setBlock struct {
		target expr
		filter *filterExpr // filters of the block: the innermost filter has no obj; nil: the block has no filters
		body   []stmt
		line   int
		scope  *scope
	}
	macroStmt struct {
		def *macroDef
		at  slot // slot of the macro's name
	}
	// macroDef is the code of a macro or of a call block's body.
	macroDef struct {
		name     string
		params   []*nameExpr
		defaults []expr // defaults of the last parameters
		body     []stmt
		line     int

		scope                         *scope
		caller, kwargs, varargs       slot
		hasCaller, hasKwargs, hasVars bool
		explicitCaller                bool // "caller" is a parameter
	}
	callBlock struct {
		call *callExpr
		def  *macroDef
		line int
	}
	filterBlock struct {
		filter *filterExpr
		body   []stmt
		scope  *scope
	}
	withStmt struct {
		targets []expr
		vals    []expr
		body    []stmt
		scope   *scope
	}
	// scopeStmt is a body that has its own variables: the body of a generation tag.
	scopeStmt struct {
		body  []stmt
		scope *scope
	}
	// nsRef is an attribute of a namespace that is the target of an assignment.
	nsRef struct {
		name *nameExpr
		attr string
		line int
	}
	breakStmt    struct{}
	continueStmt struct{}
)

// eval makes nsRef an expr, so that all targets have one type. The parser uses nsRef only as a target, so eval is not
// called.
func (n *nsRef) eval(*run, *frame) (Value, error) {
	panic("bug: a namespace reference is only a target")
}
