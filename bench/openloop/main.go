// Command openloop runs Dynamo's indexer benchmark on Warmpath's index. From a Mooncake trace, an engine model makes
// the requests and KV events of many holders. The command replays these requests and events at fixed times, without
// waiting for answers. ../README.md lists the differences from the original benchmark.
//
//	go run ./openloop                        the size for a small machine, about 2 minutes
//	go run ./openloop -duplication 20 …      the published size: 128 holders, 20 copies
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/machine"
	"github.com/warmpath/warmpath/bench/internal/naive"
	"github.com/warmpath/warmpath/kvindex"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "openloop:", err)
		os.Exit(1)
	}
}

// provenance has the command and the inputs of a result.
type provenance struct {
	Argv         []string `json:"argv"`
	TracePath    string   `json:"trace_path"`
	TraceSHA256  string   `json:"trace_sha256"`
	CorpusSHA256 string   `json:"corpus_sha256"`
	Blocks       int      `json:"num_gpu_blocks"`
	Holders      int      `json:"num_unique_inference_workers"`
	Length       int      `json:"trace_length_factor"`
	Duplication  int      `json:"trace_duplication_factor"`
	Seed         uint64   `json:"seed"`
	SpinUS       int64    `json:"issuer_spin_us"`
}

// report is the stored result of the command: three figures, and all replays, in order.
type report struct {
	Machine     machine.Facts `json:"machine"`
	Provenance  provenance    `json:"provenance"`
	EnqueueOnly *result       `json:"enqueue_only"`    // replay that issues operations as fast as the queues accept them
	Overload    *result       `json:"drained"`         // replay in the window that the flag -window sets
	KeptUp      *result       `json:"highest_kept_up"` // replay in the shortest window in which the index kept up
	Cells       []*result     `json:"cells"`           // all results, in order
}

func run(args []string) error {
	s := shape{}
	set := settings{}
	flags := flag.NewFlagSet("openloop", flag.ContinueOnError)
	path := flags.String("trace", "../test/testenv/testdata/traces/mooncake_conversation.jsonl.gz", "Mooncake trace")
	flags.IntVar(&s.Holders, "holders", 128, "inference workers")
	flags.IntVar(&s.BlockSize, "block", 128, "tokens in a block")
	flags.IntVar(&s.Blocks, "pool", 16384, "blocks of each holder")
	flags.IntVar(&s.Length, "length", 4, "blocks for each id of the trace")
	flags.IntVar(&s.Duplication, "duplication", 4, "copies of the trace; published runs have 20")
	flags.IntVar(&s.Speedup, "speedup", 10, "of the engine model")
	flags.Uint64Var(&s.Seed, "seed", 42, "of the partition")
	flags.IntVar(&set.Lanes, "lanes", 128, "query lanes")
	flags.IntVar(&set.EventWorkers, "writers", 8, "event workers")
	flags.DurationVar(&set.Spin, "spin", 75*time.Microsecond, "before a deadline")
	flags.DurationVar(&set.Quiescence, "quiescence", 500*time.Millisecond, "before the clock starts")
	window := flags.Duration("window", 750*time.Millisecond, "of the overloaded run")
	steps := flags.Int("steps", 4, "bisections of the search for the highest rate that is kept up")
	out := flags.String("json", "", "file for the report")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if min(s.Holders, s.BlockSize, s.Blocks, s.Length, s.Duplication, s.Speedup, set.Lanes, set.EventWorkers) < 1 || *window <= 0 {
		return errors.New("numbers must be above 0")
	}
	rows, sum, err := readTrace(*path)
	if err != nil {
		return err
	}
	rep := report{Machine: machine.Now()}
	fmt.Println(rep.Machine)
	began := time.Now()
	c, err := build(rows, s)
	if err != nil {
		return err
	}
	fmt.Printf("corpus: %d requests (%d blocks), %d stored events (%d blocks), %d removed (%d), %d block ops, sha256 %s, made in %v\n",
		c.requests, c.requestBlocks, c.events[stored], c.eventBlocks[stored], c.events[removed], c.eventBlocks[removed], c.blocks(), c.sum[:16], time.Since(began).Round(time.Second))
	rep.Provenance = provenance{
		Argv: append([]string{"openloop"}, args...), TracePath: "mooncake trace given by -trace", TraceSHA256: sum, CorpusSHA256: c.sum, Blocks: s.Blocks, Holders: s.Holders,
		Length: s.Length, Duplication: s.Duplication, Seed: s.Seed, SpinUS: set.Spin.Microseconds(),
	}
	asked, err := prepare(c)
	if err != nil {
		return err
	}
	b := bench{c: c, set: set, asked: asked, rep: &rep}
	if err := b.measure(*window, *steps); err != nil {
		return err
	}
	if *out == "" {
		return nil
	}
	data, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return os.WriteFile(*out, append(data, '\n'), 0o644)
}

// bench replays the operations of one corpus several times, each time in another window. The window is the time in
// which all operations are issued.
type bench struct {
	c     *corpus
	set   settings
	asked []feed.Question
	rep   *report
}

// longestWindow ends the search if the index does not keep up with any window: after a longer window, no further window
// is tried.
const longestWindow = 2 * time.Minute

// measure fills the report: a replay that issues all operations without waiting, an overloaded replay, and a search for
// the shortest window in which the index keeps up. The search halves a range of the window's logarithm.
func (b *bench) measure(window time.Duration, steps int) error {
	var err error
	if b.rep.EnqueueOnly, err = b.cell("enqueue only", 0, false); err != nil {
		return err
	}
	if b.rep.Overload, err = b.cell("drained", window, true); err != nil {
		return err
	}
	took := time.Duration(b.rep.Overload.IssueSpan + b.rep.Overload.Drain)
	low, high := took/2, max(took*3/2, window)
	for {
		r, err := b.cell("search", high, false)
		if err != nil {
			return err
		}
		if b.better(r) {
			break
		}
		if high > longestWindow {
			fmt.Println("no window up to", high, "was kept up")
			return nil
		}
		low, high = high, 2*high
	}
	for range steps {
		middle := time.Duration(math.Sqrt(float64(low) * float64(high)))
		r, err := b.cell("search", middle, false)
		if err != nil {
			return err
		}
		if b.better(r) {
			high = middle
		} else {
			low = middle
		}
	}
	k := b.rep.KeptUp
	fmt.Printf("openloop %s: enqueue only %.1f M block ops/s, drained %.1f M, highest kept up %.1f M (window %d ms: lookup p50 %d p99 %d p99.9 %d ns, apply p99 %d ns)\n",
		k.Backend, b.rep.EnqueueOnly.IssuedBlocks/1e6, b.rep.Overload.AchievedBlocks/1e6, k.AchievedBlocks/1e6, k.WindowMS, k.Service.P50, k.Service.P99, k.Service.P999, k.UpdateApplied.P99)
	return nil
}

// better reports whether r is valid and the index kept up. If r is the best such result so far, better stores r as the
// report's KeptUp.
func (b *bench) better(r *result) bool {
	if !r.GeneratorValid || !r.KeptUp {
		return false
	}
	if b.rep.KeptUp == nil || r.WindowMS < b.rep.KeptUp.WindowMS {
		b.rep.KeptUp = r
	}
	return true
}

func (b *bench) cell(name string, window time.Duration, check bool) (*result, error) {
	t := trial{corpus: b.c, settings: b.set, window: window, asked: b.asked}
	if err := t.run(); err != nil {
		return nil, err
	}
	r := t.harvest()
	if check {
		r.EndStateChecked, r.EndStateWrong = t.check()
		if r.EndStateWrong > 0 {
			r.FailureReasons = append(r.FailureReasons, "the end state is wrong")
			r.GeneratorValid = false
		}
	}
	b.rep.Cells = append(b.rep.Cells, &r)
	fmt.Printf("%-12s window=%d ms: issued %.1f M block ops/s, achieved %.1f M, valid=%v kept_up=%v | lookup service p50=%d p99=%d p99.9=%d | update accepted→finished p50=%d p99=%d, apply alone p50=%d p99=%d ns",
		name, r.WindowMS, r.IssuedBlocks/1e6, r.AchievedBlocks/1e6, r.GeneratorValid, r.KeptUp, r.Service.P50, r.Service.P99, r.Service.P999,
		r.UpdateApplied.P50, r.UpdateApplied.P99, r.UpdateService.P50, r.UpdateService.P99)
	if r.EndStateChecked > 0 {
		fmt.Printf(" | end state: %d questions, %d wrong", r.EndStateChecked, r.EndStateWrong)
	}
	fmt.Println()
	return &r, nil
}

// checked is the largest number of queries that check repeats at the end.
const checked = 500

// check compares answers of the index with answers of a naive set to which the same events were applied. Call it after
// all events are applied.
func (t *trial) check() (asked, wrong int) {
	set := naive.New(t.Holders)
	var questions []int
	for i := range t.operations {
		if o := &t.operations[i]; o.kind == query {
			questions = append(questions, i)
		} else if o.kind != cleared {
			r := t.record(o)
			set.Apply(&r)
		}
	}
	var matches []kvindex.Match
	depths := make([]uint16, t.Holders)
	for n := range min(checked, len(questions)) {
		i := questions[len(questions)-1-n*len(questions)/checked]
		o := &t.operations[i]
		matches = t.x.Match(t.asked[i].Keys(), matches[:0])
		feed.Depths(matches, depths)
		asked++
		if !slices.Equal(depths, set.Depths(t.keys[o.from:o.to], nil)) {
			wrong++
		}
	}
	return asked, wrong
}
