package tokenizer

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
)

func (f *file) readModel(s *jsonScanner) error {
	return s.object(func(key string) (err error) {
		if key != "vocab" && key != "merges" && s.null() {
			return nil
		}
		switch key {
		case "type":
			f.kind, err = s.text()
		case "vocab":
			return f.readVocab(s)
		case "merges":
			return f.readMerges(s)
		case "unk_token":
			f.unknown, err = s.text()
		case "continuing_subword_prefix":
			f.prefix, err = s.text()
			f.hasPrefix = true
		case "end_of_word_suffix":
			f.suffix, err = s.text()
		case "unk_id":
			f.unknownID, err = s.id()
		case "fuse_unk":
			f.fuseUnknown, err = s.bool()
		case "byte_fallback":
			f.byteFallback, err = s.bool()
		case "ignore_merges":
			f.ignoreMerges, err = s.bool()
		case "max_input_chars_per_word":
			var n uint32
			n, err = s.id()
			f.maxChars = int(min(n, 1<<30))
		case "dropout":
			var n string
			if n, err = s.number(); err != nil {
				return err
			}
			if p, _ := strconv.ParseFloat(n, 64); p != 0 {
				return fmt.Errorf("the model merges at random (dropout %s): no two encodings need agree; set dropout to null", n)
			}
		default:
			return s.skip()
		}
		return err
	})
}

// readVocab reads {"text": id, …}, or [["text", score], …] of Unigram.
func (f *file) readVocab(s *jsonScanner) error {
	if s.peek() == '{' {
		return s.object(func(text string) error {
			id, err := s.id()
			f.tokens = append(f.tokens, token{text, id})
			return err
		})
	}
	f.scores = []float64{}
	return s.array(func() error {
		at := 0
		err := s.array(func() (err error) {
			if at++; at == 1 {
				var text string
				text, err = s.text()
				f.tokens = append(f.tokens, token{text, block.Token(len(f.tokens))})
				return err
			}
			var n string
			if n, err = s.number(); err != nil {
				return err
			}
			score, err := parseScore(n)
			f.scores = append(f.scores, score)
			return err
		})
		if err == nil && at != 2 {
			return s.fail("want a token and its score")
		}
		return err
	})
}

// parseScore reads a number as serde_json does by default: digits into an integer, then one multiplication or division, which is not always
// the nearest float. Ties between equal sums hang on that last bit, so it is copied, not corrected.
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

// readMerges reads ["a b", …] or [["a", "b"], …].
func (f *file) readMerges(s *jsonScanner) error {
	f.merges = [][2]string{}
	return s.array(func() error {
		if s.peek() == '[' {
			var pair [2]string
			n := 0
			err := s.array(func() (err error) {
				if n == 2 {
					return s.fail("a merge has two parts")
				}
				pair[n], err = s.text()
				n++
				return err
			})
			if err == nil && n != 2 {
				return s.fail("a merge has two parts")
			}
			f.merges = append(f.merges, pair)
			return err
		}
		line, err := s.text()
		if err != nil {
			return err
		}
		pair, version, ok := cutMerge(line)
		if !ok {
			return s.fail(fmt.Sprintf("merge %q has not two parts", clip(line)))
		}
		if !version {
			f.merges = append(f.merges, pair)
		}
		return nil
	})
}

// cutMerge cuts "a b"; version: the line is the header that old files carry.
func cutMerge(line string) (pair [2]string, version, ok bool) {
	if strings.HasPrefix(line, "#version") {
		return pair, true, true
	}
	left, right, ok := strings.Cut(line, " ")
	return [2]string{left, right}, false, ok && !strings.Contains(right, " ")
}
