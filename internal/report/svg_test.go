package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

func TestThePictureHasTheQuickestPolicyFirstAndMarksTheDefault(t *testing.T) {
	var drawn bytes.Buffer
	err := WriteSVG(&drawn, Picture{Title: "A & B", Note: "<made up>", Default: "middle"}, []Bar{
		{"slow", 9000, .5}, {"middle", 2000, .9}, {"quick", 1000, .4},
	})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for d := xml.NewDecoder(&drawn); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, strings.TrimSpace(string(text)))
		}
	}
	all, at := strings.Join(texts, "|"), 0
	for _, want := range []string{"A & B|", "<made up>|", "first token, s", "%", "|quick|", "1.00 s", "40.0 %", "middle (default)|", "2.00 s", "90.0 %", "|slow|", "9.00 s"} {
		i := strings.Index(all[at:], want)
		if i < 0 {
			t.Fatalf("no %q after %q in %q", want, all[:at], all)
		}
		at += i
	}
}

func TestThePictureOfNothingIsStillAPicture(t *testing.T) {
	var drawn bytes.Buffer
	if err := WriteSVG(&drawn, Picture{}, nil); err != nil || strings.Contains(drawn.String(), "NaN") {
		t.Errorf("%v: %s", err, drawn.String())
	}
	var again bytes.Buffer
	if _ = WriteSVG(&again, Picture{}, nil); !bytes.Equal(drawn.Bytes(), again.Bytes()) {
		t.Error("drawn twice, it differs")
	}
}
