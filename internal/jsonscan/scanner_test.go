package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestTheErrorSaysWhereAndWhy(t *testing.T) {
	f := func(text string, pos int, problem string) {
		t.Helper()
		s := New([]byte(text), 3)
		s.Skip()
		var e *Error
		if !errors.As(s.Err(), &e) || e.Pos != pos || !strings.Contains(e.Problem, problem) {
			t.Errorf("%q: %v, want byte %d: %s", text, s.Err(), pos, problem)
		}
	}
	f("", 0, "ends where a value should be")
	f(" \t\r\n", 4, "ends where a value should be")
	f("\x00", 0, "expected a value")
	f("nul", 0, "expected a value")
	f("NaN", 0, "expected a value")
	f("\xef\xbb\xbf1", 0, "expected a value")
	f("-", 1, "without digits")
	f("1.", 2, "behind its point")
	f("1.e5", 2, "behind its point")
	f("1e+", 3, "in its exponent")
	f(`"abc`, 4, "without an end")
	f(`"12345678`, 9, "without an end")
	f(`"\`, 1, "unknown escape")
	f(`"\x41"`, 1, "unknown escape")
	f(`"12345678\u12g4"`, 9, "unknown escape")
	f(`"\u123`, 1, "unknown escape")
	f("\"a\x1f\"", 2, "control character")
	f("\"12345678\n\"", 9, "control character")
	f("\"\xff\"", 1, "not UTF-8")
	f("\"12345678\xc0\xaf\"", 1, "not UTF-8")
	f("\"\xed\xa0\x80\"", 1, "not UTF-8")
	f("[1 2]", 3, "expected a comma or ']'")
	f("[1,]", 3, "expected a value")
	f("[01]", 2, "expected a comma")
	f("[1", 2, "ends inside a value")
	f("[", 1, "ends where a value should be")
	f("{", 1, "expected a key")
	f(`{"a" 1}`, 5, "expected a colon")
	f(`{"a":1]`, 6, "expected a comma or '}'")
	f(`{a:1}`, 1, "expected a key")
	f(`{"a":1,}`, 7, "expected a key")
	f("[[[[1]]]]", 3, "nested deeper than 3 levels")
	f(`[[[{"a":1}]]]`, 3, "nested deeper than 3 levels")
}

func TestAfterAnErrorNothingIsTaken(t *testing.T) {
	calls := func(s *Scanner) {
		s.Fail("another problem")
		s.Stop(errors.New("another error"))
		if s.Peek() != 0 || !s.End() || s.Open('{') || s.Open('[') || s.Next(']') || s.Word("a") || len(s.Raw()) > 0 ||
			len(s.Number()) > 0 {
			t.Error("something was taken")
		}
		key, _ := s.Key()
		text, _ := s.Text()
		if key != nil || text != nil || len(s.AppendUint32s(nil, 9)) > 0 {
			t.Error("something was taken")
		}
	}
	s := New([]byte(`[1,x,"a",{},1,2,]`), 9)
	s.Open('[')
	s.Skip()
	s.Next(']')
	s.Skip()
	calls(&s)
	if e, ok := s.Err().(*Error); !ok || *e != (Error{3, "expected a value"}) || s.Pos() != 3 {
		t.Errorf("%v at %d", s.Err(), s.Pos())
	}
	own := errors.New("an error of the caller's")
	s = New([]byte(`[1,2]`), 9)
	s.Open('[')
	s.Stop(own)
	calls(&s)
	if s.Err() != own {
		t.Errorf("%v, want the caller's error", s.Err())
	}
}

func TestACopyLooksAhead(t *testing.T) {
	s := New([]byte(` [ {"a":1}, 2]`), 9)
	ahead := s
	if !ahead.Open('[') || ahead.Peek() != '{' {
		t.Fatal("the copy does not read")
	}
	ahead.Fail("of the copy")
	if raw := s.Raw(); string(raw) != `[ {"a":1}, 2]` || s.Err() != nil || !s.End() {
		t.Errorf("%q, %v", raw, s.Err())
	}
}

func TestNumbersOfAListAreTakenWhereTheyAreWrittenAsUsual(t *testing.T) {
	f := func(text string, limit int, want []uint32, rest string) {
		t.Helper()
		s := New([]byte(text), 9)
		s.Open('[')
		got := s.AppendUint32s(nil, limit)
		if diff := cmp.Diff(want, got); diff != "" || text[s.Pos():] != rest || s.Err() != nil {
			t.Errorf("%s: rest %q, %v\n%s", text, text[s.Pos():], s.Err(), diff)
		}
	}
	f("[1,2,3]", 9, []uint32{1, 2}, "3]")
	f("[1,2,3]", 1, []uint32{1}, "2,3]")
	f("[0, 999999999,  7,1000000000,8]", 9, []uint32{0, 999999999, 7}, "1000000000,8]")
	f("[1,02,3]", 9, []uint32{1}, "02,3]")
	f("[1,2.5,3]", 9, []uint32{1}, "2.5,3]")
	f("[1,-2,3]", 9, []uint32{1}, "-2,3]")
	f("[1,2 ,3]", 9, []uint32{1}, "2 ,3]")
	f("[1,", 9, []uint32{1}, "")
	f("[12", 9, nil, "12")
}

func TestUnescapeReportsHalfOfASurrogatePair(t *testing.T) {
	f := func(raw, want string, wantOK bool) {
		t.Helper()
		if got, ok := Unescape([]byte("> "), []byte(raw)); string(got) != "> "+want || ok != wantOK {
			t.Errorf("%s: %q, %v", raw, got, ok)
		}
	}
	f(`plain`, "plain", true)
	f(`\"\\\/\b\f\n\r\t`, "\"\\/\b\f\n\r\t", true)
	f(`a\u00e9\u20AC\ud83d\uDE00z`, "aé€😀z", true)
	f(`\ud800`, "\ufffd", false)
	f(`\ud800x\n`, "\ufffdx\n", false)
	f(`\ud800\u0041`, "\ufffdA", false)
	f(`\udc00\ud800`, "\ufffd\ufffd", false)
	f(`\ufffd`, "\ufffd", true)
	// These escapes are not valid. A Scanner refuses them, so no caller passes them to Unescape.
	f(`a\`, "a", false)
	f(`a\u12`, "a", false)
	f(`a\ud800\u12`, "a\ufffd", false)
}

func TestReadingAllocatesNothing(t *testing.T) {
	text := []byte(`{"a":[1,2.5e-3,-7,{"b":null}],"c\n":"text \u00e9 é","d":[[],{}],"e":true,"f":false,"ids":[1,2,3]}`)
	ids, sum := make([]uint32, 0, 8), 0
	if n := testing.AllocsPerRun(100, func() {
		s := New(text, 9)
		for more := s.Open('{'); more; more = s.Next('}') {
			if key, _ := s.Key(); string(key) == "ids" && s.Open('[') {
				ids = s.AppendUint32s(ids[:0], 8)
				s.Skip()
				s.Next(']')
			} else {
				sum += len(s.Raw())
			}
		}
		if s.Err() != nil || len(ids) != 2 {
			t.Fatal(s.Err(), ids)
		}
		for key, value := range Members(text) {
			sum += len(key)
			for i, item := range Items(value) {
				sum += i + len(item)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMembersAndItemsAcceptAnyText(t *testing.T) {
	for _, text := range []string{"", " ", "1", "{", "[", "{]", "[}", `{"`, `{"\"`, `{"a`, `{"a"`, `{"a":`, `{"a":}`,
		`{"a" 1}`, `{"a":[`, "[[", `["`, "[,]", `{"a":1 "b":2`} {
		for range Members([]byte(text)) {
		}
		for range Items([]byte(text)) {
		}
		AppendCompact(nil, []byte(text))
	}
	depth := 1 << 20
	for _, item := range Items([]byte("[" + strings.Repeat("[", depth) + strings.Repeat("]", depth) + "]")) {
		if len(item) != 2*depth {
			t.Errorf("%d bytes", len(item))
		}
	}
}

// mostDepth is how deep encoding/json lets values nest.
const mostDepth = 10000

// FuzzScanner compares a Scanner with encoding/json. Both accept the same texts, except that a Scanner refuses text
// that is not UTF-8. Both find the same keys, strings and numbers. For a text that the Scanner accepts, Members and
// Items find the same values as the Scanner.
func FuzzScanner(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stream":true}`))
	f.Add([]byte(` [ 1.5e-7 , -0 , 12345678901234567890 , null , false , [ ] , { } , "\u00e9\ud83d\ude00\ud800\\\"" ] `))
	f.Add([]byte("\"12345678\xc3\xa9\""))
	f.Add([]byte(`[1,02]`))
	f.Add([]byte(`{"a":1,"a":{"b":"c\n"}}`))
	f.Add([]byte(`"a` + "\x1f" + `"`))
	f.Add([]byte(`[1`))
	f.Add([]byte(strings.Repeat("[", 20) + strings.Repeat("]", 20)))
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		s := New(text, mostDepth)
		s.Skip()
		accepted := s.Err() == nil && s.End()
		if want := json.Valid(text) && utf8.Valid(text); accepted != want {
			t.Fatalf("accepted %v (%v), encoding/json %v", accepted, s.Err(), want)
		}
		for range Members(text) { // the loop must not panic for any text
		}
		for range Items(text) {
		}
		AppendCompact(nil, text)
		if !bytes.Equal(before, text) {
			t.Fatal("the text was changed")
		}
		if !accepted {
			var e *Error
			if s.Err() != nil && (!errors.As(s.Err(), &e) || e.Pos > len(text) || e.Pos != s.Pos()) {
				t.Fatalf("%#v at %d", s.Err(), s.Pos())
			}
			return
		}
		compareTokens(t, text)
		compareWalk(t, text)
	})
}

// token is a token of a text, with the type and the value that encoding/json's Decoder returns for it.
type token string

func compareTokens(t *testing.T, text []byte) {
	s := New(text, mostDepth)
	got := appendTokens(nil, &s)
	var want []token
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		v, err := d.Token()
		if err != nil {
			break
		}
		want = append(want, token(fmt.Sprintf("%T %v", v, v)))
	}
	if diff := cmp.Diff(want, got); diff != "" || s.Err() != nil {
		t.Fatalf("%v\n%s", s.Err(), diff)
	}
}

func appendTokens(list []token, s *Scanner) []token {
	text := func(raw []byte, escaped bool) token {
		out, ok := Unescape(nil, raw)
		if escaped != bytes.Contains(raw, []byte{'\\'}) || ok && !utf8.Valid(out) {
			return "bug"
		}
		return "string " + token(out)
	}
	switch c := s.Peek(); {
	case c == '"':
		return append(list, text(s.Text()))
	case c == '{':
		list = append(list, "json.Delim {")
		for more := s.Open('{'); more; more = s.Next('}') {
			list = appendTokens(append(list, text(s.Key())), s)
		}
		return append(list, "json.Delim }")
	case c == '[':
		list = append(list, "json.Delim [")
		for more := s.Open('['); more; more = s.Next(']') {
			list = appendTokens(list, s)
		}
		return append(list, "json.Delim ]")
	case IsNumber(c):
		return append(list, "json.Number "+token(s.Number()))
	case s.Word("true"):
		return append(list, "bool true")
	case s.Word("false"):
		return append(list, "bool false")
	}
	s.Word("null")
	return append(list, "<nil> <nil>")
}

func compareWalk(t *testing.T, text []byte) {
	var want, got []string
	s := New(text, mostDepth)
	switch s.Peek() {
	case '{':
		for more := s.Open('{'); more; more = s.Next('}') {
			key, _ := s.Key()
			want = append(want, string(key), string(s.Raw()))
		}
	case '[':
		for more := s.Open('['); more; more = s.Next(']') {
			s.Peek()
			want = append(want, fmt.Sprint(s.Pos()), string(s.Raw()))
		}
	}
	for key, value := range Members(text) {
		got = append(got, string(key), string(value))
	}
	for at, value := range Items(text) {
		got = append(got, fmt.Sprint(at), string(value))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil || compact.String() != string(AppendCompact(nil, text)) {
		t.Fatalf("compact %q, encoding/json %q", AppendCompact(nil, text), compact.String())
	}
}
