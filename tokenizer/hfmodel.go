package tokenizer

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// maxNesting bounds the depth of tokenizer.json. Published files have a depth of at most 8.
const maxNesting = 100

// scanner reads tokenizer.json in one pass and builds no tree. For a file of 31 MiB, fastjson's tree takes seven times
// the memory, and encoding/json takes more than twice the time (bench/results/tokenizer.md).
type scanner struct {
	jsonscan.Scanner
	buf []byte // buffer for a text with escapes
}

// key reads an object's key, and returns the key without escapes.
func (s *scanner) key() string { return s.unescaped(s.Key()) }

// text reads a JSON string, and returns the string without escapes.
func (s *scanner) text() string { return s.unescaped(s.Text()) }

func (s *scanner) unescaped(raw []byte, escaped bool) string {
	if !escaped {
		return string(raw)
	}
	var ok bool
	if s.buf, ok = jsonscan.Unescape(s.buf[:0], raw); !ok {
		s.Fail("half a surrogate pair")
	}
	return string(s.buf)
}

// id reads a token id.
func (s *scanner) id() uint32 {
	id := uint64(0)
	raw := s.Number()
	for _, c := range raw {
		if id = id*10 + uint64(c-'0'); c < '0' || c > '9' || id > math.MaxUint32 {
			s.Fail("expected a token id")
			return 0
		}
	}
	return uint32(id)
}

func (s *scanner) bool() bool {
	yes := s.Word("true")
	if !yes && !s.Word("false") {
		s.Fail("expected true or false")
	}
	return yes
}

func (f *file) readModel(s *scanner) {
	for more := s.Open('{'); more; more = s.Next('}') {
		key := s.key()
		if key != "vocab" && key != "merges" && s.Word("null") {
			continue
		}
		switch key {
		case "type":
			f.kind = s.text()
		case "vocab":
			f.readVocab(s)
		case "merges":
			f.readMerges(s)
		case "unk_token":
			f.unknown = s.text()
		case "continuing_subword_prefix":
			f.prefix = s.text()
			f.hasPrefix = true
		case "end_of_word_suffix":
			f.suffix = s.text()
		case "unk_id":
			f.unknownID = s.id()
		case "fuse_unk":
			f.fuseUnknown = s.bool()
		case "byte_fallback":
			f.byteFallback = s.bool()
		case "ignore_merges":
			f.ignoreMerges = s.bool()
		case "max_input_chars_per_word":
			f.maxChars = int(min(s.id(), 1<<30))
		case "dropout":
			n := string(s.Number())
			if p, _ := strconv.ParseFloat(n, 64); p != 0 {
				s.Stop(fmt.Errorf("the model merges at random (dropout %s), so two encodings of a text may differ; set dropout to null", n))
			}
		default:
			s.Skip()
		}
	}
}

// readVocab reads {"text": id, …}, or [["text", score], …] of Unigram.
func (f *file) readVocab(s *scanner) {
	if s.Peek() == '{' {
		for more := s.Open('{'); more; more = s.Next('}') {
			text := s.key()
			f.tokens = append(f.tokens, token{text, s.id()})
		}
		return
	}
	f.scores = []float64{}
	for more := s.Open('['); more; more = s.Next(']') {
		if !s.Open('[') {
			s.Fail("expected a token and its score")
			return
		}
		f.tokens = append(f.tokens, token{s.text(), block.Token(len(f.tokens))})
		if !s.Next(']') {
			s.Fail("expected a token and its score")
			return
		}
		score, err := parseScore(string(s.Number()))
		if err != nil {
			s.Stop(err)
		}
		f.scores = append(f.scores, score)
		if s.Next(']') {
			s.Fail("expected a token and its score")
		}
	}
}

// parseScore reads a number as serde_json does by default: it reads the digits into an integer, and then multiplies or
// divides once. The result is not always the nearest float. parseScore rounds in the same way, because the last bit may
// decide between paths with nearly equal sums.
func parseScore(s string) (float64, error) {
	if _, err := strconv.ParseFloat(s, 64); err != nil {
		return 0, fmt.Errorf("score %q: %w", clip(s), err)
	}
	digits, negative := strings.CutPrefix(s, "-")
	var significand uint64
	exponent, point, full := 0, false, false
	i := 0
	for ; i < len(digits) && digits[i] != 'e' && digits[i] != 'E'; i++ {
		if digits[i] == '.' {
			point = true
			continue
		}
		d := uint64(digits[i] - '0')
		if full = full || significand > (math.MaxUint64-d)/10; full {
			if !point {
				exponent++
			}
			continue
		}
		significand = significand*10 + d
		if point {
			exponent--
		}
	}
	if i < len(digits) {
		e, err := strconv.Atoi(digits[i+1:])
		if err != nil {
			return 0, fmt.Errorf("score %q: %w", clip(s), err)
		}
		exponent += e
	}
	f := float64(significand)
	for ; exponent < -308 && f != 0; exponent += 308 {
		f /= 1e308
	}
	power, err := strconv.ParseFloat("1e"+strconv.Itoa(min(max(exponent, -exponent), 308)), 64)
	if err != nil {
		return 0, err
	}
	if exponent < 0 {
		f /= power
	} else {
		f *= power
	}
	if negative {
		f = -f
	}
	return f, nil
}

// readMerges reads the list of merges: ["a b", …] or [["a", "b"], …].
func (f *file) readMerges(s *scanner) {
	f.merges = [][2]string{}
	for more := s.Open('['); more; more = s.Next(']') {
		if s.Peek() == '[' {
			f.merges = append(f.merges, s.pair())
			continue
		}
		line := s.text()
		if s.Err() != nil {
			return
		}
		pair, version, ok := cutMerge(line)
		switch {
		case !ok:
			s.Fail(fmt.Sprintf("merge %q has not two parts", clip(line)))
		case !version:
			f.merges = append(f.merges, pair)
		}
	}
}

// pair reads an array of two texts.
func (s *scanner) pair() (pair [2]string) {
	n := 0
	for more := s.Open('['); more; more = s.Next(']') {
		if n == len(pair) {
			s.Fail("a merge has two parts")
			break
		}
		pair[n] = s.text()
		n++
	}
	if n < len(pair) {
		s.Fail("a merge has two parts")
	}
	return pair
}

// cutMerge cuts "a b" into two texts. version is true if the line is the header of an old file.
func cutMerge(line string) (pair [2]string, version, ok bool) {
	if strings.HasPrefix(line, "#version") {
		return pair, true, true
	}
	left, right, ok := strings.Cut(line, " ")
	return [2]string{left, right}, false, ok && !strings.Contains(right, " ")
}
