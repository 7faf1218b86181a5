package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// hashRow is a row of a Mooncake or Qwen-Bailian trace. Such a trace describes a prompt by the hashes of its blocks.
type hashRow struct {
	Timestamp *float64        `json:"timestamp"`
	Input     int             `json:"input_length"`
	Output    int             `json:"output_length"`
	Hashes    []uint64        `json:"hash_ids"`
	Session   json.RawMessage `json:"session_id"` // session_id and delay are Dynamo's extension of the Mooncake format
	// Delay replaces Timestamp in all rows of a session but the first: it is the time in ms from the end of the
	// session's previous answer.
	Delay  *float64 `json:"delay"`
	Chat   *int64   `json:"chat_id"`
	Parent *int64   `json:"parent_chat_id"`
}

// readMooncake reads the traces of Mooncake's FAST'25 paper. A hash id stands for a block of 512 tokens and all tokens
// before the block. The last block may have fewer tokens. Rows with Dynamo's session_id and delay become closed loops.
func readMooncake(b *builder, l *lines) error {
	b.w.Block = 512
	b.note("the trace has no ids for generated tokens: hits on them are not modelled")
	last := map[int]int{} // by session: index of its last request
	return l.each(func(line []byte) error {
		row, err := readHashRow(line)
		if err != nil {
			return err
		}
		r := b.request()
		if name := string(row.Session); name != "" && name != "null" {
			r.Session, _ = b.session(name)
			if before, ok := last[r.Session]; ok && row.Delay != nil {
				r.After = before
				if r.Think, err = seconds(*row.Delay / 1000); err != nil || r.Think < 0 {
					return fmt.Errorf("delay: %v ms is not a pause", *row.Delay)
				}
				at := (b.w.Requests[before].Arrival + r.Think).Seconds() * 1000
				row.Timestamp = &at
			}
		}
		if row.Timestamp == nil {
			return errNoTimestamp
		}
		err = b.addHashes(r, row, *row.Timestamp/1000)
		if r.Session >= 0 && len(b.w.Requests) > r.ID {
			last[r.Session] = r.ID
		}
		return err
	})
}

// readQwen reads the Qwen-Bailian traces. These traces have blocks of 16 tokens and times in seconds. A request of a
// conversation names the previous request as its parent.
func readQwen(b *builder, l *lines) error {
	b.w.Block = 16
	b.note("the trace has no ids for generated tokens: hits on them are not modelled")
	chats := map[int64]int{}
	return l.each(func(line []byte) error {
		row, err := readHashRow(line)
		if err != nil {
			return err
		}
		if row.Timestamp == nil {
			return errNoTimestamp
		}
		r := b.request()
		if row.Chat != nil {
			root, known := 0, false
			if row.Parent != nil {
				root, known = chats[*row.Parent]
			}
			if !known {
				root, _ = b.session(strconv.FormatInt(*row.Chat, 10))
			}
			r.Session = root
			chats[*row.Chat] = root
		}
		return b.addHashes(r, row, *row.Timestamp)
	})
}

var errNoTimestamp = errors.New("timestamp is missing")

func readHashRow(line []byte) (*hashRow, error) {
	var row hashRow
	if err := json.Unmarshal(line, &row); err != nil {
		return nil, err
	}
	return &row, nil
}

// addHashes adds r with the lengths and the blocks of row.
func (b *builder) addHashes(r Request, row *hashRow, at float64) error {
	var err error
	if r.Arrival, err = seconds(at); err != nil {
		return fmt.Errorf("timestamp: %w", err)
	}
	r.Input, r.Output = row.Input, row.Output
	if r.Segments, err = hashSegments(row.Hashes, row.Input, b.w.Block); err != nil {
		return err
	}
	return b.add(r)
}

// hashSegments makes a segment for each block hash of a prompt. If a row has fewer hashes than blocks, one more segment
// covers the unknown rest of the prompt.
func hashSegments(hashes []uint64, input, block int) ([]Segment, error) {
	if blocks := (input + block - 1) / block; len(hashes) > blocks {
		return nil, fmt.Errorf("%d hash ids for %d tokens: %d blocks of %d hold them", len(hashes), input, blocks, block)
	}
	if input < 1 || input > MaxTokens || len(hashes) == 0 {
		return nil, nil // the content is unknown; builder.add checks the length
	}
	segments := make([]Segment, 0, len(hashes)+1)
	for _, h := range hashes {
		n := min(block, input)
		segments = append(segments, Segment{ID: h, Tokens: n})
		input -= n
	}
	if input > 0 {
		last := hashes[len(hashes)-1]
		segments = append(segments, Segment{ID: mix(last ^ ownPrompt<<56), Tokens: input})
	}
	return segments, nil
}
