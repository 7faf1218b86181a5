package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestDrawingsAreWellFormed(t *testing.T) {
	for name, c := range map[string]Chart{
		"nothing":   {Title: "a < b & \"c\""},
		"one point": {Lines: []Line{{Name: "x", Points: []Point{{1e6, 120}}}}},
		"two lines": {Note: "machine\ncommit", Lines: []Line{
			{Name: "p50", Points: []Point{{8, 60}, {4096, 900}}},
			{Name: "p99", Points: []Point{{8, 0.5}, {4096, 9000}}},
		}},
	} {
		var b strings.Builder
		if err := c.Write(&b); err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(strings.NewReader(b.String()))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v in\n%s", name, err, b.String())
			}
		}
		if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Errorf("%s: a coordinate is no number:\n%s", name, b.String())
		}
	}
}
