// Command growth measures how lookup time and memory of the index grow: with the number of blocks at 8 holders, and
// with the number of holders at a fixed number of blocks. It prints text, and writes JSON and SVG drawings. See
// ../README.md.
//
//	go run ./growth -dir results                       1 M and 10 M blocks, 8 to 4,096 holders
//	go run ./growth -blocks 1000000,10000000,100000000   up to 100 M blocks: needs tens of gigabytes of memory
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/latency"
	"github.com/warmpath/warmpath/bench/internal/machine"
	"github.com/warmpath/warmpath/bench/internal/plot"
	"github.com/warmpath/warmpath/bench/internal/synth"
	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "growth:", err)
		os.Exit(1)
	}
}

// The workload: all holders have the blocks of a shared prefix, such as a system prompt. Each holder also has chains of
// its own that begin with this prefix. A lookup asks for a whole chain: all holders match the prefix, and one holder
// matches the whole chain.
const (
	sharedBlocks = 64
	chainBlocks  = 512
	probes       = 2000
	lookups      = 20_000
)

// result has the measurements of an index of one size.
type result struct {
	Holders       int     `json:"holders"`
	Memberships   int64   `json:"memberships"`
	Distinct      int64   `json:"distinct_blocks"`
	IndexBytes    int64   `json:"index_bytes"`
	ResidentBytes int64   `json:"resident_bytes"` // measured after free memory was returned to the system
	BytesPerPair  float64 `json:"resident_bytes_per_membership"`
	StoreRate     float64 `json:"store_m_blocks_per_s"`
	MatchP50      uint32  `json:"match_p50_ns"`
	MatchP99      uint32  `json:"match_p99_ns"`
	MatchMax      uint32  `json:"match_max_ns"`
	MissP50       uint32  `json:"miss_p50_ns"`
}

func run(args []string) error {
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	blocks := flags.String("blocks", "1000000,10000000", "numbers of (holder, block) pairs, at 8 holders")
	holders := flags.String("holders", "8,64,512,4096", "numbers of holders, at 2 M pairs")
	point := flags.String("point", "", "HOLDERS,PAIRS: measure one size and print it as JSON (each size is a process of its own)")
	dir := flags.String("dir", "", "folder for growth.json, growth-blocks.svg, growth-bytes.svg and growth-holders.svg")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *point != "" {
		return measurePoint(*point)
	}
	sizes, err := numbers(*blocks)
	if err != nil {
		return err
	}
	fleets, err := numbers(*holders)
	if err != nil {
		return err
	}
	facts := machine.Now()
	fmt.Println(facts)
	var byBlocks, byHolders []result
	for _, n := range sizes {
		r, err := inProcess(8, n)
		if err != nil {
			return err
		}
		byBlocks = append(byBlocks, r)
	}
	for _, n := range fleets {
		r, err := inProcess(n, 2_000_000)
		if err != nil {
			return err
		}
		byHolders = append(byHolders, r)
	}
	if *dir == "" {
		return nil
	}
	return write(*dir, facts, byBlocks, byHolders)
}

// inProcess measures one size in a new process, so that the memory of other sizes does not affect it.
func inProcess(holders, pairs int) (result, error) {
	var r result
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.Command(self, "-point", fmt.Sprintf("%d,%d", holders, pairs))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("measure %d pairs on %d holders: %w", pairs, holders, err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("measure %d pairs on %d holders: %w", pairs, holders, err)
	}
	fmt.Printf("growth holders=%d memberships=%d: match p50=%d p99=%d max=%d, miss p50=%d ns | resident %.1f B a membership, index counts %.1f | stored %.2f M blocks/s\n",
		holders, r.Memberships, r.MatchP50, r.MatchP99, r.MatchMax, r.MissP50, r.BytesPerPair,
		float64(r.IndexBytes)/float64(r.Memberships), r.StoreRate)
	return r, nil
}

func measurePoint(point string) error {
	n, err := numbers(point)
	if err != nil {
		return err
	}
	if len(n) != 2 || n[0] > trace.MaxWorkers {
		return fmt.Errorf("-point %s: give HOLDERS,PAIRS with at most %d holders", point, trace.MaxWorkers)
	}
	r, err := measure(n[0], n[1])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func numbers(s string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a list of numbers above 0", s)
		}
		all = append(all, n)
	}
	return all, nil
}

// chain fills a record with the blocks [from, to) of chain number c. The first sharedBlocks blocks are the same in all
// chains.
func chain(r *trace.Record, c uint64, from, to int) {
	r.Locals, r.Keys = r.Locals[:0], r.Keys[:0]
	parent := r.Parent
	for i := from; i < to; i++ {
		local := block.Mix64(uint64(i))
		if i >= sharedBlocks {
			local = block.Mix64(c<<20 | uint64(i))
		}
		key := local
		if i > 0 {
			key = synth.NextKey(parent, local)
		}
		r.Locals, r.Keys = append(r.Locals, local), append(r.Keys, key)
		parent = key
	}
	r.EngineHashes = r.Keys
}

// measure builds an index of the given size, and measures lookups and memory.
func measure(holders, memberships int) (result, error) {
	out := result{Holders: holders}
	debug.FreeOSMemory()
	before, err := machine.ResidentBytes()
	if err != nil {
		return out, err
	}
	x, err := feed.New(16)
	if err != nil {
		return out, err
	}
	chains, taken := build(x, holders, memberships)
	stats := x.Stats()
	out.Memberships, out.Distinct, out.IndexBytes = stats.Memberships, stats.Blocks, stats.Bytes
	out.StoreRate = float64(stats.Memberships) / float64(taken) * 1e3
	debug.FreeOSMemory()
	after, err := machine.ResidentBytes()
	if err != nil {
		return out, err
	}
	out.ResidentBytes = after - before
	out.BytesPerPair = float64(out.ResidentBytes) / float64(out.Memberships)
	if err := ask(x, holders, chains, &out); err != nil {
		return out, err
	}
	runtime.KeepAlive(x)
	return out, nil
}

// build stores the shared prefix at every holder, and then chains at the holders in turn. It returns the number of
// chains, and the time in ns for which Apply ran.
func build(x *feed.Index, holders, memberships int) (chains int, taken int64) {
	r := trace.Record{Kind: trace.Stored, Units: 1}
	clock := latency.NewClock()
	var e feed.Event
	apply := func() {
		e = x.Event(&r, &e)
		start := clock.Now()
		x.Apply(&e)
		taken += clock.Now() - start
	}
	for h := range holders {
		r.Worker = uint32(h)
		chain(&r, 0, 0, sharedBlocks)
		apply()
	}
	r.HasParent, r.Parent = true, r.Keys[sharedBlocks-1]
	for n := holders * sharedBlocks; n < memberships || chains < holders; n += chainBlocks - sharedBlocks {
		r.Worker = uint32(chains % holders)
		chain(&r, uint64(chains), sharedBlocks, chainBlocks)
		apply()
		chains++
	}
	return chains, taken
}

// ask measures the times of two kinds of lookups: whole chains from all parts of the index, and chains that are not in
// the index.
func ask(x *feed.Index, holders, chains int, out *result) error {
	var questions, misses []feed.Question
	for i := range probes {
		r := trace.Record{Kind: trace.Probe, Units: 1}
		c := i * chains / probes
		chain(&r, uint64(c), 0, chainBlocks)
		questions = append(questions, x.Question(&r, 0))
		r.Keys[0], r.Locals[0] = block.Mix64(uint64(i)<<40), block.Mix64(uint64(i)<<40)
		misses = append(misses, x.Question(&r, 0))
	}
	clock := latency.NewClock()
	matches := make([]kvindex.Match, 0, holders)
	timed := func(questions []feed.Question, n int) latency.Samples {
		var all latency.Samples
		for i := range n {
			q := &questions[i*7919%len(questions)]
			start := clock.Now()
			matches = x.Match(q.Keys(), matches[:0])
			all.Add(clock.Now() - start)
		}
		all.Sort()
		return all
	}
	timed(questions, probes)
	if len(matches) != holders {
		return fmt.Errorf("%d holders matched of %d", len(matches), holders)
	}
	n := lookups
	if holders > 64 {
		n = probes
	}
	hits := timed(questions, n)
	out.MatchP50, out.MatchP99, out.MatchMax = hits.Quantile(0.5), hits.Quantile(0.99), hits.Quantile(1)
	out.MissP50 = timed(misses, n).Quantile(0.5)
	return nil
}

// write stores results and drawings.
func write(dir string, facts machine.Facts, byBlocks, byHolders []result) error {
	data, err := json.MarshalIndent(struct {
		Machine   machine.Facts `json:"machine"`
		ByBlocks  []result      `json:"by_blocks"`
		ByHolders []result      `json:"by_holders"`
	}{facts, byBlocks, byHolders}, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "growth.json"), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	line := func(name string, of []result, x, y func(*result) float64) plot.Line {
		l := plot.Line{Name: name}
		for i := range of {
			l.Points = append(l.Points, plot.Point{X: x(&of[i]), Y: y(&of[i])})
		}
		return l
	}
	blocks := func(r *result) float64 { return float64(r.Memberships) }
	fleet := func(r *result) float64 { return float64(r.Holders) }
	p50 := func(r *result) float64 { return float64(r.MatchP50) }
	p99 := func(r *result) float64 { return float64(r.MatchP99) }
	note := strings.Replace(facts.String(), " · commit ", "\ncommit ", 1)
	charts := map[string]plot.Chart{
		"growth-blocks.svg": {Title: "Match of 512 blocks, 8 holders", X: "(holder, block) pairs", Y: "ns", Note: note,
			Lines: []plot.Line{line("p50", byBlocks, blocks, p50), line("p99", byBlocks, blocks, p99)}},
		"growth-bytes.svg": {Title: "Resident memory, 8 holders", X: "(holder, block) pairs", Y: "MiB", Note: note,
			Lines: []plot.Line{line("resident", byBlocks, blocks, func(r *result) float64 { return float64(max(r.ResidentBytes, 1)) / (1 << 20) })}},
		"growth-holders.svg": {Title: "Match of 512 blocks, 64 of them shared by all", X: "holders", Y: "ns", Note: note,
			Lines: []plot.Line{line("p50", byHolders, fleet, p50), line("p99", byHolders, fleet, p99)}},
	}
	var problems []error
	for name, c := range charts {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("write drawing: %w", err)
		}
		problems = append(problems, c.Write(f), f.Close())
	}
	return errors.Join(problems...)
}
