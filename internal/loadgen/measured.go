package loadgen

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/workload"
)

// Measured is one request that an engine served. Times are seconds on one clock.
type Measured struct {
	Input, Output int
	Arrival       float64
	Scheduled     float64 // time at which the engine began to compute the request; equal to Arrival if it is not known
	First, Last   float64 // times of the first and the last token
}

// measuredRow is a row of a table of requests: a table that LLMServingSim published of vLLM runs, or the output of
// `warmpath load --rows`.
type measuredRow struct {
	Input     int      `json:"input_toks"`
	Cached    int      `json:"cached_toks"` // only in the rows of `warmpath load --rows`
	Output    int      `json:"output_toks"`
	Queued    *float64 `json:"queued_ts"`
	Scheduled *float64 `json:"scheduled_ts,omitempty"`
	First     float64  `json:"first_token_ts"`
	Last      float64  `json:"last_token_ts"`
	Worker    string   `json:"worker,omitempty"` // only in the rows of `warmpath load --rows`
}

// writeRow writes an answered request to Config.Rows. The times of the row are seconds after the beginning of the run.
func (p *player) writeRow(r *result, end time.Duration) {
	if p.cfg.Rows == nil || p.rowsErr != nil || r.x.first.IsZero() {
		return
	}
	due := r.due.Seconds()
	row := measuredRow{
		Input: r.x.prompt, Cached: r.x.cached, Output: r.x.output, Queued: &due,
		First: r.x.first.Sub(p.begin).Seconds(), Last: end.Seconds(), Worker: r.x.worker,
	}
	data, err := json.Marshal(row)
	if err == nil {
		_, err = p.cfg.Rows.Write(append(data, '\n'))
	}
	if err != nil {
		p.rowsErr = fmt.Errorf("write rows: %w", err)
	}
}

// maxRows bounds the number of rows in a table. A fit needs only a few hundred.
const maxRows = 1_000_000

// ReadMeasured reads a table of measured requests and sorts the table by arrival. The table is JSONL, which may be
// packed with gzip.
func ReadMeasured(r io.Reader) ([]Measured, error) {
	var out []Measured
	input, cached := 0, 0
	err := eachLine(r, func(line []byte) error {
		var row measuredRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		if row.Queued == nil {
			return errors.New("queued_ts is missing")
		}
		m := Measured{Input: row.Input, Output: row.Output, Arrival: *row.Queued, First: row.First, Last: row.Last}
		m.Scheduled = *cmp.Or(row.Scheduled, row.Queued)
		if m.Input < 1 || m.Output < 1 || m.Input > workload.MaxTokens || m.Output > workload.MaxTokens ||
			!(m.Arrival <= m.Scheduled && m.Scheduled < m.First && m.First <= m.Last) {
			return errors.New("want input_toks, output_toks and queued_ts ≤ scheduled_ts < first_token_ts ≤ last_token_ts")
		}
		if len(out) == maxRows {
			return fmt.Errorf("more than %d rows", maxRows)
		}
		input, cached = input+m.Input, cached+min(max(row.Cached, 0), m.Input)
		out = append(out, m)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read measured requests: %w", err)
	}
	if cached > input/20 {
		return nil, fmt.Errorf("read measured requests: %d of %d prompt tokens were cached; measure with prompts that share nothing, such as gen:independent", cached, input)
	}
	if len(out) == 0 {
		return nil, errors.New("read measured requests: there are none")
	}
	slices.SortStableFunc(out, func(a, b Measured) int { return cmp.Compare(a.Arrival, b.Arrival) })
	return out, nil
}

// eachLine calls f for every line that is not blank. r may be packed with gzip.
func eachLine(r io.Reader, f func(line []byte) error) error {
	buffered := bufio.NewReader(r)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return err
		}
		buffered = bufio.NewReader(z)
	}
	lines := bufio.NewScanner(buffered)
	lines.Buffer(nil, 1<<20)
	number := 0
	for lines.Scan() {
		number++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := f(line); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number+1, err)
	}
	return nil
}

// ReadSplitwise reads the ladders of one model, hardware and tensor parallel size from splitwise-sim's perf_model.csv.
// An empty model, an empty hardware and a parallel of 0 match all rows. If several combinations match, the error lists
// the combinations.
func ReadSplitwise(r io.Reader, model, hardware string, parallel int) ([]Point, error) {
	var columns map[string]int
	seen := map[string]bool{}
	var out []Point
	err := eachLine(r, func(line []byte) error {
		fields := strings.Split(string(line), ",")
		if columns == nil {
			columns = map[string]int{}
			for i, name := range fields {
				if _, twice := columns[name]; twice {
					return fmt.Errorf("the header has the column %q twice", name)
				}
				columns[name] = i
			}
			for _, name := range []string{"model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time"} {
				if _, ok := columns[name]; !ok {
					return fmt.Errorf("the header has no column %q", name)
				}
			}
			return nil
		}
		if len(fields) != len(columns) {
			return fmt.Errorf("%d fields, the header has %d", len(fields), len(columns))
		}
		text := func(name string) string { return fields[columns[name]] }
		tp, err := strconv.Atoi(text("tensor_parallel"))
		if err != nil {
			return fmt.Errorf("tensor_parallel: %q is not a number", text("tensor_parallel"))
		}
		if model != "" && text("model") != model || hardware != "" && text("hardware") != hardware || parallel != 0 && tp != parallel {
			return nil
		}
		seen[fmt.Sprintf("%s on %d %s", text("model"), tp, text("hardware"))] = true
		points, err := splitwisePoints(text)
		out = append(out, points...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read splitwise table: %w", err)
	}
	if len(seen) != 1 {
		var names []string
		for name := range seen {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("read splitwise table: choose one model, hardware and parallel size: %s", cmp.Or(strings.Join(names, ", "), "none is like that"))
	}
	return out, nil
}

// splitwisePoints returns the prefill and the decode pass of a row. text returns the row's field with the given name.
func splitwisePoints(text func(string) string) ([]Point, error) {
	var v [5]float64
	for i, name := range []string{"prompt_size", "batch_size", "token_size", "prompt_time", "token_time"} {
		var err error
		if v[i], err = strconv.ParseFloat(text(name), 64); err != nil || !(v[i] > 0) || v[i] > 1e9 || math.IsNaN(v[i]) {
			return nil, fmt.Errorf("%s: %q is not a positive number", name, text(name))
		}
	}
	prompt, batch, output := int(v[0]), int(v[1]), int(v[2])
	return []Point{
		{Prompt: prompt, Sequences: batch, MS: v[3]},
		{Sequences: batch, Context: batch * (prompt + output/2), MS: v[4]},
	}, nil
}
