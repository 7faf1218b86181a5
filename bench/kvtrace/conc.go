package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/latency"
	"github.com/warmpath/warmpath/bench/internal/trace"
)

const (
	concBlocks = 256 // number of blocks in each lookup
	inFlight   = 8   // largest number of events that wait for the writer if the rate is not limited
)

// tailEvent is an event of the last fifth of the trace.
type tailEvent struct {
	feed.Event
	requests int // number of lookups in beside.requests that come before the event in the trace
}

// beside is the input of conc: events to apply before (warm), events to apply during the lookups (tail), and the
// lookups.
type beside struct {
	warm     []feed.Event
	tail     []tailEvent
	requests []feed.Question
}

// conc measures lookups of recent requests while another goroutine (the writer) applies the last fifth of the trace.
// The goroutine that makes the lookups also sends the events to the writer: as fast as the writer takes events, or at a
// given rate.
func conc(p *player, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("conc: give a rate of block operations a second, 0 for as many as the writer takes")
	}
	rate, err := strconv.ParseFloat(args[0], 64)
	if err != nil || rate < 0 {
		return fmt.Errorf("conc: %q is not a rate", args[0])
	}
	n, err := rounds(args, 1, 3)
	if err != nil {
		return err
	}
	b, err := p.beside()
	if err != nil {
		return err
	}
	if len(b.requests) < 9+64 || len(b.tail) == 0 {
		return fmt.Errorf("conc: the trace is too short: %d requests of %d blocks", len(b.requests), concBlocks)
	}
	var total concResult
	for range n {
		if err := p.concOnce(b, rate, &total); err != nil {
			return err
		}
	}
	asked := float64(len(total.all))
	fmt.Printf("conc %s rate=%v: %v | sent %.2f M block ops/s over %.2fs, %.0f lookups/s, mean best depth %.1f, full hits %.1f%%\n",
		p.name, rate, total.all, float64(total.sent)/total.seconds/1e6, total.seconds, asked/total.seconds, float64(total.depth)/asked, 100*float64(total.full)/asked)
	return nil
}

// beside splits the trace's events in two parts. It also collects the requests with at least 256 blocks, each cut to
// 256 blocks.
func (p *player) beside() (*beside, error) {
	x, err := p.index()
	if err != nil {
		return nil, err
	}
	b := &beside{}
	stored := uint64(0)
	r := p.trace.Reader()
	for r.Next() {
		rec := &r.Record
		switch {
		case rec.Kind == trace.Query && len(rec.Keys) >= concBlocks:
			b.requests = append(b.requests, x.Question(rec, concBlocks))
		case rec.IsQuestion():
		case stored < p.trace.Stored*8/10:
			b.warm = append(b.warm, x.Event(rec, nil))
		default:
			b.tail = append(b.tail, tailEvent{x.Event(rec, nil), len(b.requests)})
		}
		if rec.IsStore() {
			stored += uint64(len(rec.Keys))
		}
	}
	return b, r.Err()
}

type concResult struct {
	all               latency.Samples
	sent, depth, full int
	seconds           float64
}

func (p *player) concOnce(b *beside, rate float64, total *concResult) error {
	x, err := p.index()
	if err != nil {
		return err
	}
	for i := range b.warm {
		x.Apply(&b.warm[i])
	}
	queue := make(chan *feed.Event, 1<<16)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for e := range queue {
			x.Apply(e)
		}
	}()
	runtime.GC()
	a := newAsker(x, int(p.trace.Workers), fromKeys)
	random := uint64(0x9E3779B97F4A7C15)
	next, sent, requests := 0, 0, 0
	start := a.clock.Now()
	for {
		for next < len(b.tail) && due(rate, sent, a.clock.Now()-start, len(queue)) {
			e := &b.tail[next]
			queue <- &e.Event
			sent += e.Blocks
			requests = e.requests
			next++
		}
		if next == len(b.tail) {
			break
		}
		if requests < 9+64 {
			continue
		}
		random ^= random << 13
		random ^= random >> 7
		random ^= random << 17
		// Look up a random one of the 64 requests before the newest 8 requests.
		q := &b.requests[requests-9-int(random%64)]
		total.all.Add(a.ask(q))
		best := int(slices.Max(a.answer()))
		total.depth += best
		if best == concBlocks {
			total.full++
		}
	}
	total.seconds += float64(a.clock.Now()-start) / 1e9
	total.sent += sent
	close(queue)
	<-written
	return nil
}

// due reports whether the next event must be sent now. elapsed is in ns, and queued is the number of waiting events.
func due(rate float64, sent int, elapsed int64, queued int) bool {
	if rate > 0 {
		return float64(sent) < float64(elapsed)/1e9*rate
	}
	return queued < inFlight
}
