package workload

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ragRow is a row of the RAGPulse trace. A prompt has components such as passages, and each component is a list of text
// ids.
type ragRow struct {
	Timestamp json.RawMessage `json:"timestamp"` // seconds, as a string
	Input     int             `json:"input_length"`
	Output    int             `json:"output_length"`
	Hashes    struct {
		System   []uint64 `json:"sys_prompt"`
		Passages []uint64 `json:"passages_ids"`
		History  []uint64 `json:"history"`
		Web      []uint64 `json:"web_search"`
		User     []uint64 `json:"user_input"`
	} `json:"hash_ids"`
	Session string `json:"session_id"`
}

// ragFiles are the files with the lengths of the texts, in the folder of the trace file 0_trace.jsonl.
var ragFiles = []string{"1_sys_prompt.jsonl", "2_passages.jsonl", "3_history.jsonl", "4_user_input.jsonl", "5_web_search.jsonl"}

// readRAGPulse reads the RAGPulse trace. The length of a text comes from the files in the trace's folder. A text
// without a length there gets an equal share of the first prompt that contains the text, and keeps this length in later
// prompts.
func readRAGPulse(b *builder, l *lines) error {
	lengths, err := b.ragLengths()
	if err != nil {
		return fmt.Errorf("%w: %w", errWhole, err)
	}
	if len(lengths) == 0 {
		b.note("the files with the lengths of the texts are missing: a text takes an equal share of its first prompt")
	}
	return l.each(func(line []byte) error {
		var row ragRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		v, err := strconv.ParseFloat(strings.Trim(string(row.Timestamp), `"`), 64)
		if err != nil {
			return errors.New("timestamp is not a number of seconds")
		}
		r := b.request()
		if r.Arrival, err = seconds(v); err != nil {
			return fmt.Errorf("timestamp: %w", err)
		}
		r.Input, r.Output = row.Input, row.Output
		if row.Session != "" {
			r.Session, _ = b.session(row.Session)
		}
		if row.Input > 0 && row.Input <= MaxTokens {
			r.Segments = row.segments(lengths, r.ID)
		}
		return b.add(r)
	})
}

// segments returns a segment for each text of the prompt, in the order in which the recorded service built its prompts.
// The segments are cut or filled to the prompt's length.
func (row *ragRow) segments(lengths map[uint64]int, request int) []Segment {
	h := &row.Hashes
	count := len(h.System) + len(h.Passages) + len(h.History) + len(h.Web) + len(h.User)
	segments := make([]Segment, 0, count+1)
	left := row.Input
	for _, ids := range [][]uint64{h.System, h.Passages, h.History, h.Web, h.User} {
		for _, id := range ids {
			n, known := lengths[id]
			if !known {
				n = max(row.Input/count, 1)
				lengths[id] = n
			}
			if n = min(n, left); n > 0 {
				segments = append(segments, Segment{ID: id, Tokens: n})
				left -= n
			}
		}
	}
	if left > 0 {
		segments = append(segments, Segment{ID: ownID(request, ownPrompt), Tokens: left})
	}
	return segments
}

func (b *builder) ragLengths() (map[uint64]int, error) {
	lengths := map[uint64]int{}
	if b.path == "" {
		return lengths, nil
	}
	for _, name := range ragFiles {
		f, err := os.Open(filepath.Join(filepath.Dir(b.path), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = readLengths(f, lengths)
		_ = f.Close() // the file was only read, so an error of Close does not matter
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return lengths, nil
}

// readLengths reads lines with two numbers: the id and the length of a text. The names of the JSON keys do not matter.
func readLengths(r io.Reader, lengths map[uint64]int) error {
	l := &lines{r: bufio.NewReader(r)}
	err := l.each(func(line []byte) error {
		d := json.NewDecoder(strings.NewReader(string(line)))
		d.UseNumber()
		var values []uint64
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if n, ok := token.(json.Number); ok {
				v, err := strconv.ParseUint(n.String(), 10, 64)
				if err != nil {
					return err
				}
				values = append(values, v)
			}
		}
		if len(values) != 2 || values[1] > MaxTokens {
			return errors.New("want an id and a length")
		}
		lengths[values[0]] = int(values[1])
		return nil
	})
	if err != nil {
		return fmt.Errorf("line %d: %w", l.number, err)
	}
	return nil
}
