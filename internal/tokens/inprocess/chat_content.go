package inprocess

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// contentFormat is the form of a message's content that a template expects.
type contentFormat uint8

const (
	// formatAuto is the format that the engine detects in the template.
	formatAuto contentFormat = iota
	// formatString is one text.
	formatString
	// formatOpenAI is the list of parts, as OpenAI's API has it.
	formatOpenAI
)

// String returns the format as engines' flags name it: auto, string or openai.
func (f contentFormat) String() string {
	switch f {
	case formatString:
		return "string"
	case formatOpenAI:
		return "openai"
	}
	return "auto"
}

// vllmFormat is vLLM's detection (renderers/hf.py, _detect_content_format). It looks for a loop over the content of a
// message, where a message is the variable of a loop over messages. A loop over a variable named content counts too,
// and so does a loop over a macro's parameter if a call passes a message's content for it.
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

// maxDetection bounds the pairs of nodes that the detection compares; published templates have far fewer.
const maxDetection = 1 << 20

// formatOf returns the format that follows from a loop over parts. A loop with a tuple as its target makes vLLM fall
// back to a string.
func formatOf(target jinja.Expr) contentFormat {
	if target.Name() != "" {
		return formatOpenAI
	}
	return formatString
}

// messageVariables returns the variables of the loops over messages, or over a variable that was assigned from it; nil
// when a target makes vLLM's detection fail.
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

// macroContents returns the loops inside macros and, by loop, the parameters of its macro for which a call passes a
// message's content.
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

// sglangFormat is SGLang's detection (parser/jinja_template_utils.py): a source that mentions media, or a loop over the
// content of message, msg or m.
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
