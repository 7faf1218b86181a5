package main

import (
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/latency"
	"github.com/warmpath/warmpath/bench/internal/synth"
	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// asker makes lookups and measures their times. It allocates its buffers before the lookups, as a router does.
type asker struct {
	x       *feed.Index
	clock   latency.Clock
	from    start
	keys    []block.Key
	matches []kvindex.Match
	depths  []uint16
}

// start says with which data a lookup begins: keys, local hashes or tokens.
type start uint8

const (
	fromKeys start = iota
	fromLocals
	fromTokens
)

func newAsker(x *feed.Index, workers int, from start) *asker {
	return &asker{
		x: x, clock: latency.NewClock(), from: from, keys: make([]block.Key, 0, 1024),
		matches: make([]kvindex.Match, 0, workers), depths: make([]uint16, workers),
	}
}

// ask looks up q and returns the duration in nanoseconds. The answer is in a.matches.
func (a *asker) ask(q *feed.Question) int64 {
	start := a.clock.Now()
	keys := q.Keys()
	switch a.from {
	case fromLocals:
		keys = a.x.Chain(q, a.keys[:0])
	case fromTokens:
		keys = a.x.Hash(q, a.keys[:0])
	}
	a.matches = a.x.Match(keys, a.matches[:0])
	return a.clock.Now() - start
}

func (a *asker) answer() []uint16 {
	feed.Depths(a.matches, a.depths)
	return a.depths
}

func lookup(p *player, args []string) error { return lookups(p, "lookup", fromKeys, args) }

func lookupLocal(p *player, args []string) error {
	return lookups(p, "lookup-local", fromLocals, args)
}

func lookupTokens(p *player, args []string) error {
	return lookups(p, "lookup-tokens", fromTokens, args)
}

func lookups(p *player, verb string, from start, args []string) error {
	n, err := rounds(args, 0, 50)
	if err != nil {
		return err
	}
	x, err := p.load()
	if err != nil {
		return err
	}
	probes := map[int][]feed.Question{}
	r := p.trace.Reader()
	for r.Next() {
		if r.Record.Kind == trace.Probe {
			q := x.Question(&r.Record, 0)
			probes[q.Blocks] = append(probes[q.Blocks], q)
		}
	}
	if r.Err() != nil {
		return r.Err()
	}
	// Return the memory that loading has used to the system now. Otherwise the runtime would return it in small pieces
	// during the lookups, and would interrupt the processor each time. With these interruptions the p99 was 2.4 µs.
	debug.FreeOSMemory()
	a := newAsker(x, int(p.trace.Workers), from)
	for _, length := range synth.ProbeLengths {
		if len(probes[length]) > 0 {
			lookupLength(a, probes[length], n, fmt.Sprintf("%s %s len=%d", verb, p.name, length))
		}
	}
	return nil
}

// lookupLength checks the answers in a first pass over the probes of one length. Then it measures n passes.
func lookupLength(a *asker, probes []feed.Question, n int, title string) {
	wrong, holders := 0, 0
	for i := range probes {
		a.ask(&probes[i])
		if !slices.Equal(a.answer(), probes[i].Depths) {
			wrong++
		}
		holders += len(a.matches)
	}
	all := make(latency.Samples, 0, n*len(probes))
	var p50, p99 latency.Samples
	for range n {
		from := len(all)
		for i := range probes {
			all.Add(a.ask(&probes[i]))
		}
		pass := slices.Clone(all[from:])
		pass.Sort()
		p50, p99 = append(p50, pass.Quantile(0.5)), append(p99, pass.Quantile(0.99))
	}
	p50.Sort()
	p99.Sort()
	fmt.Printf("%s probes=%d wrong=%d mean holders=%.2f: %v | per-rep p50 min=%d med=%d p99 min=%d med=%d\n", title, len(probes), wrong,
		float64(holders)/float64(len(probes)), all, p50[0], p50[len(p50)/2], p99[0], p99[len(p99)/2])
}

// replay measures each query of the trace. Before a query it applies all events that come before the query in the
// trace.
func replay(p *player, args []string) error {
	n, err := rounds(args, 0, 3)
	if err != nil {
		return err
	}
	var all latency.Samples
	depth := 0
	for range n {
		x, err := p.index()
		if err != nil {
			return err
		}
		a := newAsker(x, int(p.trace.Workers), fromKeys)
		var e feed.Event
		r := p.trace.Reader()
		for r.Next() {
			switch {
			case r.Record.Kind == trace.Query:
				q := x.Question(&r.Record, 0)
				all.Add(a.ask(&q))
				depth += int(slices.Max(a.answer()))
			case !r.Record.IsQuestion():
				e = x.Event(&r.Record, &e)
				x.Apply(&e)
			}
		}
		if r.Err() != nil {
			return r.Err()
		}
	}
	fmt.Printf("replay %s: in-trace queries (mean best depth %.1f): %v\n", p.name, float64(depth)/float64(max(len(all), 1)), all)
	return nil
}

func timer() error {
	clock := latency.NewClock()
	all := make(latency.Samples, 0, 200_000)
	for range cap(all) {
		start := clock.Now()
		all.Add(clock.Now() - start)
	}
	fmt.Printf("timer overhead (two reads of the clock): %v\n", all)
	return nil
}
