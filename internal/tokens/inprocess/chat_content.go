package inprocess

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// contentFormat is the form of a message's content that a template expects.
type contentFormat uint8

const (
	// formatAuto: the engine detects the format in the template.
	formatAuto contentFormat = iota
	// formatString: a content is one text.
	formatString
	// formatOpenAI: a content is a list of parts, as in OpenAI's API.
	formatOpenAI
)

// String returns the format in the spelling of the engines' flags: auto, string or openai.
func (f contentFormat) String() string {
	switch f {
	case formatString:
		return "string"
	case formatOpenAI:
		return "openai"
	}
	return "auto"
}

// vllmFormat detects the format as vLLM does (renderers/hf.py, _detect_content_format). The format is formatOpenAI if
// the template loops over the content of a message. A message is the variable of a loop over the variable messages.
// Outside of macros, a loop over a variable named content counts, too. A loop over a macro's parameter counts if a call
// of the macro passes a message's content for this parameter.
func vllmFormat(o *jinja.Outline) contentFormat {
	messages := messageVariables(o)
	if messages == nil {
		return formatString
	}
	inMacro, contents := macroContents(o, messages)
	for _, loop := range o.Loops {
		for _, name := range messages {
			if loop.Over.Reads(name, "content") {
				return formatOf(loop.Target)
			}
		}
		name := loop.Over.Name()
		if name != "" && (contents[loop][name] || name == "content" && !inMacro[loop]) {
			return formatOf(loop.Target)
		}
	}
	return formatString
}

// maxDetection bounds the pairs of nodes that the detection compares. Published templates have far fewer pairs.
const maxDetection = 1 << 20

// formatOf returns the format of a template that loops over a message's content. target is the variable of the loop. If
// target is a tuple of variables, vLLM uses formatString.
func formatOf(target jinja.Expr) contentFormat {
	if target.Name() != "" {
		return formatOpenAI
	}
	return formatString
}

// messageVariables returns the variables of the loops over the template variable messages, or over a variable to which
// messages was assigned. It returns nil if vLLM's detection fails: if a loop or an assignment has a tuple of variables.
func messageVariables(o *jinja.Outline) []string {
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ {
		if len(lists)*len(o.Sets) > maxDetection {
			return nil
		}
		for _, s := range o.Sets {
			if !s.Value.Reads(lists[i], "") {
				continue
			}
			target := s.Target.Name()
			if target == "" {
				return nil
			}
			if !slices.Contains(lists, target) {
				lists = append(lists, target)
			}
		}
	}
	items := []string{}
	for _, loop := range o.Loops {
		for _, list := range lists {
			if !loop.Over.Reads(list, "") {
				continue
			}
			target := loop.Target.Name()
			if target == "" {
				return nil
			}
			items = append(items, target)
			break
		}
	}
	return items
}

// macroContents finds the loops inside macros. inMacro has each of these loops. contents maps each of these loops to
// parameters of the loop's macro: the parameters to which some call passes a message's content.
func macroContents(o *jinja.Outline, messages []string) (inMacro map[*jinja.Loop]bool,
	contents map[*jinja.Loop]map[string]bool) {
	inMacro, contents = map[*jinja.Loop]bool{}, map[*jinja.Loop]map[string]bool{}
	if len(o.Calls)*len(o.Macros) > maxDetection {
		return inMacro, contents
	}
	isContent := func(e jinja.Expr) bool {
		for _, name := range messages {
			if e.Reads(name, "content") {
				return true
			}
		}
		return false
	}
	for _, m := range o.Macros {
		params := map[string]bool{}
		for _, call := range o.Calls {
			if call.Function.Name() != m.Name {
				continue
			}
			for i, arg := range call.Positional {
				if i < len(m.Parameters) && isContent(arg) {
					params[m.Parameters[i]] = true
				}
			}
			for _, arg := range call.Named {
				if slices.Contains(m.Parameters, arg.Name) && isContent(arg.Value) {
					params[arg.Name] = true
				}
			}
		}
		for _, loop := range m.Loops {
			inMacro[loop] = true
			if len(params) > 0 {
				contents[loop] = params
			}
		}
	}
	return inMacro, contents
}

// sglangFormat detects the format as SGLang does (parser/jinja_template_utils.py). The format is formatOpenAI in two
// cases: the source contains a word for media, or the template loops over the content of a variable named message, msg
// or m.
func sglangFormat(source string, o *jinja.Outline) contentFormat {
	for _, word := range [...]string{"image", "audio", "video", "vision"} {
		if strings.Contains(source, word) {
			return formatOpenAI
		}
	}
	for _, loop := range o.Loops {
		for _, name := range [...]string{"message", "msg", "m"} {
			if loop.Over.Reads(name, "content") {
				return formatOpenAI
			}
		}
	}
	return formatString
}
