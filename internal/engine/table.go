package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Table gives the time of a pass from measurements. It interpolates prefill points linearly and extends the lines
// beyond the first and the last point. For a pass with prefills and decodes, the time is the sum of the prefill time
// and the decode time without the fixed part that every decode pass has.
type Table struct {
	Prefill []PrefillPoint `json:"prefill"` // at least two points, measured with prompts without cached tokens
	Decode  []DecodePoint  `json:"decode"`  // at least two points
	Load    float64        `json:"load_ms"` // ms for each token that is loaded from the CPU tier
}

// PrefillPoint is the measured time of a pass with the given number of prompt tokens.
type PrefillPoint struct {
	Tokens int     `json:"tokens"`
	MS     float64 `json:"ms"`
}

// DecodePoint is the measured time of a pass in which each of Sequences requests got one token. Context is the sum of
// the requests' contexts in tokens.
type DecodePoint struct {
	Sequences int     `json:"sequences"`
	Context   int     `json:"context"`
	MS        float64 `json:"ms"`
}

func (t *Table) validate() error {
	var errs []error
	if len(t.Prefill) < 2 {
		errs = append(errs, fmt.Errorf("table.prefill has %d rows, want 2 at least", len(t.Prefill)))
	}
	if len(t.Decode) < 2 {
		errs = append(errs, fmt.Errorf("table.decode has %d rows, want 2 at least", len(t.Decode)))
	}
	slices.SortFunc(t.Prefill, func(a, b PrefillPoint) int { return cmp.Compare(a.Tokens, b.Tokens) })
	for i, p := range t.Prefill {
		if p.Tokens <= 0 || !(p.MS > 0) || i > 0 && t.Prefill[i-1].Tokens == p.Tokens {
			errs = append(errs, fmt.Errorf("table.prefill: %d tokens in %v ms: each length once, both above 0", p.Tokens, p.MS))
		}
	}
	for _, p := range t.Decode {
		if p.Sequences <= 0 || p.Context < 0 || !(p.MS > 0) {
			errs = append(errs, fmt.Errorf("table.decode: %d sequences, %d tokens in %v ms", p.Sequences, p.Context, p.MS))
		}
	}
	return errors.Join(errs...)
}

// compiled is a validated table. Its decode time is a plane that is fitted to the decode points, because measured
// points seldom form a grid.
type compiled struct {
	Table
	base, sequence, context float64
}

func (t Table) compile() compiled {
	c := compiled{Table: t}
	c.base, c.sequence, c.context = fitPlane(t.Decode)
	return c
}

// fitPlane returns the least-squares plane through the points. It allows no negative slope, because more work is never
// faster.
func fitPlane(points []DecodePoint) (base, sequence, context float64) {
	var n, x, y, z, xx, yy, xy, xz, yz float64
	for _, p := range points {
		a, b := float64(p.Sequences), float64(p.Context)
		n, x, y, z = n+1, x+a, y+b, z+p.MS
		xx, yy, xy, xz, yz = xx+a*a, yy+b*b, xy+a*b, xz+a*p.MS, yz+b*p.MS
	}
	sxx, syy, sxy := xx-x*x/n, yy-y*y/n, xy-x*y/n
	sxz, syz := xz-x*z/n, yz-y*z/n
	if det := sxx*syy - sxy*sxy; det > 1e-9*sxx*syy {
		sequence, context = (sxz*syy-syz*sxy)/det, (syz*sxx-sxz*sxy)/det
	}
	// If one slope is not determined or is negative, set it to 0 and fit only the other slope.
	switch {
	case sequence > 0 && context > 0:
	case syy > 0 && (sxx == 0 || context > 0):
		sequence, context = 0, max(syz/syy, 0)
	case sxx > 0:
		sequence, context = max(sxz/sxx, 0), 0
	}
	return max((z-sequence*x-context*y)/n, 0), sequence, context
}

// Duration implements [Timing].
func (c compiled) Duration(b *Batch) time.Duration {
	decode := c.sequence*float64(b.Decodes) + c.context*float64(b.DecodeContext)
	ms := c.base + decode
	if b.PrefillTokens > 0 {
		ms = max(c.prefill(float64(b.PrefillTokens)), c.base) + decode
	}
	return milliseconds(ms + c.Load*float64(b.Loaded))
}

func (c *compiled) prefill(tokens float64) float64 {
	p := c.Prefill
	i, _ := slices.BinarySearchFunc(p, tokens, func(p PrefillPoint, n float64) int { return cmp.Compare(float64(p.Tokens), n) })
	i = min(max(i, 1), len(p)-1)
	a, b := p[i-1], p[i]
	return a.MS + (b.MS-a.MS)*(tokens-float64(a.Tokens))/float64(b.Tokens-a.Tokens)
}
