package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// units are the suffixes of a number of bytes, largest first. 64-bit integers in the file are always bytes.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
}

// valueError is a scalar that cannot be read. The YAML library gives such errors no position: it is found by the text.
type valueError struct{ text, problem string }

func (e *valueError) Error() string { return fmt.Sprintf("%q %s", e.text, e.problem) }

// unmarshalDuration reads a duration such as 50ms, 2s or 1m30s; 0 needs no unit.
func unmarshalDuration(d *time.Duration, data []byte) error {
	text := plain(data)
	got, err := time.ParseDuration(text)
	if err != nil {
		return &valueError{text, "is not a duration such as 50ms, 2s or 1m30s"}
	}
	*d = got
	return nil
}

// plain returns a scalar without its quotes.
func plain(data []byte) string { return strings.Trim(strings.TrimSpace(string(data)), `"'`) }

// unmarshalBytes reads a number of bytes, with or without a unit: 67108864, 64MiB, 1.5 GiB.
func unmarshalBytes(n *int64, data []byte) error {
	text := plain(data)
	factor := int64(1)
	number := text
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if whole, err := strconv.ParseInt(strings.ReplaceAll(number, "_", ""), 10, 64); err == nil {
		if whole > math.MaxInt64/factor || whole < math.MinInt64/factor {
			return &valueError{text, "does not fit in 64 bits"}
		}
		*n = whole * factor
		return nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(math.Abs(f*float64(factor)) < math.MaxInt64) || factor == 1 {
		return &valueError{text, "is not a number of bytes such as 67108864, 64MiB or 1.5GiB"}
	}
	*n = int64(f * float64(factor))
	return nil
}

// formatBytes writes n with the largest binary unit that leaves it whole.
func formatBytes(n int64) string {
	for _, u := range units[:4] {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
