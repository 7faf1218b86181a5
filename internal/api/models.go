package api

import "bytes"

// MergeModels appends to dst the /v1/models body that lists each model of bodies once, in the order in which they are
// first named. A model's object is passed on as its worker wrote it, the first one of an id wins. It returns an error, an
// *Error, for a body that is not a model list.
func MergeModels(dst []byte, bodies [][]byte) ([]byte, error) {
	dst = append(dst, `{"object":"list","data":[`...)
	seen := make(map[string]bool)
	for _, body := range bodies {
		err := eachModel(body, func(id string, raw []byte) {
			if seen[id] {
				return
			}
			if len(seen) > 0 {
				dst = append(dst, ',')
			}
			seen[id] = true
			dst = append(dst, raw...)
		})
		if err != nil {
			return dst, err
		}
	}
	return append(dst, "]}"...), nil
}

// eachModel calls f for each object in the body's data that has an id.
func eachModel(body []byte, f func(id string, raw []byte)) error {
	s := scanner{data: body}
	if s.peek() != '{' {
		return s.fail("a model list is an object")
	}
	err := s.members(func(key []byte) error {
		if string(key) != "data" || !s.at('[') {
			return s.skip()
		}
		more, err := s.open(']')
		for more && err == nil {
			if s.peek() != '{' {
				return s.fail("a model is an object")
			}
			start, id := s.pos, ""
			err = s.members(func(key []byte) error {
				if string(key) != "id" || !s.at('"') {
					return s.skip()
				}
				raw, _, err := s.stringToken()
				if err == nil {
					text, _ := unescape(nil, raw)
					id = string(text)
				}
				return err
			})
			if err != nil {
				return err
			}
			if id != "" {
				f(id, bytes.TrimSpace(body[start:s.pos]))
			}
			more, err = s.next(']')
		}
		return err
	})
	if err != nil {
		return err
	}
	if s.space(); s.pos != len(body) {
		return s.fail("something follows the object")
	}
	return nil
}

// members calls f for each member of the object at whose brace the scanner stands; f reads the value.
func (s *scanner) members(f func(key []byte) error) error {
	more, err := s.open('}')
	for more && err == nil {
		raw, _, err := s.key()
		if err != nil {
			return err
		}
		if err = f(raw); err != nil {
			return err
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	return err
}
