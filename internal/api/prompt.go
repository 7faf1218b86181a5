package api

import (
	"strconv"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// readMessages reads a chat's messages, only to find out whether all of their content is text.
func (r *Request) readMessages(s *jsonscan.Scanner) {
	if s.Peek() != '[' {
		wrongType(s, FieldMessages, "a list of messages")
		return
	}
	for more := s.Open('['); more; more = s.Next(']') {
		if s.Peek() != '{' {
			wrongType(s, FieldMessages, "a list of objects")
			return
		}
		r.readMessage(s)
	}
}

func (r *Request) readMessage(s *jsonscan.Scanner) {
	for more := s.Open('{'); more; more = s.Next('}') {
		raw, escaped := s.Key()
		if s.Peek() == '[' && r.is(raw, escaped, "content") {
			r.readParts(s)
		} else {
			s.Skip()
		}
	}
}

// readParts reads the parts of a message's content: strings and objects with a type.
func (r *Request) readParts(s *jsonscan.Scanner) {
	for more := s.Open('['); more; more = s.Next(']') {
		if s.Peek() == '{' {
			r.readPart(s)
		} else {
			s.Skip()
		}
	}
}

// readPart reads one part. A part that is not known to be text counts as multimodal. Equal token ids do not prove that
// two multimodal prompts are equal, and claiming too few cached tokens is safe.
func (r *Request) readPart(s *jsonscan.Scanner) {
	text := false
	for more := s.Open('{'); more; more = s.Next('}') {
		raw, escaped := s.Key()
		if s.Peek() != '"' || !r.is(raw, escaped, "type") {
			s.Skip()
			continue
		}
		if text = r.isText(s.Text()); !text {
			r.Multimodal = true
		}
	}
	if !text {
		r.Multimodal = true
	}
}

// isText reports whether a part's type is one that vLLM (entrypoints/chat_utils.py) and SGLang turn into plain text.
func (r *Request) isText(raw []byte, escaped bool) bool {
	for _, t := range [...]string{"text", "input_text", "output_text", "refusal", "thinking"} {
		if r.is(raw, escaped, t) {
			return true
		}
	}
	return false
}

// promptKinds lists the forms of a completion's prompt.
const promptKinds = "a text, a list of texts, a list of token ids, or a list of lists of token ids"

// readPrompt reads a completion's prompt, which may have one of four forms.
func (r *Request) readPrompt(s *jsonscan.Scanner) {
	switch s.Peek() {
	case '"':
		r.Form, r.Prompts = PromptText, 1
		s.Text()
		return
	case '[':
	default:
		wrongType(s, FieldPrompt, promptKinds)
		return
	}
	ahead := *s
	if !ahead.Open('[') { // the list is empty, or nested too deep
		s.Skip()
		return
	}
	switch c := ahead.Peek(); {
	case c == '"':
		r.Form = PromptTexts
		r.readTexts(s)
	case c == '[':
		r.Form = PromptIDLists
		r.readIDLists(s)
	case jsonscan.IsNumber(c):
		r.Form = PromptIDs
		r.readIDs(s, FieldPrompt)
	default:
		wrongType(s, FieldPrompt, promptKinds)
	}
}

func (r *Request) readTexts(s *jsonscan.Scanner) {
	for more := s.Open('['); more; more = s.Next(']') {
		if s.Peek() != '"' {
			wrongType(s, FieldPrompt, promptKinds)
			return
		}
		s.Text()
		r.Prompts++
	}
}

func (r *Request) readIDLists(s *jsonscan.Scanner) {
	for more := s.Open('['); more; more = s.Next(']') {
		if s.Peek() != '[' {
			wrongType(s, FieldPrompt, promptKinds)
			return
		}
		r.readIDs(s, FieldPrompt)
		r.Prompts++
	}
}

// readIDs reads one list of token ids and appends it to r.IDs.
func (r *Request) readIDs(s *jsonscan.Scanner, f Field) {
	if s.Peek() != '[' {
		wrongType(s, f, "a list of token ids")
		return
	}
	for more := s.Open('['); more; more = s.Next(']') {
		r.IDs = s.AppendUint32s(r.IDs, MaxPromptIDs)
		if !jsonscan.IsNumber(s.Peek()) {
			wrongType(s, f, "token ids only")
			return
		}
		id, ok := tokenID(s.Number())
		switch {
		case !ok:
			s.Stop(Invalid(f.String(), "a token id must be a whole number from 0 to 4294967295"))
		case len(r.IDs) == MaxPromptIDs:
			s.Stop(Invalid(f.String(), "the prompt has more than "+strconv.Itoa(MaxPromptIDs)+" token ids"))
		}
		r.IDs = append(r.IDs, id)
	}
	r.ends = append(r.ends, len(r.IDs))
}

func tokenID(digits []byte) (id uint32, ok bool) {
	if len(digits) > 10 {
		return 0, false
	}
	var v uint64
	for _, c := range digits {
		if c -= '0'; c > 9 {
			return 0, false
		}
		v = v*10 + uint64(c)
	}
	return uint32(v), v <= 1<<32-1
}
