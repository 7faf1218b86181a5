package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// sample is one line of a page of metrics in Prometheus' text format.
type sample struct {
	name   string
	labels string // the text between the braces
	value  float64
}

// label returns the value of a label, or "" if the sample does not have the label. It does not support escaped quotes
// in a value, because the metrics that this command reads have none.
func (s sample) label(name string) string {
	_, rest, found := strings.Cut(","+s.labels, ","+name+`="`)
	if !found {
		return ""
	}
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

func scrape(url string) ([]sample, error) {
	resp, err := quick.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return parseMetrics(resp.Body)
}

func parseMetrics(r io.Reader) ([]sample, error) {
	var out []sample
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		var s sample
		rest := line
		if open := strings.IndexByte(line, '{'); open >= 0 {
			end := strings.LastIndexByte(line, '}')
			if end < open {
				return nil, fmt.Errorf("metrics: %.100q has no closing brace", line)
			}
			s.name, s.labels, rest = line[:open], line[open+1:end], line[end+1:]
		} else {
			s.name, rest, _ = strings.Cut(line, " ")
		}
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %.100q has no number: %w", line, err)
		}
		s.value = v
		out = append(out, s)
	}
	return out, lines.Err()
}
