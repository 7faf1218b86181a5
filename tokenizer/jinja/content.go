package jinja

import (
	"strings"
)

// ContentFormat is what a template expects as a message's content.
type ContentFormat uint8

const (
	// FormatAuto asks for the format that the engine would detect in the template.
	FormatAuto ContentFormat = iota
	// FormatString templates want one text.
	FormatString
	// FormatOpenAI templates want the list of parts as OpenAI's API has it.
	FormatOpenAI
)

// String returns the name that engines' flags have for the format: auto, string or openai.
func (f ContentFormat) String() string {
	switch f {
	case FormatString:
		return "string"
	case FormatOpenAI:
		return "openai"
	}
	return "auto"
}

// nodes collects all nodes of one type below a template's statements.
func nodes[T any](body []stmt) []T {
	var out []T
	for _, s := range body {
		if n, ok := any(s).(T); ok {
			out = append(out, n)
		}
		walk(s, func(n any) {
			if n, ok := n.(T); ok {
				out = append(out, n)
			}
		})
	}
	return out
}

// accesses reports whether e reads the variable, or with a key the variable's key, through filters, tests and slices
// (vLLM's _is_var_or_elems_access).
func accesses(e expr, name, key string) bool {
	switch n := e.(type) {
	case *filterExpr:
		return n.obj != nil && accesses(n.obj, name, key)
	case *testExpr:
		return accesses(n.obj, name, key)
	case *nameExpr:
		return key == "" && n.name == name
	case *getItem:
		if _, ok := n.index.(*sliceExpr); ok {
			return accesses(n.obj, name, key)
		}
		c, ok := n.index.(*constExpr)
		return ok && key != "" && c.v.kind == kindString && c.v.str == key && isName(n.obj, name)
	case *getAttr:
		return key != "" && n.name == key && isName(n.obj, name)
	}
	return false
}

func isName(e expr, name string) bool {
	n, ok := e.(*nameExpr)
	return ok && n.name == name
}

// vllmFormat is vLLM's detection (renderers/hf.py, _detect_content_format): a loop over the content of a loop variable
// over messages, or over a macro's parameter that is given such a content, or over a variable named content.
func vllmFormat(body []stmt) ContentFormat {
	messages := messageVariables(body)
	if messages == nil {
		return FormatString
	}
	loops := nodes[*forStmt](body)
	inMacro, contents := macroContents(body, messages)
	for _, loop := range loops {
		for _, name := range messages {
			if accesses(loop.iter, name, "content") {
				return formatOf(loop.target)
			}
		}
		name, ok := loop.iter.(*nameExpr)
		if ok && (contents[loop][name.name] || name.name == "content" && !inMacro[loop]) {
			return formatOf(loop.target)
		}
	}
	return FormatString
}

// maxDetection bounds the pairs of nodes that the detection compares; no real template comes near.
const maxDetection = 1 << 20

// formatOf is the verdict on a loop over parts: one with a tuple as its target makes vLLM fall back to a string.
func formatOf(target expr) ContentFormat {
	if _, ok := target.(*nameExpr); ok {
		return FormatOpenAI
	}
	return FormatString
}

// messageVariables are the loop variables over messages, or over variables assigned from it; nil when a target makes
// vLLM's detection fail.
func messageVariables(body []stmt) []string {
	sets := nodes[*setStmt](body)
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ {
		if len(lists)*len(sets) > maxDetection {
			return nil
		}
		for _, s := range sets {
			if !accesses(s.val, lists[i], "") {
				continue
			}
			target, ok := s.target.(*nameExpr)
			if !ok {
				return nil
			}
			if target.name != lists[i] && !contains(lists, target.name) {
				lists = append(lists, target.name)
			}
		}
	}
	items := []string{}
	for _, loop := range nodes[*forStmt](body) {
		for _, list := range lists {
			if !accesses(loop.iter, list, "") {
				continue
			}
			target, ok := loop.target.(*nameExpr)
			if !ok {
				return nil
			}
			items = append(items, target.name)
			break
		}
	}
	return items
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// macroContents are the loops inside macros, and by loop the parameters of its macro that are given a message's content.
func macroContents(body []stmt, messages []string) (inMacro map[*forStmt]bool, contents map[*forStmt]map[string]bool) {
	inMacro, contents = map[*forStmt]bool{}, map[*forStmt]map[string]bool{}
	calls, macros := nodes[*callExpr](body), nodes[*macroStmt](body)
	if len(calls)*len(macros) > maxDetection {
		return inMacro, contents
	}
	isContent := func(e expr) bool {
		for _, name := range messages {
			if accesses(e, name, "content") {
				return true
			}
		}
		return false
	}
	for _, m := range macros {
		params := map[string]bool{}
		for _, call := range calls {
			if !isName(call.fn, m.def.name) {
				continue
			}
			for i, arg := range call.args.pos {
				if i < len(m.def.params) && isContent(arg) {
					params[m.def.params[i].name] = true
				}
			}
			for _, kw := range call.args.kw {
				for _, p := range m.def.params {
					if p.name == kw.name && isContent(kw.val) {
						params[kw.name] = true
					}
				}
			}
		}
		for _, loop := range nodes[*forStmt](m.def.body) {
			inMacro[loop] = true
			if len(params) > 0 {
				contents[loop] = params
			}
		}
	}
	return inMacro, contents
}

// sglangFormat is SGLang's detection (parser/jinja_template_utils.py): anything that mentions media, or a loop over the
// content of message, msg or m.
func sglangFormat(source string, body []stmt) ContentFormat {
	for _, word := range [...]string{"image", "audio", "video", "vision"} {
		if strings.Contains(source, word) {
			return FormatOpenAI
		}
	}
	for _, loop := range nodes[*forStmt](body) {
		for _, name := range [...]string{"message", "msg", "m"} {
			if accesses(loop.iter, name, "content") {
				return FormatOpenAI
			}
		}
	}
	return FormatString
}
