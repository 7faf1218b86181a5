package loadgen

import (
	"errors"
	"fmt"
	"math"

	"github.com/warmpath/warmpath/internal/engine"
)

// Point is one measured time: the prefill of one or several prompts of the same length, or a decode pass.
type Point struct {
	Prompt    int     // tokens of each prompt; 0: a decode pass
	Sequences int     // number of requests in the pass
	Context   int     // decode pass: sum of the requests' contexts, in tokens
	MS        float64 // measured time in milliseconds
}

// Quality says how far the times of a fitted profile are from the measurements.
type Quality struct {
	Points int        `json:"points"`
	Errors []Residual `json:"errors"`
}

// Residual compares the measured and the modelled times of one kind, such as the time to first token.
type Residual struct {
	What     string  `json:"what"`
	Count    int     `json:"count"`
	Measured float64 `json:"measured_mean_ms"`
	Modelled float64 `json:"modelled_mean_ms"`
	Bias     float64 `json:"bias"`      // modelled mean divided by measured mean, minus 1
	Absolute float64 `json:"abs_error"` // mean of |modelled/measured - 1|
	Worst    float64 `json:"worst_error"`
}

// FitPoints fits the coefficients of [engine.Linear] to a prefill ladder and a decode ladder. A ladder is a series of
// measurements with growing lengths or numbers of requests. batch is the token budget of a pass: a longer prompt takes
// several passes. overhead is the time in milliseconds that a request needs outside of passes (HTTP, tokenizer,
// scheduling); it is a part of the time to the first token.
func FitPoints(points []Point, batch int) (l engine.Linear, overhead float64, q Quality, err error) {
	prefills, decodes := 0, 0
	var rows [][]float64 // columns: base, token, attention, sequence, context, overhead
	var want []float64
	for _, p := range points {
		if !(p.MS > 0) || p.Sequences < 1 || p.Context < 0 || p.Prompt < 0 {
			return l, 0, q, fmt.Errorf("fit profile: %+v is no measurement", p)
		}
		if p.Prompt > 0 {
			prefills++
		} else {
			decodes++
		}
		rows = append(rows, pointRow(p, batch))
		want = append(want, p.MS)
	}
	if prefills < 2 || decodes < 2 {
		return l, 0, q, fmt.Errorf("fit profile: %d prefills and %d decode passes were measured, want two of each at least", prefills, decodes)
	}
	x := nonNegative(rows, want)
	if x[0]+x[3] <= 0 {
		return l, 0, q, errors.New("fit profile: a pass would take no time; measure decode passes of different sizes")
	}
	l = engine.Linear{Base: x[0], Token: x[1], Attention: x[2], Sequence: x[3], Context: x[4]}
	var prefill, decode residuals
	for i, p := range points {
		model := 0.0
		for j, v := range rows[i] {
			model += v * x[j]
		}
		if p.Prompt > 0 {
			prefill.add(p.MS, model)
		} else {
			decode.add(p.MS, model)
		}
	}
	q = Quality{Points: len(points), Errors: []Residual{prefill.result("prefill"), decode.result("decode pass")}}
	return l, x[5], q, nil
}

func pointRow(p Point, batch int) []float64 {
	if p.Prompt == 0 {
		return []float64{1, 0, 0, float64(p.Sequences), float64(p.Context), 0}
	}
	n, k := float64(p.Prompt), float64(p.Sequences)
	passes := math.Ceil(n * k / float64(max(batch, 1)))
	return []float64{passes, n * k, k * n * n / 2, 0, 0, 1}
}

// residuals sums up pairs of a measured and a modelled time.
type residuals struct {
	n                  int
	measured, modelled float64
	absolute, worst    float64
}

func (r *residuals) add(measured, modelled float64) {
	e := math.Abs(modelled/measured - 1)
	r.n++
	r.measured += measured
	r.modelled += modelled
	r.absolute += e
	r.worst = max(r.worst, e)
}

func (r *residuals) result(what string) Residual {
	if r.n == 0 {
		return Residual{What: what}
	}
	n := float64(r.n)
	return Residual{
		What: what, Count: r.n, Measured: r.measured / n, Modelled: r.modelled / n,
		Bias: r.modelled/r.measured - 1, Absolute: r.absolute / n, Worst: r.worst,
	}
}

// nonNegative finds coefficients x, none of them negative, with rows·x ≈ want. The sum of the squared relative errors
// is the least possible. nonNegative tries each set of coefficients that may be above 0 and solves a small linear
// system for it. Six coefficients have 63 such sets.
func nonNegative(rows [][]float64, want []float64) []float64 {
	n := len(rows[0])
	scale := make([]float64, n) // largest value of each column; columns differ by up to ten orders of magnitude
	for _, row := range rows {
		for j, v := range row {
			scale[j] = max(scale[j], v)
		}
	}
	best, least := make([]float64, n), math.Inf(1)
	for chosen := 1; chosen < 1<<n; chosen++ {
		x, ok := leastSquares(rows, want, scale, chosen)
		if !ok {
			continue
		}
		sum := 0.0
		for i, row := range rows {
			model := 0.0
			for j, v := range row {
				model += v * x[j]
			}
			e := model/want[i] - 1
			sum += e * e
		}
		// A set replaces the best set so far only if it reduces the error by more than a millionth.
		if sum < least*(1-1e-6) {
			best, least = x, sum
		}
	}
	return best
}

// leastSquares solves the system for the chosen columns (a bit set); the coefficients of all other columns are 0. It
// returns false if the system is singular or the solution has a negative coefficient.
func leastSquares(rows [][]float64, want, scale []float64, chosen int) ([]float64, bool) {
	var columns []int
	for j := range scale {
		if chosen>>j&1 == 1 {
			if scale[j] == 0 {
				return nil, false
			}
			columns = append(columns, j)
		}
	}
	n := len(columns)
	m := make([][]float64, n) // normal equations; the last column is the right side
	for a := range m {
		m[a] = make([]float64, n+1)
	}
	for i, row := range rows {
		for a, ca := range columns {
			va := row[ca] / scale[ca] / want[i]
			for b, cb := range columns {
				m[a][b] += va * row[cb] / scale[cb] / want[i]
			}
			m[a][n] += va
		}
	}
	solution, ok := solve(m)
	if !ok {
		return nil, false
	}
	x := make([]float64, len(scale))
	for a, c := range columns {
		if solution[a] < 0 {
			return nil, false
		}
		x[c] = solution[a] / scale[c]
	}
	return x, true
}

// solve solves the linear system m by elimination. The last column of m is the right side.
func solve(m [][]float64) ([]float64, bool) {
	n := len(m)
	for c := range n {
		pivot := c
		for r := c; r < n; r++ {
			if math.Abs(m[r][c]) > math.Abs(m[pivot][c]) {
				pivot = r
			}
		}
		m[c], m[pivot] = m[pivot], m[c]
		if math.Abs(m[c][c]) < 1e-12 {
			return nil, false
		}
		for r := range n {
			if r == c {
				continue
			}
			f := m[r][c] / m[c][c]
			for k := c; k <= n; k++ {
				m[r][k] -= f * m[c][k]
			}
		}
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = m[i][n] / m[i][i]
	}
	return x, true
}
