package workload

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// decisionRow has the fields of a line of the router's decision log that a workload needs. internal/telemetry describes
// the line.
type decisionRow struct {
	Model  string `json:"model"`
	Output *int   `json:"output_tokens"`
	Choice *struct {
		At        int64  `json:"at"`
		Arrived   int64  `json:"arrived"`
		LoRA      string `json:"lora"`
		Session   string `json:"session"`
		Prompt    int    `json:"prompt"`
		BlockSize int    `json:"block_size"`
		Keys      string `json:"keys"`
	} `json:"choice"`
}

// readDecisions reads a decision log. The key of a block also covers all blocks before it, as the hash ids of a
// Mooncake trace do. Answers without a reported length count as one token.
func readDecisions(b *builder, l *lines) error {
	b.note("the log has no ids for generated tokens: hits on them are not modelled")
	return l.each(func(line []byte) error {
		var row decisionRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		c := row.Choice
		if c == nil {
			b.skipped["because their lines have no facts of a decision"]++
			return nil
		}
		r := b.request()
		at := c.Arrived
		if at == 0 {
			at = c.At
		}
		var err error
		if r.Arrival, err = seconds(float64(at) / 1e9); err != nil {
			return fmt.Errorf("arrived: %w", err)
		}
		r.Input, r.Model, r.LoRA = c.Prompt, row.Model, c.LoRA
		if row.Output != nil {
			r.Output = *row.Output
		}
		if c.Session != "" {
			r.Session, _ = b.session(c.Session)
		}
		raw, err := base64.StdEncoding.DecodeString(c.Keys)
		if err != nil || len(raw)%8 != 0 || len(raw) > 0 && (c.BlockSize < 1 || c.BlockSize > MaxTokens) {
			return errors.New("keys are not 8 bytes for each block, in base64")
		}
		hashes := make([]uint64, 0, len(raw)/8)
		for ; len(raw) > 0; raw = raw[8:] {
			hashes = append(hashes, binary.LittleEndian.Uint64(raw))
		}
		b.w.Block = max(b.w.Block, c.BlockSize)
		if r.Segments, err = hashSegments(hashes, c.Prompt, max(c.BlockSize, 1)); err != nil {
			return err
		}
		return b.add(r)
	})
}
