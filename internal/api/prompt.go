package api

import "strconv"

// readMessages reads a chat's messages, only to see whether all of their content is text.
func (r *Request) readMessages(s *scanner) error {
	if !s.at('[') {
		return wrongType(s, FieldMessages, "a list of messages")
	}
	more, err := s.open(']')
	for more && err == nil {
		if s.peek() != '{' {
			return wrongType(s, FieldMessages, "a list of objects")
		}
		if err = r.readMessage(s); err != nil {
			return err
		}
		more, err = s.next(']')
	}
	return err
}

func (r *Request) readMessage(s *scanner) error {
	more, err := s.open('}')
	for more && err == nil {
		raw, escaped, err := s.key()
		if err != nil {
			return err
		}
		if s.at('[') && r.is(raw, escaped, "content") {
			err = r.readParts(s)
		} else {
			err = s.skip()
		}
		if err != nil {
			return err
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	return err
}

// readParts reads the parts of a message's content: strings and objects with a type.
func (r *Request) readParts(s *scanner) error {
	more, err := s.open(']')
	for more && err == nil {
		if s.peek() == '{' {
			err = r.readPart(s)
		} else {
			err = s.skip()
		}
		if err != nil {
			return err
		}
		more, err = s.next(']')
	}
	return err
}

// readPart reads one part. A part whose type we do not know to be text counts as multimodal: then token ids alone prove
// nothing, and claiming less is the safe side.
func (r *Request) readPart(s *scanner) error {
	text := false
	more, err := s.open('}')
	for more && err == nil {
		raw, escaped, err := s.key()
		if err != nil {
			return err
		}
		if s.at('"') && r.is(raw, escaped, "type") {
			if raw, escaped, err = s.stringToken(); err != nil {
				return err
			}
			if text = r.isText(raw, escaped); !text {
				r.Multimodal = true
			}
		} else if err = s.skip(); err != nil {
			return err
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	if !text {
		r.Multimodal = true
	}
	return err
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

const promptKinds = "a text, a list of texts, a list of token ids, or a list of lists of token ids"

// readPrompt reads a completion's prompt in any of its four forms.
func (r *Request) readPrompt(s *scanner) error {
	if s.at('"') {
		r.Form, r.Prompts = PromptText, 1
		_, _, err := s.stringToken()
		return err
	}
	if !s.at('[') {
		return wrongType(s, FieldPrompt, promptKinds)
	}
	look := scanner{data: s.data, pos: s.pos + 1}
	switch c := look.peek(); {
	case c == ']':
		return s.skipArray()
	case c == '"':
		r.Form = PromptTexts
		return r.readTexts(s)
	case c == '[':
		r.Form = PromptIDLists
		return r.readIDLists(s)
	case c == '-' || c >= '0' && c <= '9':
		r.Form = PromptIDs
		return r.readIDs(s, FieldPrompt)
	}
	return wrongType(s, FieldPrompt, promptKinds)
}

func (r *Request) readTexts(s *scanner) error {
	more, err := s.open(']')
	for more && err == nil {
		if s.peek() != '"' {
			return wrongType(s, FieldPrompt, promptKinds)
		}
		if _, _, err = s.stringToken(); err != nil {
			return err
		}
		r.Prompts++
		more, err = s.next(']')
	}
	return err
}

func (r *Request) readIDLists(s *scanner) error {
	more, err := s.open(']')
	for more && err == nil {
		if s.peek(); !s.at('[') {
			return wrongType(s, FieldPrompt, promptKinds)
		}
		if err = r.readIDs(s, FieldPrompt); err != nil {
			return err
		}
		r.Prompts++
		more, err = s.next(']')
	}
	return err
}

// readIDs reads one list of token ids and appends it to r.IDs.
func (r *Request) readIDs(s *scanner, f Field) error {
	if !s.at('[') {
		return wrongType(s, f, "a list of token ids")
	}
	more, err := s.open(']')
	for more && err == nil {
		r.readPlainIDs(s)
		if s.peek() == 0 || s.data[s.pos] != '-' && s.data[s.pos]-'0' > 9 {
			return wrongType(s, f, "token ids only")
		}
		raw, err := s.numberToken()
		if err != nil {
			return err
		}
		id, ok := tokenID(raw)
		switch {
		case !ok:
			return Invalid(f.String(), "a token id must be a whole number from 0 to 4294967295")
		case len(r.IDs) == MaxPromptIDs:
			return Invalid(f.String(), "the prompt has more than "+strconv.Itoa(MaxPromptIDs)+" token ids")
		}
		r.IDs = append(r.IDs, id)
		if more, err = s.next(']'); err != nil {
			return err
		}
	}
	r.ends = append(r.ends, len(r.IDs))
	return err
}

// readPlainIDs reads ids as all clients write them, up to nine digits and a comma, one after the other. It stops in front of
// the first id that is written otherwise, or is the list's last.
func (r *Request) readPlainIDs(s *scanner) {
	pos := s.pos
	for len(r.IDs) < MaxPromptIDs {
		for pos < len(s.data) && s.data[pos] == ' ' {
			pos++
		}
		var id uint32
		start := pos
		for pos < len(s.data) && s.data[pos]-'0' <= 9 && pos-start < 9 {
			id = id*10 + uint32(s.data[pos]-'0')
			pos++
		}
		n := pos - start
		if n == 0 || pos >= len(s.data) || s.data[pos] != ',' || n > 1 && s.data[start] == '0' {
			return
		}
		r.IDs = append(r.IDs, id)
		pos++
		s.pos = pos
	}
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
