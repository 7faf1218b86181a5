package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/latency"
	"github.com/warmpath/warmpath/bench/internal/machine"
)

// apply measures how long one goroutine takes to apply prepared events. Each round uses a new, empty index. With
// CHANNEL=1 the goroutine receives the events from a full channel, as the program for the peers does for SMG's index
// and for most of Dynamo's indexes.
func apply(p *player, args []string) error {
	n, err := rounds(args, 0, 5)
	if err != nil {
		return err
	}
	split := 0
	if s := os.Getenv("SPLIT"); s != "" {
		if split, err = strconv.Atoi(s); err != nil || split < 0 {
			return fmt.Errorf("read SPLIT: %q is not a number", s)
		}
	}
	maker, err := p.index()
	if err != nil {
		return err
	}
	var events []feed.Event
	r := p.trace.Reader()
	for r.Next() {
		if !r.Record.IsQuestion() {
			maker.Split(maker.Event(&r.Record, nil), split, func(e feed.Event) { events = append(events, e) })
		}
	}
	if r.Err() != nil {
		return r.Err()
	}
	name := p.name
	if os.Getenv("CHANNEL") != "" {
		name += "-channel"
	}
	var seconds []float64
	for range n {
		s, err := p.applyOnce(events)
		if err != nil {
			return err
		}
		seconds = append(seconds, s)
	}
	slices.Sort(seconds)
	median, best := seconds[len(seconds)/2], seconds[0]
	ops := float64(p.trace.Stored + p.trace.Removed)
	var list []string
	for _, s := range seconds {
		list = append(list, fmt.Sprintf("%.3f", s))
	}
	fmt.Printf("apply %s split=%d: median %.3fs best %.3fs of [%s] | median: stored %.2f M blocks/s, block ops (stored+removed) %.2f M/s | best: %.2f M block ops/s\n",
		name, split, median, best, strings.Join(list, ", "), float64(p.trace.Stored)/median/1e6, ops/median/1e6, ops/best/1e6)
	return nil
}

func (p *player) applyOnce(events []feed.Event) (float64, error) {
	x, err := p.index()
	if err != nil {
		return 0, err
	}
	var queue chan *feed.Event
	if os.Getenv("CHANNEL") != "" {
		queue = make(chan *feed.Event, len(events))
		for i := range events {
			queue <- &events[i]
		}
		close(queue)
	}
	runtime.GC()
	clock := latency.NewClock()
	start := clock.Now()
	if queue != nil {
		for e := range queue {
			x.Apply(e)
		}
	} else {
		for i := range events {
			x.Apply(&events[i])
		}
	}
	taken := clock.Now() - start
	runtime.KeepAlive(x)
	return float64(taken) / 1e9, nil
}

// mem measures by how much loading the index increases the resident memory of the process. The trace does not count,
// because it is a mapped file. All events use one small buffer.
func mem(p *player, _ []string) error {
	r := p.trace.Reader()
	for r.Next() { // read the trace once before the measurement, so that the reader has allocated its memory
	}
	debug.FreeOSMemory()
	before, err := machine.ResidentBytes()
	if err != nil {
		return err
	}
	x, err := p.load()
	if err != nil {
		return err
	}
	loaded, err := machine.ResidentBytes()
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	trimmed, err := machine.ResidentBytes()
	if err != nil {
		return err
	}
	stats := x.Stats()
	live := float64(stats.Memberships)
	mib := func(n int64) string {
		return fmt.Sprintf("%.1f MiB (%.1f B/entry)", float64(n)/(1<<20), float64(n)/live)
	}
	fmt.Printf("mem %s cleanup=false: live entries=%d RssAnon delta=%s, after FreeOSMemory %s; the index counts %s\n",
		p.name, stats.Memberships, mib(loaded-before), mib(trimmed-before), mib(stats.Bytes))
	runtime.KeepAlive(x)
	return nil
}
