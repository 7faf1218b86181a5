package api

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
)

// MaxPromptIDs is how many token ids a request may give: four times the longest context that is served today. It bounds
// the memory that a body can claim beyond its own size.
const MaxPromptIDs = 4 << 20

// maxStringBytes is the longest string that is copied out of a body, in bytes with its escapes. A copy lives as long
// as the pooled Request and the decision's record. 4096 is the longest file path, and no model's name is longer than
// a path. A longer model is refused. A longer cache_salt or extra_key passes, but the request claims no match. A
// longer session is kept as its digest.
const maxStringBytes = 4096

// maxKeyBytes is the longest JSON key that we can know: 23 letters, each written as an escape of six bytes.
const maxKeyBytes = 256

// keptIDs and keptText are the largest buffers that a Request keeps for the next body.
const (
	keptIDs  = 256 << 10
	keptText = 64 << 10
)

// Read reads body as a request of dialect d into r, in one pass and by strict rules: it is one JSON object and nothing
// else, nested at most 200 deep, in UTF-8; keys count as they are spelled; a key that we read stands once and has a value of
// its kind (or null, which is as if it were absent). All other keys pass unread. What Read accepts encoding/json accepts
// too, with the same values. The body is kept, not copied, and never changed.
//
// Errors are *Error with status 400; r is then in an unknown state, but may be used for another Read.
func Read(d Dialect, body []byte, r *Request) error {
	r.reset(d, body)
	s := scanner{data: body}
	if s.peek() != '{' {
		if s.pos == len(body) {
			return Invalid("", "the body is empty; send a JSON object")
		}
		if err := s.skip(); err != nil {
			return err
		}
		return Invalid("", "the body must be a JSON object")
	}
	more, err := s.open('}')
	for more && err == nil {
		if err = r.readMember(&s); err != nil {
			return err
		}
		more, err = s.next('}')
	}
	if err != nil {
		return err
	}
	if s.space(); s.pos != len(body) {
		return s.fail("something follows the object")
	}
	r.finish()
	return nil
}

func (r *Request) reset(d Dialect, body []byte) {
	ids, ends, text := r.IDs[:0], r.ends[:0], r.text[:0]
	if cap(ids) > keptIDs {
		ids = nil
	}
	if cap(ends) > keptIDs {
		ends = nil
	}
	if cap(text) > keptText {
		text = nil
	}
	// Strings stay, so that the next body's equal ones need no copy; finish clears those whose key is absent.
	r.Dialect, r.body = d, body
	r.IDs, r.ends, r.text = ids, ends, text
	r.spans = [numFields]span{}
	r.membersSeen = 0
	r.Stream, r.IncludeUsage, r.Multimodal, r.Tools, r.MixedScopes = false, false, false, false, false
	r.Form, r.Prompts, r.MaxTokens, r.LongestAnswer, r.N, r.Priority, r.Rank = PromptNone, 0, 0, 0, 1, 0, -1
}

// finish settles what depends on several keys.
func (r *Request) finish() {
	for _, t := range [...]struct {
		f Field
		s *string
	}{{FieldModel, &r.Model}, {FieldCacheSalt, &r.CacheSalt}, {FieldExtraKey, &r.ExtraKey}, {FieldUser, &r.User},
		{FieldSessionID, &r.SessionID}, {FieldPromptCacheKey, &r.PromptCacheKey}, {FieldUserID, &r.userID}, {FieldSessionParams, &r.sessionParams}} {
		if r.spans[t.f].end == 0 {
			*t.s = ""
		}
	}
	if r.spans[FieldRID].end == 0 && r.spans[FieldRequestID].end == 0 {
		r.RequestID = ""
	}
	if r.Form == PromptIDs && len(r.IDs) == 0 {
		r.Form = PromptNone
	}
	if r.Form == PromptNone && r.spans[FieldMessages].end-r.spans[FieldMessages].start > len("null") {
		r.Form = PromptMessages
	}
	if r.Prompts == 0 && r.Form != PromptNone {
		r.Prompts = 1
	}
}

// readMember reads one key and its value.
func (r *Request) readMember(s *scanner) error {
	s.space()
	at := s.pos
	raw, escaped, err := s.key()
	if err != nil {
		return err
	}
	name := span{at + 1, at + 1 + len(raw)}
	if escaped && len(raw) <= maxKeyBytes {
		r.text, _ = unescape(r.text[:0], raw)
		raw = r.text
	}
	f := fieldOf(raw)
	if f == noField || !dialects[r.Dialect].reads.has(f) {
		start := s.pos
		err = s.skip()
		r.keep(name, span{start, s.pos})
		return err
	}
	if r.spans[f].end != 0 {
		s.pos = at
		return Invalid(string(raw), "the key "+strconv.Quote(string(raw))+" stands twice in the body; send it once")
	}
	start := s.pos
	if s.at('n') {
		// Null stands for an absent value, but for a string of the last body that finish would keep.
		err = s.literal("null")
		r.clear(f)
	} else {
		err = r.readValue(s, f)
	}
	r.spans[f] = span{start, s.pos}
	r.keep(name, r.spans[f])
	return err
}

// keep remembers where a member lies.
func (r *Request) keep(name, value span) {
	if r.membersSeen < len(r.members) {
		r.members[r.membersSeen] = member{name, value}
	}
	r.membersSeen++
}

// clear makes a string field empty whose value is null.
func (r *Request) clear(f Field) {
	if t := r.stringOf(f); t != nil {
		*t = ""
	}
	switch f {
	case FieldUserID:
		r.userID = ""
	case FieldSessionParams:
		r.sessionParams = ""
	}
}

func (r *Request) stringOf(f Field) *string {
	switch f {
	case FieldModel:
		return &r.Model
	case FieldCacheSalt:
		return &r.CacheSalt
	case FieldExtraKey:
		return &r.ExtraKey
	case FieldRID, FieldRequestID:
		return &r.RequestID
	case FieldUser:
		return &r.User
	case FieldSessionID:
		return &r.SessionID
	case FieldPromptCacheKey:
		return &r.PromptCacheKey
	}
	return nil
}

// readValue reads the value of field f, which is not null.
func (r *Request) readValue(s *scanner, f Field) error {
	if t := r.stringOf(f); t != nil {
		return r.readString(s, f, t)
	}
	switch f {
	case FieldStream:
		return readBool(s, f, &r.Stream)
	case FieldStreamOptions:
		return r.readStreamOptions(s)
	case FieldMessages:
		return r.readMessages(s)
	case FieldPrompt:
		return r.readPrompt(s)
	case FieldInputIDs:
		r.Form = PromptIDs
		return r.readIDs(s, f)
	case FieldPromptEmbeds:
		r.Multimodal = true
		return s.skip()
	case FieldTools:
		return r.readTools(s)
	case FieldMaxTokens, FieldMaxCompletionTokens:
		var n int
		if err := readInt(s, f, &n); err != nil {
			return err
		}
		r.LongestAnswer = max(r.LongestAnswer, n)
		if f == FieldMaxCompletionTokens || r.spans[FieldMaxCompletionTokens].end == 0 || r.MaxTokens == 0 {
			r.MaxTokens = n
		}
		return nil
	case FieldN:
		if err := readInt(s, f, &r.N); err != nil {
			return err
		}
		r.N = max(r.N, 1)
		return nil
	case FieldUserID:
		return r.readTextOnly(s, f, &r.userID)
	case FieldSessionParams:
		return r.readSessionParams(s)
	case FieldPriority:
		return readInt(s, f, &r.Priority)
	case FieldRoutedDPRank, FieldDataParallelRank:
		return r.readRank(s, f)
	}
	return s.skip()
}

// readTextOnly reads a value that counts when it is a text.
func (r *Request) readTextOnly(s *scanner, f Field, into *string) error {
	if !s.at('"') {
		*into = ""
		return s.skip()
	}
	return r.readString(s, f, into)
}

// readSessionParams reads session_params.session_id, else session_params.id.
func (r *Request) readSessionParams(s *scanner) error {
	if !s.at('{') {
		r.sessionParams = ""
		return s.skip()
	}
	named := false // by session_id
	found := false
	more, err := s.open('}')
	for more && err == nil {
		raw, escaped, err := s.key()
		if err != nil {
			return err
		}
		isSession := r.is(raw, escaped, "session_id")
		switch {
		case s.at('"') && (isSession || !named && r.is(raw, escaped, "id")):
			err = r.readString(s, FieldSessionParams, &r.sessionParams)
			named, found = isSession, true
		default:
			err = s.skip()
		}
		if err != nil {
			return err
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	if !found {
		r.sessionParams = ""
	}
	return err
}

// wrongType returns the error of a value that is not of its key's kind. The value is read first, so that a body which is
// not JSON at all is called that.
func wrongType(s *scanner, f Field, want string) error {
	if err := s.skip(); err != nil {
		return err
	}
	return Invalid(f.String(), strconv.Quote(f.String())+" must be "+want)
}

func (r *Request) readString(s *scanner, f Field, t *string) error {
	if s.at('[') && (f == FieldRID || f == FieldCacheSalt || f == FieldExtraKey) {
		// SGLang takes a list, one for each prompt.
		r.MixedScopes = r.MixedScopes || f != FieldRID
		*t = ""
		return s.skipArray()
	}
	if !s.at('"') {
		return wrongType(s, f, "a string")
	}
	raw, escaped, err := s.stringToken()
	if err != nil {
		return err
	}
	if len(raw) > maxStringBytes {
		return r.readLong(f, t, raw)
	}
	if escaped {
		var ok bool
		if r.text, ok = unescape(r.text[:0], raw); !ok {
			return Invalid(f.String(), strconv.Quote(f.String())+" holds half of a surrogate pair")
		}
		raw = r.text
	}
	if *t != string(raw) {
		*t = string(raw)
	}
	return nil
}

// readLong reads a string that is too long to be copied. At most it computes a digest.
func (r *Request) readLong(f Field, t *string, raw []byte) error {
	switch *t = ""; f {
	case FieldModel:
		return Invalid(f.String(), "the model's name has "+strconv.Itoa(len(raw))+" bytes, more than "+strconv.Itoa(maxStringBytes))
	case FieldCacheSalt, FieldExtraKey:
		r.MixedScopes = true
	case FieldRID, FieldRequestID:
	default: // a session
		digest := sha256.Sum256(raw)
		*t = "sha256-" + hex.EncodeToString(digest[:])
	}
	return nil
}

func readBool(s *scanner, f Field, t *bool) error {
	switch {
	case s.at('t'):
		*t = true
		return s.literal("true")
	case s.at('f'):
		*t = false
		return s.literal("false")
	}
	return wrongType(s, f, "true or false")
}

// readInt reads a whole number, which may be written as 64, 64.0 or 6.4e1, as the engines take it.
func readInt(s *scanner, f Field, t *int) error {
	if s.pos >= len(s.data) || s.data[s.pos] != '-' && s.data[s.pos]-'0' > 9 {
		return wrongType(s, f, "a whole number")
	}
	raw, err := s.numberToken()
	if err != nil {
		return err
	}
	if n, err := strconv.ParseInt(string(raw), 10, strconv.IntSize); err == nil {
		*t = int(n)
		return nil
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) || math.Abs(v) > math.MaxInt32 {
		return Invalid(f.String(), strconv.Quote(f.String())+" must be a whole number of a sensible size")
	}
	*t = int(v)
	return nil
}

func (r *Request) readRank(s *scanner, f Field) error {
	rank := -1
	if err := readInt(s, f, &rank); err != nil {
		return err
	}
	switch {
	case rank < 0 || rank > math.MaxInt16:
		return Invalid(f.String(), strconv.Quote(f.String())+" must be a data-parallel rank, 0 or above")
	case r.Rank >= 0 && r.Rank != rank:
		return Invalid(f.String(), `"routed_dp_rank" and "data_parallel_rank" disagree; send one of them`)
	}
	r.Rank = rank
	return nil
}

func (r *Request) readStreamOptions(s *scanner) error {
	if !s.at('{') {
		return wrongType(s, FieldStreamOptions, "an object")
	}
	seen := false
	more, err := s.open('}')
	for more && err == nil {
		raw, escaped, err := s.key()
		if err != nil {
			return err
		}
		switch {
		case !r.is(raw, escaped, "include_usage"):
			err = s.skip()
		case seen:
			return Invalid("stream_options", `the key "include_usage" stands twice in "stream_options"; send it once`)
		case s.at('n'):
			seen = true
			err = s.literal("null")
		default:
			seen = true
			err = readBool(s, FieldStreamOptions, &r.IncludeUsage)
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

// is reports whether a string token says word.
func (r *Request) is(raw []byte, escaped bool, word string) bool {
	if escaped && len(raw) <= maxKeyBytes {
		r.text, _ = unescape(r.text[:0], raw)
		raw = r.text
	}
	return string(raw) == word
}

func (r *Request) readTools(s *scanner) error {
	if !s.at('[') {
		return wrongType(s, FieldTools, "a list")
	}
	start := s.pos
	if err := s.skipArray(); err != nil {
		return err
	}
	in := scanner{data: s.data, pos: start + 1}
	r.Tools = in.peek() != ']'
	return nil
}
