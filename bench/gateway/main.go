// Command gateway makes a table of the lines that the client ./load wrote during run.sh.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// line is one run of the load client, or the memory of a router before a run (mode start).
type line struct {
	Mode      string  `json:"mode"`
	Workload  string  `json:"wl"`
	Target    string  `json:"target"`
	OK        int     `json:"ok"`
	N         int     `json:"n"`
	PerSecond float64 `json:"rps"`
	TTFT99    float64 `json:"ttft_p99"` // µs
	// Added50 is the difference to the target direct in µs. It is absent for the target direct.
	Added50  float64        `json:"added_ttft_p50"`
	TTFT50   float64        `json:"ttft_p50"`
	CPU      float64        `json:"cpu_us_router"` // processor time of the router for each request, in µs
	Resident float64        `json:"rss_mb_router"`
	StartMB  float64        `json:"mb"`
	Errors   map[string]int `json:"errors"`
}

// names has the rows of the table in order, each with the name of the target and the title of the row.
var names = []struct{ target, title string }{
	{"nginx", "nginx, round robin"},
	{"smg", "smg 1.13.0, cache_aware"},
	{"cached", "**warmpath, kv_aware, tokens cached**"},
	{"cold", "warmpath, kv_aware, tokens asked for each request"},
	{"rr", "warmpath, round_robin"},
	{"local", "warmpath, kv_aware, ids made in process for each request"},
	{"tenants", "cached, with a tenant that has every limit"},
	{"access", "cached, with the access log"},
	{"decisions", "cached, with the decision log"},
	{"traces", "cached, with a trace of each request"},
	{"other", "the other binary, kv_aware, tokens cached"},
	{"vllm-router", "vllm-router 0.1.17, its prefill/decode mode"},
	{"legs", "**warmpath, each request in two legs**"},
	{"alone", "warmpath, the decode worker alone"},
}

func main() {
	passes := flag.Int("passes", 0, "how many passes the medians are over")
	commit := flag.String("commit", "", "what was measured")
	nginx := flag.String("nginx", "", "nginx's version")
	legs := flag.Bool("legs", false, "the lines are those of legs.sh")
	flag.Parse()
	lines, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
	title, script, about := "# The gateway beside others", "run.sh", aboutGateway
	if *legs {
		title, script, about = "# Requests in two legs beside others", "legs.sh", aboutLegs
	}
	fmt.Printf("%s\n\n%s\n\n", title, machine())
	fmt.Printf("Commit %s, %s, %s: `bash bench/gateway/%s`. Figures are medians of %d passes; all rows took\nturns in one run. Two mock workers stream 64 chunks, each flushed.\n\n", *commit, runtime.Version(), *nginx, script, *passes)
	fmt.Print(about)
	for _, w := range []string{"a", "b", "8k", "64k", "512k"} {
		table(os.Stdout, lines, w)
	}
	for _, l := range lines {
		if l.OK != l.N {
			fmt.Printf("- %s %s %s: %d of %d failed: %v\n", l.Mode, l.Workload, l.Target, l.N-l.OK, l.N, l.Errors)
		}
	}
}

const aboutGateway = `- *Workload a*: prompts of 250 bytes, all different. *Workload b*: bodies of 33 KB, with a prefix of 24 KB that 50
  sessions share.
- *Added* is how much later the first token comes with the router than without. One client sends each request to all
  routers and directly to a worker, in turn. *Added p50* is the median of the differences between a router and the
  worker; *added p99* is the difference of the two p99.
- *Ratios* to nginx are in parentheses: the median over the passes of the ratio within a pass; the least and the
  greatest one.
- *Paced streams*: 100 requests arrive each second, and the workers send a chunk every 5 ms.
- *req/s* is with 32 clients; with 8 clients in the workloads 8k, 64k and 512k.
- *Resident MB* is the memory of the router's processes, at the start → after the run for req/s (*loaded*).
- *CPU* is the user and system time of the router's processes.
- *Tokens cached*: the router remembers the token ids of every prompt. *Tokens asked*: the router asks a worker for the
  token ids of each request. *Ids made in process*: the router has the model's tokenizer and chat template, and
  remembers no ids.
- *Workloads 8k, 64k and 512k*: prompts of so many bytes that share nothing.

`

const aboutLegs = `The prompt of each request is computed at one worker, and its answer comes from the other (NIXL, pull). The workers
compute nothing, so the figures are the cost of the router.

- *Direct*: the client itself sends both legs to the workers, one after the other. *nginx*: the client itself sends both
  legs, each through nginx. The other rows send one request to the router, which makes both legs of it.
- *Workload a*: prompts of 250 bytes, all different. *Workload b*: bodies of 33 KB, with a prefix of 24 KB that 50
  sessions share.
- *Added* is how much later the first token comes than directly. One client sends each request to all routers and
  directly, in turn. *Added p50* is the median of the differences; *added p99* is the difference of the two p99.
- *Ratios* to nginx are in parentheses: the median over the passes of the ratio within a pass; the least and the
  greatest one.
- *Paced streams*: 60 requests arrive each second, and the workers send a chunk every 5 ms.
- *req/s* is with 32 clients. *CPU* is the user and system time of the router's processes for a whole request, with
  both legs. *Resident MB*: at the start → after the run for req/s.

`

func read(r io.Reader) ([]line, error) {
	var lines []line
	in := bufio.NewScanner(r)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("read line %d: %w", len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	return lines, in.Err()
}

// table prints the table of one workload. In the rows after nginx, each figure except the memory has the ratio to
// nginx's figure behind it, in parentheses.
func table(out io.Writer, lines []line, workload string) {
	if !slices.ContainsFunc(lines, func(l line) bool { return l.Workload == workload }) {
		return
	}
	figure := func(mode, target string, value func(line) float64) []float64 {
		return figures(lines, mode, workload, target, value)
	}
	ttft99 := func(l line) float64 { return l.TTFT99 }
	perSecond := func(l line) float64 { return l.PerSecond }
	cpu := func(l line) float64 { return l.CPU }
	direct99 := figure("cycle", "direct", ttft99)
	fmt.Fprintf(out, "## Workload %s\n\nDirect: time to first token %.0f/%.0f µs (p50/p99), %.0f req/s.\n\n", workload,
		median(figure("cycle", "direct", func(l line) float64 { return l.TTFT50 })), median(direct99), median(figure("closed", "direct", perSecond)))
	fmt.Fprint(out, "| | added p50, µs | added p99, µs | req/s | CPU µs/request | paced streams: CPU µs/request | resident MB: start → loaded |\n|---|---|---|---|---|---|---|\n")
	columns := []struct {
		mode   string
		value  func(line) float64
		offset []float64 // is subtracted in each pass
	}{
		{"cycle", func(l line) float64 { return l.Added50 }, nil},
		{"cycle", ttft99, direct99},
		{"closed", perSecond, nil},
		{"closed", cpu, nil},
		{"open", cpu, nil},
	}
	for _, row := range names {
		if !slices.ContainsFunc(lines, func(l line) bool { return l.Target == row.target && l.Workload == workload }) {
			continue
		}
		cells := []string{row.title}
		for _, c := range columns {
			own := minus(figure(c.mode, row.target, c.value), c.offset)
			if len(own) == 0 {
				cells = append(cells, "–")
				continue
			}
			cell := fmt.Sprintf("%.0f", median(own))
			if row.target != "nginx" {
				cell += ratio(own, minus(figure(c.mode, "nginx", c.value), c.offset))
			}
			cells = append(cells, cell)
		}
		start := median(figures(lines, "start", "", row.target, func(l line) float64 { return l.StartMB }))
		cells = append(cells, fmt.Sprintf("%.0f → %.0f", start, median(figure("closed", row.target, func(l line) float64 { return l.Resident }))))
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintln(out)
}

// figures returns a figure of each pass, in the order of the passes.
func figures(lines []line, mode, workload, target string, value func(line) float64) (all []float64) {
	for _, l := range lines {
		if l.Mode == mode && l.Workload == workload && l.Target == target {
			all = append(all, value(l))
		}
	}
	return all
}

// minus returns the figures less the offset of their pass.
func minus(figures, offset []float64) []float64 {
	for i := range min(len(figures), len(offset)) {
		figures[i] -= offset[i]
	}
	return figures
}

// ratio returns the median of the ratios within a pass, and the least and the greatest one. The machine's speed differs
// from pass to pass, so the ratio of two medians would compare figures of different passes. It returns "" if base is
// not positive in each pass.
func ratio(own, base []float64) string {
	if len(base) != len(own) || slices.Min(base) <= 0 {
		return ""
	}
	r := make([]float64, len(own))
	for i := range own {
		r[i] = own[i] / base[i]
	}
	return fmt.Sprintf(" (%.2f; %.2f–%.2f)", median(r), slices.Min(r), slices.Max(r))
}

// median returns the median of figures, or 0 if there is none.
func median(figures []float64) float64 {
	if len(figures) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(figures))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// machine returns a description of the machine from the files in /proc.
func machine() string {
	first := func(path, key string) string {
		data, _ := os.ReadFile(path) // on systems without /proc the result is "unknown"
		for l := range strings.Lines(string(data)) {
			if rest, found := strings.CutPrefix(l, key); found {
				return strings.Trim(rest, "\t :\n")
			}
		}
		return "unknown"
	}
	load := strings.Fields(first("/proc/loadavg", ""))
	return fmt.Sprintf("%d cores (%s), Linux %s, load average %s over 1, 5 and 15 minutes at the end.", runtime.NumCPU(),
		first("/proc/cpuinfo", "model name"), first("/proc/sys/kernel/osrelease", ""), strings.Join(load[:min(3, len(load))], ", "))
}
