package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"strconv"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// maxDepth is the greatest depth to which a body may nest. Tool schemas nest a few tens deep. vLLM's own JSON parser
// stops at 200 too, so vLLM would not accept a body that Read refuses for its depth.
const maxDepth = 200

// MaxPromptIDs is the greatest number of token ids in a request: four times a context of one million tokens. The bound
// limits the memory that a request takes in addition to its body.
const MaxPromptIDs = 4 << 20

// maxStringBytes is the greatest length of a string that is copied out of a body, in bytes with its escapes. A copy
// lives as long as the pooled Request and the decision's record. 4096 is the length of the longest file path, and no
// model's name is longer than a path. A request with a longer model name is refused. A request with a longer cache_salt
// or extra_key is accepted, but claims no match. A longer session key is replaced by its digest. A longer request id
// counts as absent.
const maxStringBytes = 4096

// maxKeyBytes is more than the longest spelling of a known key, in bytes. The longest key has 22 letters, and a letter
// can be written as an escape of six bytes.
const maxKeyBytes = 256

// keptIDs and keptText are the sizes of the largest buffers that a Request keeps for the next body: keptIDs in
// elements, keptText in bytes.
const (
	keptIDs  = 256 << 10
	keptText = 64 << 10
)

// Read reads body as a request of dialect d into r, in one pass. It is strict. The body must be exactly one JSON object
// in UTF-8, nested at most 200 deep. Keys are compared byte for byte. A key that the router reads may occur only once.
// If the router reads the value, too, the value must have the right type, except for user_id and session_params; null
// counts as absent. Read skips all other keys. encoding/json accepts every body that Read accepts, with the same
// values. r keeps the body itself, not a copy. Read never changes the body.
//
// Errors are *Error with status 400; r is then in an unknown state, but may be used for another Read.
func Read(d Dialect, body []byte, r *Request) error {
	r.reset(d, body)
	s := jsonscan.New(body, maxDepth)
	r.readBody(&s)
	if err := s.Err(); err != nil {
		return bodyError(err)
	}
	r.finish()
	return nil
}

// bodyError turns a syntax error of the scanner into an *Error for the client. Other errors are *Error already.
func bodyError(err error) error {
	var syntax *jsonscan.Error
	if errors.As(err, &syntax) {
		return Invalid("", "the body is "+syntax.Error())
	}
	return err
}

func (r *Request) readBody(s *jsonscan.Scanner) {
	if s.End() {
		s.Stop(Invalid("", "the body is empty; send a JSON object"))
		return
	}
	if s.Peek() != '{' {
		s.Skip()
		s.Stop(Invalid("", "the body must be a JSON object"))
		return
	}
	for more := s.Open('{'); more; more = s.Next('}') {
		r.readMember(s)
	}
	if !s.End() {
		s.Fail("something follows the object")
	}
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
	// Strings are kept, so that an equal string in the next body needs no copy. finish clears the strings whose keys
	// are absent.
	r.Dialect, r.body = d, body
	r.IDs, r.ends, r.text = ids, ends, text
	r.spans = [numFields]span{}
	r.membersSeen = 0
	r.Stream, r.IncludeUsage, r.Multimodal, r.Tools, r.MixedScopes, r.Bytes = false, false, false, false, false, false
	r.NoAnswer = false
	r.Form, r.Prompts, r.MaxTokens, r.LongestAnswer, r.N, r.Priority, r.Rank = PromptNone, 0, 0, 0, 1, 0, -1
}

// finish sets the fields that depend on several keys.
func (r *Request) finish() {
	for _, t := range [...]struct {
		f Field
		s *string
	}{{FieldModel, &r.Model}, {FieldCacheSalt, &r.CacheSalt}, {FieldExtraKey, &r.ExtraKey}, {FieldUser, &r.User},
		{FieldSessionID, &r.SessionID}, {FieldPromptCacheKey, &r.PromptCacheKey}, {FieldUserID, &r.userID},
		{FieldSessionParams, &r.sessionParams}, {FieldPreviousResponseID, &r.PreviousResponseID}} {
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

// readMember reads one top-level key and its value.
func (r *Request) readMember(s *jsonscan.Scanner) {
	s.Peek()
	nameAt := s.Pos() + 1
	raw, escaped := s.Key()
	name := span{nameAt, nameAt + len(raw)}
	if escaped && len(raw) <= maxKeyBytes {
		r.text, _ = jsonscan.Unescape(r.text[:0], raw)
		raw = r.text
	}
	start := s.Pos()
	f := fieldOf(raw)
	switch {
	case f == noField || !dialects[r.Dialect].reads.has(f):
		s.Skip()
		r.keep(name, span{start, s.Pos()})
		return
	case r.spans[f].end != 0:
		s.Stop(Invalid(string(raw), "the key "+strconv.Quote(string(raw))+" stands twice in the body; send it once"))
		return
	case s.Word("null"):
		r.clear(f) // otherwise the string of the earlier body would stay
	default:
		r.readValue(s, f)
	}
	r.spans[f] = span{start, s.Pos()}
	r.keep(name, r.spans[f])
}

// keep adds the positions of a member's name and value to r.members. If the array is full, keep only counts the member:
// then Members reads the body again.
func (r *Request) keep(name, value span) {
	if r.membersSeen < len(r.members) {
		r.members[r.membersSeen] = member{name, value}
	}
	r.membersSeen++
}

// clear empties a string field, because its value is null.
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
	case FieldPreviousResponseID:
		return &r.PreviousResponseID
	}
	return nil
}

// readValue reads the value of field f, which is not null.
func (r *Request) readValue(s *jsonscan.Scanner, f Field) {
	if t := r.stringOf(f); t != nil {
		r.readString(s, f, t)
		return
	}
	switch f {
	case FieldStream:
		readBool(s, f, &r.Stream)
	case FieldStreamOptions:
		r.readStreamOptions(s)
	case FieldMessages:
		r.readMessages(s)
	case FieldPrompt:
		r.readPrompt(s)
	case FieldInputIDs:
		r.readInputIDs(s)
	case FieldText:
		r.readText(s)
	case FieldPromptEmbeds, FieldInputEmbeds, FieldImageData, FieldAudioData, FieldVideoData:
		r.Multimodal = true
		s.Skip()
	case FieldLoRAPath:
		r.MixedScopes = true // the adapter's blocks are apart from the model's, and the field does not name a pool
		s.Skip()
	case FieldSamplingParams:
		r.readSampling(s)
	case FieldMetadata:
		r.readMetadata(s)
	case FieldEncodingFormat:
		r.readEncoding(s)
	case FieldTools:
		r.readTools(s)
	case FieldMaxTokens, FieldMaxCompletionTokens, FieldMaxOutputTokens:
		r.readMaxTokens(s, f)
	case FieldN:
		readInt(s, f, &r.N)
		r.N = max(r.N, 1)
	case FieldUserID:
		r.readTextOnly(s, f, &r.userID)
	case FieldSessionParams:
		r.readSessionParams(s)
	case FieldPriority:
		readInt(s, f, &r.Priority)
	case FieldRoutedDPRank, FieldDataParallelRank:
		r.readRank(s, f)
	default:
		s.Skip()
	}
}

// readMaxTokens reads one of the two limits for an answer. If a request has both, max_completion_tokens decides, unless
// it is 0.
func (r *Request) readMaxTokens(s *jsonscan.Scanner, f Field) {
	n := 0
	readInt(s, f, &n)
	r.LongestAnswer = max(r.LongestAnswer, n)
	r.NoAnswer = r.LongestAnswer <= 0
	if f == FieldMaxCompletionTokens || r.spans[FieldMaxCompletionTokens].end == 0 || r.MaxTokens == 0 {
		r.MaxTokens = n
	}
}

// readTextOnly reads a string into *into, and ignores a value of any other type.
func (r *Request) readTextOnly(s *jsonscan.Scanner, f Field, into *string) {
	if s.Peek() != '"' {
		*into = ""
		s.Skip()
		return
	}
	r.readString(s, f, into)
}

// readSessionParams reads session_params.session_id, or else session_params.id.
func (r *Request) readSessionParams(s *jsonscan.Scanner) {
	if s.Peek() != '{' {
		r.sessionParams = ""
		s.Skip()
		return
	}
	named := false // session_id was read: it takes precedence over id
	found := false
	for more := s.Open('{'); more; more = s.Next('}') {
		raw, escaped := s.Key()
		isSession := r.is(raw, escaped, "session_id")
		if s.Peek() == '"' && (isSession || !named && r.is(raw, escaped, "id")) {
			r.readString(s, FieldSessionParams, &r.sessionParams)
			named, found = isSession, true
		} else {
			s.Skip()
		}
	}
	if !found {
		r.sessionParams = ""
	}
}

// wrongType ends the reading because a value does not have the type that its key requires. It skips the value first: if
// the value is not valid JSON, the error must say that instead.
func wrongType(s *jsonscan.Scanner, f Field, want string) {
	s.Skip()
	s.Stop(Invalid(f.String(), strconv.Quote(f.String())+" must be "+want))
}

func (r *Request) readString(s *jsonscan.Scanner, f Field, t *string) {
	c := s.Peek()
	if c == '[' && (f == FieldRID || f == FieldCacheSalt || f == FieldExtraKey) {
		// SGLang accepts a list with one entry for each prompt.
		r.MixedScopes = r.MixedScopes || f != FieldRID
		*t = ""
		s.Skip()
		return
	}
	if c != '"' {
		wrongType(s, f, "a string")
		return
	}
	raw, escaped := s.Text()
	if len(raw) > maxStringBytes {
		r.readLong(s, f, t, raw)
		return
	}
	if escaped {
		var ok bool
		if r.text, ok = jsonscan.Unescape(r.text[:0], raw); !ok {
			s.Stop(Invalid(f.String(), strconv.Quote(f.String())+" holds half of a surrogate pair"))
			return
		}
		raw = r.text
	}
	if *t != string(raw) {
		*t = string(raw)
	}
}

// readLong reads a string that is too long to be copied. For some fields it computes the string's digest.
func (r *Request) readLong(s *jsonscan.Scanner, f Field, t *string, raw []byte) {
	switch *t = ""; f {
	case FieldModel:
		s.Stop(Invalid(f.String(), "the model's name has "+strconv.Itoa(len(raw))+" bytes, more than "+
			strconv.Itoa(maxStringBytes)))
	case FieldCacheSalt, FieldExtraKey:
		r.MixedScopes = true
	case FieldRID, FieldRequestID:
	default: // the field is a session key
		digest := sha256.Sum256(raw)
		*t = "sha256-" + hex.EncodeToString(digest[:])
	}
}

func readBool(s *jsonscan.Scanner, f Field, t *bool) {
	switch {
	case s.Word("true"):
		*t = true
	case s.Word("false"):
		*t = false
	default:
		wrongType(s, f, "true or false")
	}
}

// readInt reads a whole number. The number may be written as 64, 64.0 or 6.4e1, because the engines accept these forms.
func readInt(s *jsonscan.Scanner, f Field, t *int) {
	if !jsonscan.IsNumber(s.Peek()) {
		wrongType(s, f, "a whole number")
		return
	}
	raw := s.Number()
	if n, err := strconv.ParseInt(string(raw), 10, strconv.IntSize); err == nil {
		*t = int(n)
		return
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) || math.Abs(v) > math.MaxInt32 {
		s.Stop(Invalid(f.String(), strconv.Quote(f.String())+" must be a whole number of a sensible size"))
		return
	}
	*t = int(v)
}

func (r *Request) readRank(s *jsonscan.Scanner, f Field) {
	rank := -1
	readInt(s, f, &rank)
	switch {
	case rank < 0 || rank > math.MaxInt16:
		s.Stop(Invalid(f.String(), strconv.Quote(f.String())+" must be a data-parallel rank, 0 or above"))
	case r.Rank >= 0 && r.Rank != rank:
		s.Stop(Invalid(f.String(), `"routed_dp_rank" and "data_parallel_rank" disagree; send one of them`))
	}
	r.Rank = rank
}

func (r *Request) readStreamOptions(s *jsonscan.Scanner) {
	if s.Peek() != '{' {
		wrongType(s, FieldStreamOptions, "an object")
		return
	}
	seen := false
	for more := s.Open('{'); more; more = s.Next('}') {
		raw, escaped := s.Key()
		switch {
		case !r.is(raw, escaped, "include_usage"):
			s.Skip()
			continue
		case seen:
			s.Stop(Invalid("stream_options", `the key "include_usage" stands twice in "stream_options"; send it once`))
		case !s.Word("null"):
			readBool(s, FieldStreamOptions, &r.IncludeUsage)
		}
		seen = true
	}
}

// is reports whether a string equals word. raw and escaped are the values that the scanner returned for the string.
func (r *Request) is(raw []byte, escaped bool, word string) bool {
	if escaped && len(raw) <= maxKeyBytes {
		r.text, _ = jsonscan.Unescape(r.text[:0], raw)
		raw = r.text
	}
	return string(raw) == word
}

func (r *Request) readTools(s *jsonscan.Scanner) {
	if s.Peek() != '[' {
		wrongType(s, FieldTools, "a list")
		return
	}
	for more := s.Open('['); more; more = s.Next(']') {
		r.Tools = true
		s.Skip()
	}
}
