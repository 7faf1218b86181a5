package sim_test

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// bar is one policy in the picture that writeSVG draws.
type bar struct {
	Policy  string
	TTFT    float64 // mean time to first token, milliseconds
	HitRate float64 // share of prompt tokens found in a cache, 0 to 1
}

// frame is the text around the bars.
type frame struct {
	Title, Note string
	Default     string // the policy that is marked as the default
}

// The constants are the layout of the picture, in pixels of the SVG's own coordinates. The width is that of a README
// column.
const (
	pictureWidth = 830
	firstRow     = 86
	rowHeight    = 21
	barHeight    = 13
	nameRight    = 176 // right edge of the policies' names
	leftPlot     = 186 // left edge of the bars for the time to first token
	rightPlot    = 516 // left edge of the bars for the hit rate
	plotWidth    = 240 // width of each of the two plots
)

// pictureStyle has a set of colours for the light and for the dark colour scheme. The background is painted, so that
// the text can be read on a dark page in a light scheme. The default is marked by words and font weight, not only by
// colour. Figures have an outline in the colour of the page, so that grid lines do not cross them.
const pictureStyle = `<style>
.figure{paint-order:stroke;stroke-width:3px}
.page{fill:#fff}.text,.figure{fill:#1f2328}.figure{stroke:#fff}.note{fill:#59636e}.grid{stroke:#d1d9e0}.bar{fill:#8c959f}.default{fill:#0969da}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.text,.figure{fill:#f0f6fc}.figure{stroke:#0d1117}.note{fill:#9198a1}.grid{stroke:#3d444d}
.bar{fill:#656c76}.default{fill:#4493f8}}
</style>
`

// writeSVG draws two bars for each policy: the mean time to first token and the hit rate. The policy with the shortest
// time is first. Equal input gives equal bytes.
func writeSVG(w io.Writer, p frame, bars []bar) error {
	bars = slices.Clone(bars)
	slices.SortFunc(bars, func(a, b bar) int { return cmp.Or(cmp.Compare(a.TTFT, b.TTFT), strings.Compare(a.Policy, b.Policy)) })
	slowest := 0.0
	for _, b := range bars {
		slowest = max(slowest, b.TTFT)
	}
	step := roundStep(slowest / 1000 / 8)
	end := max(math.Ceil(slowest/1000/step), 1) * step // seconds at the right edge of the left plot
	bottom := firstRow + rowHeight*len(bars)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="sans-serif" font-size="12">`+"\n",
		pictureWidth, bottom+30, html.EscapeString(p.Title))
	b.WriteString(pictureStyle)
	fmt.Fprintf(&b, `<rect class="page" width="%d" height="%d"/>`+"\n", pictureWidth, bottom+30)
	label(&b, "text", 16, 24, "start", 15, p.Title)
	label(&b, "note", 16, 43, "start", 12, p.Note)
	label(&b, "text", leftPlot, 66, "start", 12, "Mean time to first token, s: less is better")
	label(&b, "text", rightPlot, 66, "start", 12, "Hit rate, % of prompt tokens: more is better")
	for at := 0.0; at <= end*1.001; at += step {
		gridLine(&b, leftPlot+plotWidth*at/end, bottom, fmt.Sprintf("%g", at))
	}
	for at := 0.0; at <= 100; at += 25 {
		gridLine(&b, rightPlot+plotWidth*at/100, bottom, fmt.Sprintf("%g", at))
	}
	for i, one := range bars {
		y := firstRow + rowHeight*i
		name, class, weight := one.Policy, "bar", ""
		if one.Policy == p.Default {
			name, class, weight = "▶ "+one.Policy+" (default)", "default", ` font-weight="bold"`
		}
		fmt.Fprintf(&b, `<g%s>`, weight)
		label(&b, "text", nameRight, y+11, "end", 12, name)
		drawBar(&b, class, leftPlot, y, plotWidth*one.TTFT/1000/end, fmt.Sprintf("%.2f s", one.TTFT/1000))
		drawBar(&b, class, rightPlot, y, plotWidth*one.HitRate, fmt.Sprintf("%.1f %%", 100*one.HitRate))
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// roundStep returns the smallest number that is not below v and is 1, 2 or 5 times a power of ten.
func roundStep(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= v {
			return digit * power
		}
	}
	return 10 * power
}

func gridLine(b *strings.Builder, x float64, bottom int, number string) {
	fmt.Fprintf(b, `<path class="grid" d="M%.1f %dV%d"/>`, x, firstRow-8, bottom)
	label(b, "note", int(math.Round(x)), bottom+17, "middle", 12, number)
}

// drawBar draws a bar, and writes its figure to the right of the bar. So the picture can be read without measuring and
// without colours.
func drawBar(b *strings.Builder, class string, x, y int, width float64, figure string) {
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`, class, x, y, width, barHeight)
	label(b, "figure", x+int(math.Round(width))+5, y+11, "start", 12, figure)
}

func label(b *strings.Builder, class string, x, y int, anchor string, size int, text string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d"`, class, x, y)
	if anchor != "start" {
		fmt.Fprintf(b, ` text-anchor="%s"`, anchor)
	}
	if size != 12 {
		fmt.Fprintf(b, ` font-size="%d"`, size)
	}
	fmt.Fprintf(b, ">%s</text>\n", html.EscapeString(text))
}

func TestThePictureHasTheQuickestPolicyFirstAndMarksTheDefault(t *testing.T) {
	var drawn bytes.Buffer
	err := writeSVG(&drawn, frame{Title: "A & B", Note: "<made up>", Default: "middle"}, []bar{
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
	if err := writeSVG(&drawn, frame{}, nil); err != nil || strings.Contains(drawn.String(), "NaN") {
		t.Errorf("%v: %s", err, drawn.String())
	}
	var again bytes.Buffer
	if _ = writeSVG(&again, frame{}, nil); !bytes.Equal(drawn.Bytes(), again.Bytes()) {
		t.Error("drawn twice, it differs")
	}
}
