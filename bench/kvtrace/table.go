package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/bench/internal/machine"
)

// cell identifies a figure that kvtrace prints for Warmpath and peerbench prints for the peers.
type cell struct {
	// verb of kvtrace; lookup-local and lookup-tokens are compared with the peers' verb lookup, which begins with local
	// hashes
	verb   string
	file   string
	what   string // case: a prompt length, a cut of events, or an event rate
	metric string
}

// figures has the values of one cell: by index, a value for each pass.
type figures map[string][]float64

// shape describes the line that a verb prints.
type shape struct {
	verb    string
	line    *regexp.Regexp // groups: the name of the index, cell.what (may be empty), and then a group for each metric
	metrics []string
}

var shapes = []shape{
	{"lookup", regexp.MustCompile(`^lookup (\S+) len=(\d+) .*? p50=(\d+) .*? p99=(\d+) `), []string{"p50 ns", "p99 ns"}},
	{"lookup-local", regexp.MustCompile(`^lookup-local (\S+) len=(\d+) .*? p50=(\d+) .*? p99=(\d+) `), []string{"p50 ns", "p99 ns"}},
	{"lookup-tokens", regexp.MustCompile(`^lookup-tokens (\S+) len=(\d+) .*? p50=(\d+) .*? p99=(\d+) `), []string{"p50 ns", "p99 ns"}},
	{"replay", regexp.MustCompile(`^replay (\S+): ()in-trace.*? p50=(\d+) p90=(\d+) p99=(\d+) `), []string{"p50 ns", "p90 ns", "p99 ns"}},
	{"apply", regexp.MustCompile(`^apply (\S+) split=(\d+): .*block ops \(stored\+removed\) ([\d.]+) M/s`), []string{"M block ops/s"}},
	{"mem", regexp.MustCompile(`^mem (\S+) cleanup=\S+: ()live.*? after \S+ \S+ MiB \((-?[\d.]+) B/entry`), []string{"B/entry"}},
	{"conc", regexp.MustCompile(`^conc (\S+) rate=(\S+): .*? p50=(\d+) .*? p99=(\d+) .*sent ([\d.]+) M`), []string{"p50 ns", "p99 ns", "writer M/s"}},
}

var verifyLine = regexp.MustCompile(`^verify (\S+): queries=(\d+) wrong=(\d+) \(worker-depths too high (\d+), too low (\d+)\)`)

var hashLine = regexp.MustCompile(`^hash (.*?): n=.* p50=(\d+) .* p99=(\d+) `)

const ours = "warmpath-"

// table reads lines of the form "FILE<tab>LINE". LINE is a line that kvtrace or peerbench printed. The lines may come
// from several passes. For each cell, table writes the median of Warmpath's figures divided by the median of the best
// peer's figures.
func table(in io.Reader, out io.Writer) error {
	cells := map[cell]figures{}
	var answers, hashes []string
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		file, line, ok := strings.Cut(lines.Text(), "\t")
		if !ok {
			continue
		}
		if m := verifyLine.FindStringSubmatch(line); m != nil {
			answers = append(answers, fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", file, m[1], m[2], m[3], m[4], m[5]))
		} else if name, refused, ok := strings.Cut(line, " refused: "); ok {
			answers = append(answers, fmt.Sprintf("| %s | %s | | refused: %s | | |", file, name, refused))
		}
		if m := hashLine.FindStringSubmatch(line); m != nil {
			hashes = append(hashes, fmt.Sprintf("| %s | %s | %s |", m[1], m[2], m[3]))
		}
		read(cells, file, line)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read lines: %w", err)
	}
	facts := machine.Now()
	if c := os.Getenv("COMPARE_COMMAND"); c != "" {
		facts.Command = c
	}
	fmt.Fprintf(out, "%v\n\n", facts)
	if len(answers) > 0 {
		fmt.Fprint(out, "| trace | index | questions | wrong | worker depths too high | too low |\n|---|---|---|---|---|---|\n", strings.Join(answers, "\n"), "\n\n")
	}
	if len(cells) > 0 {
		writeRatios(out, cells)
	}
	if len(hashes) > 0 {
		fmt.Fprint(out, "\n| hashing | p50 ns | p99 ns |\n|---|---|---|\n", strings.Join(hashes, "\n"),
			"\n\nGoal: 8,192 tokens to chained keys in at most 3,000 ns; a peer's figure is its local hashes plus its chain.\n")
	}
	return nil
}

func read(cells map[cell]figures, file, line string) {
	for _, s := range shapes {
		m := s.line.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for i, metric := range s.metrics {
			c := cell{s.verb, file, m[2], metric}
			v, err := strconv.ParseFloat(m[3+i], 64)
			if err != nil {
				continue // the pattern allows only numbers
			}
			if cells[c] == nil {
				cells[c] = figures{}
			}
			cells[c][m[1]] = append(cells[c][m[1]], v)
		}
	}
}

func writeRatios(out io.Writer, cells map[cell]figures) {
	met, missed := 0, 0
	fmt.Fprint(out, "| cell | ours | | best peer | | ours / best | goal | |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range slices.SortedFunc(maps.Keys(cells), byPlace) {
		peers := cells[c]
		if c.verb == "lookup-local" || c.verb == "lookup-tokens" {
			peers = cells[cell{"lookup", c.file, c.what, c.metric}]
		}
		best, bestValue := bestPeer(c, peers)
		for _, name := range slices.Sorted(maps.Keys(cells[c])) {
			if !strings.HasPrefix(name, ours) {
				continue
			}
			value := median(cells[c][name])
			ratio := "–"
			if best != "" {
				ratio = fmt.Sprintf("%.2f", value/bestValue)
			}
			goal, ok := judge(c, value, bestValue)
			mark := ""
			switch {
			case goal == "" || best == "" && c.verb != "mem":
			case ok:
				mark = "met"
				met++
			default:
				mark = "**missed**"
				missed++
			}
			fmt.Fprintf(out, "| %s %s %s %s | %s | %s | %s | %s | %s | %s | %s |\n", c.verb, c.file, c.what, c.metric,
				strings.TrimPrefix(name, ours), number(value), best, number(bestValue), ratio, goal, mark)
		}
	}
	fmt.Fprintf(out, "\nGoals met %d, missed %d.\n", met, missed)
}

func byPlace(a, b cell) int {
	whatA, _ := strconv.Atoi(a.what)
	whatB, _ := strconv.Atoi(b.what)
	return cmp.Or(cmp.Compare(a.verb, b.verb), cmp.Compare(a.file, b.file), cmp.Compare(whatA, whatB), cmp.Compare(a.metric, b.metric))
}

// more reports whether larger figures of the cell are better.
func (c cell) more() bool { return c.metric == "M block ops/s" || c.metric == "writer M/s" }

func bestPeer(c cell, f figures) (name string, value float64) {
	for _, peer := range slices.Sorted(maps.Keys(f)) {
		if strings.HasPrefix(peer, ours) {
			continue
		}
		v := median(f[peer])
		if name == "" || c.more() && v > value || !c.more() && v < value {
			name, value = peer, v
		}
	}
	return name, value
}

// memoryGoals has, by file, the goal for memory in bytes for each pair of a worker and a block that it holds.
var memoryGoals = map[string]float64{"mem1m": 40, "shared": 6, "main": 52}

// judge returns the goal for a figure as text, and whether the figure meets the goal. The text is empty if there is no
// goal. best is the best peer's figure.
func judge(c cell, value, best float64) (goal string, ok bool) {
	atMost := func(factor float64) (string, bool) { return fmt.Sprintf("≤ %.2f", factor), value <= factor*best }
	switch c.verb {
	case "lookup", "replay":
		return atMost(0.9)
	case "lookup-local": // lookup-tokens has no goal: the peers hash tokens outside of the measured time
		return atMost(1)
	case "conc":
		if c.metric != "writer M/s" {
			return atMost(0.8)
		}
	case "apply":
		return "≥ 0.60", value >= 0.6*best
	case "mem":
		if limit := memoryGoals[c.file]; limit > 0 {
			return fmt.Sprintf("≤ %g B", limit), value <= limit
		}
	}
	return "", false
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func number(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
