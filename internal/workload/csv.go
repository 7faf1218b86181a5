package workload

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// table reads a CSV file with a header. It does not support commas within quotes, because no trace has such fields.
type table struct {
	lines   *lines
	columns map[string]int
	width   int // number of fields in a row
	fields  []string
}

func newTable(l *lines, needed ...string) (*table, error) {
	header, err := l.next()
	if err == io.EOF {
		return nil, fmt.Errorf("it is empty; the first line should name %s", strings.Join(needed, ", "))
	}
	if err != nil {
		return nil, err
	}
	t := &table{lines: l, columns: map[string]int{}}
	for i, name := range strings.Split(strings.TrimPrefix(string(header), "\ufeff"), ",") {
		name = strings.Trim(strings.TrimSpace(name), `"`)
		if _, twice := t.columns[name]; twice && slices.Contains(needed, name) {
			return nil, fmt.Errorf("the header has the column %q twice", name)
		}
		t.columns[name] = i
		t.width++
	}
	for _, name := range needed {
		if _, ok := t.columns[name]; !ok {
			return nil, fmt.Errorf("the header has no column %q", name)
		}
	}
	return t, nil
}

// each calls f for every row.
func (t *table) each(f func() error) error {
	return t.lines.each(func(line []byte) error {
		t.fields = strings.Split(string(line), ",")
		if len(t.fields) != t.width {
			return fmt.Errorf("%d fields, the header has %d", len(t.fields), t.width)
		}
		return f()
	})
}

// text returns the field in a column, or "" if the table has no such column.
func (t *table) text(column string) string {
	i, ok := t.columns[column]
	if !ok {
		return ""
	}
	return strings.Trim(strings.TrimSpace(t.fields[i]), `"`)
}

// count returns the field in a column as a whole number. It accepts 12.0, because BurstGPT writes some whole numbers in
// this form.
func (t *table) count(column string) (int, error) {
	v, err := strconv.ParseFloat(t.text(column), 64)
	if err != nil || v < 0 || v > MaxTokens || v != float64(int(v)) {
		return 0, fmt.Errorf("%s: %q is not a number of tokens", column, t.text(column))
	}
	return int(v), nil
}

// azureTimes has the time formats of the trace of 2023 and of the trace of 2024, in this order.
var azureTimes = []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999-07:00"}

// readAzure reads the Azure LLM inference traces. These traces have arrival times and lengths, but no content.
func readAzure(b *builder, l *lines) error {
	t, err := newTable(l, "TIMESTAMP", "ContextTokens", "GeneratedTokens")
	if err != nil {
		return err
	}
	b.note("the trace says nothing of content: no prompt shares a prefix with another")
	var begin time.Time
	return t.each(func() error {
		at, err := parseTime(t.text("TIMESTAMP"))
		if err != nil {
			return err
		}
		if begin.IsZero() {
			begin = at
		}
		return b.addLengths(t, at.Sub(begin), "ContextTokens", "GeneratedTokens")
	})
}

func parseTime(s string) (time.Time, error) {
	for _, layout := range azureTimes {
		if at, err := time.Parse(layout, s); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("column TIMESTAMP: %q is not a time like 2023-11-16 18:17:03.9799600", s)
}

// addLengths adds a request with known lengths and unknown content.
func (b *builder) addLengths(t *table, at time.Duration, input, output string) error {
	r := b.request()
	var err error
	r.Arrival = at
	if r.Input, err = t.count(input); err != nil {
		return err
	}
	if r.Output, err = t.count(output); err != nil {
		return err
	}
	if name := t.text("Session ID"); name != "" {
		r.Session, _ = b.session(name)
	}
	return b.add(r)
}

// readBurstGPT reads both versions of the BurstGPT trace; the first version has no sessions. A row without response
// tokens is a failed call and is left out.
func readBurstGPT(b *builder, l *lines) error {
	t, err := newTable(l, "Timestamp", "Request tokens", "Response tokens")
	if err != nil {
		return err
	}
	b.note("the trace says nothing of content: no prompt shares a prefix with another; its models are played as one")
	return t.each(func() error {
		v, err := strconv.ParseFloat(t.text("Timestamp"), 64)
		if err != nil {
			return fmt.Errorf("column Timestamp: %q is not a number of seconds", t.text("Timestamp"))
		}
		at, err := seconds(v)
		if err != nil {
			return fmt.Errorf("column Timestamp: %w", err)
		}
		if n, err := t.count("Response tokens"); err == nil && n == 0 {
			b.skipped["because they failed when they were recorded"]++
			return nil
		}
		return b.addLengths(t, at, "Request tokens", "Response tokens")
	})
}
