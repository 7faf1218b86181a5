// Package jsonscan reads JSON (RFC 8259) value by value, and builds no tree: the caller takes the parts of a text that
// it needs. The package allocates nothing, except for an error, and for a dst of its caller that has to grow.
//
// A Scanner reads a text for the first time, and checks every byte of the text. Members, Items and AppendCompact read a
// text that a Scanner has already checked, so they only look for the ends of its values. The package does not convert
// numbers, does not compare keys and does not look for duplicate keys: the caller knows what keys and numbers mean.
//
// A Scanner needs the whole text. Pieces reads a text that arrives in pieces and is not kept, such as a response that
// is forwarded. It returns single tokens, and is lenient.
//
//	s := jsonscan.New(text, 100)
//	for more := s.Open('{'); more; more = s.Next('}') {
//		if key, _ := s.Key(); string(key) == "tokens" {
//			tokens = s.Raw()
//		} else {
//			s.Skip()
//		}
//	}
//	if err := s.Err(); err != nil { … } // checked once: after an error every call does nothing
package jsonscan
