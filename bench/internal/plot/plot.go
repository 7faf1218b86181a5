// Package plot draws lines over logarithmic axes as SVG. It has only the features that command growth needs.
package plot

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Line is a series of points, in ascending order of X. Coordinates must be above 0.
type Line struct {
	Name   string
	Points []Point
}

// Point is one measurement.
type Point struct{ X, Y float64 }

// Chart is one drawing.
type Chart struct {
	Title, X, Y string
	Note        string // text below the drawing: machine, commit, command
	Lines       []Line
}

const (
	width, height           = 760, 460
	left, right, top, below = 80, 190, 50, 90
)

var colours = []string{"#0b6e99", "#c0392b", "#27803a", "#8e44ad", "#b9770e", "#2c3e50"}

// axis maps values to coordinates.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 {
	return a.from + (math.Log10(v)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// Write draws the chart.
func (c *Chart) Write(w io.Writer) error {
	x, y := axis{from: left, to: width - right}, axis{from: height - below, to: top}
	x.low, x.high = c.span(func(p Point) float64 { return p.X })
	y.low, y.high = c.span(func(p Point) float64 { return p.Y })
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="24" font-size="15">%s</text>`+"\n", left, escape(c.Title))
	for e := x.low; e <= x.high; e++ {
		at := x.at(math.Pow(10, e))
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", at, top, height-below, at, height-below+18, power(e))
	}
	for e := y.low; e <= y.high; e++ {
		at := y.at(math.Pow(10, e))
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left, at, width-right, left-8, at+4, power(e))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-below+38, escape(c.X))
	fmt.Fprintf(&b, `<text transform="translate(20 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (top+height-below)/2, escape(c.Y))
	for i, line := range c.Lines {
		colour := colours[i%len(colours)]
		var path strings.Builder
		for j, p := range line.Points {
			move := "L"
			if j == 0 {
				move = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", move, x.at(p.X), y.at(p.Y))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s: %s, %s</title></circle>`+"\n",
				x.at(p.X), y.at(p.Y), colour, escape(line.Name), number(p.X), number(p.Y))
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path.String(), colour)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="12" height="3" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			width-right+14, top+14+20*i, colour, width-right+32, top+19+20*i, escape(line.Name))
	}
	for i, part := range strings.SplitN(c.Note, "\n", 3) {
		fmt.Fprintf(&b, `<text x="8" y="%d" font-size="9" fill="#666">%s</text>`+"\n", height-26+12*i, escape(part))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// span returns the range of decades that contains all values of a coordinate, as decimal logarithms. The range has at
// least one decade.
func (c *Chart) span(of func(Point) float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, line := range c.Lines {
		for _, p := range line.Points {
			low, high = min(low, math.Log10(of(p))), max(high, math.Log10(of(p)))
		}
	}
	if low > high { // no points
		return 0, 1
	}
	low, high = math.Floor(low), math.Ceil(high)
	return low, max(high, low+1)
}

func power(e float64) string {
	units := []struct {
		e    float64
		name string
	}{{9, "G"}, {6, "M"}, {3, "k"}}
	for _, u := range units {
		if e >= u.e {
			return number(math.Pow(10, e-u.e)) + " " + u.name
		}
	}
	return number(math.Pow(10, e))
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
