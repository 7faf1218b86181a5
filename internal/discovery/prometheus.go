package discovery

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/fleet"
)

// maxMetricLine bounds one line of /metrics. The longest known line, cache_config_info, has about forty labels and 2
// KB.
const maxMetricLine = 256 << 10

// metricLines calls line with each line of a Prometheus text except comments. The line is valid during the call.
func metricLines(r io.Reader, line func([]byte)) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxMetricLine)
	for scanner.Scan() {
		if text := scanner.Bytes(); len(text) > 0 && text[0] != '#' {
			line(text)
		}
	}
	return scanner.Err()
}

// metricLabels returns, for each prefix, the labels of the lines of a Prometheus text that begin with it, at most
// fleet.MaxRanks lines. A prefix is a name and "{"; with another prefix only the number of lines means something.
func metricLabels(r io.Reader, prefixes ...string) ([][]map[string]string, error) {
	found := make([][]map[string]string, len(prefixes))
	err := metricLines(r, func(line []byte) {
		for i, prefix := range prefixes {
			if rest, ok := strings.CutPrefix(string(line), prefix); ok && len(found[i]) < fleet.MaxRanks {
				labels, _ := parseLabels(rest)
				found[i] = append(found[i], labels)
			}
		}
	})
	return found, err
}

// sample is one line of a Prometheus text.
type sample struct {
	labels map[string]string
	value  float64
}

// parseSample parses the rest of a line after the metric's name: labels, if any, and a value. It ignores timestamps and
// exemplars. ok is false if there is no number, or if the number is NaN, infinite or negative.
func parseSample(rest string) (s sample, ok bool) {
	if labels, braced := strings.CutPrefix(rest, "{"); braced {
		s.labels, rest = parseLabels(labels)
	}
	value, _, _ := strings.Cut(strings.TrimLeft(rest, " \t"), " ")
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return s, false
	}
	s.value = v
	return s, true
}

// parseLabels parses name="value",… up to the closing brace, and returns the text after the brace as rest. Values may
// escape backslash, quote and newline.
func parseLabels(s string) (labels map[string]string, rest string) {
	labels = map[string]string{}
	for {
		s = strings.TrimLeft(s, ", ")
		if after, closed := strings.CutPrefix(s, "}"); closed {
			return labels, after
		}
		name, value, ok := strings.Cut(s, `="`)
		if !ok {
			return labels, ""
		}
		var text strings.Builder
		i := 0
		for ; i < len(value) && value[i] != '"'; i++ {
			c := value[i]
			if c == '\\' && i+1 < len(value) {
				i++
				if c = value[i]; c == 'n' {
					c = '\n'
				}
			}
			text.WriteByte(c)
		}
		if i == len(value) {
			return labels, "" // the text ends inside a label, which is dropped
		}
		labels[name] = text.String()
		s = value[i+1:]
	}
}
