package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/naive"
	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/kvindex"
)

var errWrong = errors.New("some answers are wrong")

// answers counts the answers of an index that differ from the exact answers.
type answers struct {
	questions, wrong, high, low int
	first                       string
}

func (a *answers) add(got, want []uint16) {
	a.questions++
	if slices.Equal(got, want) {
		return
	}
	a.wrong++
	for i := range got {
		if got[i] > want[i] {
			a.high++
		} else if got[i] < want[i] {
			a.low++
		}
	}
	if a.first == "" {
		a.first = fmt.Sprintf("question %d: %v, exact %v", a.questions, got, want)
	}
}

func (a *answers) report(name string) error {
	first := "None"
	if a.first != "" {
		first = a.first
	}
	fmt.Printf("verify %s: queries=%d wrong=%d (worker-depths too high %d, too low %d) first=%s\n", name, a.questions, a.wrong, a.high, a.low, first)
	if a.wrong > 0 {
		return errWrong
	}
	return nil
}

func verify(p *player, _ []string) error {
	x, err := p.index()
	if err != nil {
		return err
	}
	var (
		a       answers
		e       feed.Event
		matches []kvindex.Match
		depths  = make([]uint16, p.trace.Workers)
	)
	r := p.trace.Reader()
	for r.Next() {
		if !r.Record.IsQuestion() {
			e = x.Event(&r.Record, &e)
			x.Apply(&e)
			continue
		}
		q := x.Question(&r.Record, 0)
		matches = x.Match(q.Keys(), matches[:0])
		feed.Depths(matches, depths)
		a.add(depths, q.Depths)
	}
	if r.Err() != nil {
		return r.Err()
	}
	return a.report(p.name)
}

// check compares the answers in a file with the answers of a naive set.
func check(args []string) error {
	if len(args) == 0 {
		return errors.New("check: name a file")
	}
	t, err := trace.Open(args[0])
	if err != nil {
		return err
	}
	defer t.Close()
	var a answers
	var depths []uint16
	set := naive.New(int(t.Workers))
	r := t.Reader()
	for r.Next() {
		if !r.Record.IsQuestion() {
			set.Apply(&r.Record)
			continue
		}
		depths = set.Depths(r.Record.Keys, depths[:0])
		a.add(r.Record.Depths, depths)
	}
	if r.Err() != nil {
		return r.Err()
	}
	fmt.Printf("check %s: version %d, %d workers, %d records, %d blocks stored, %d removed, %d live\n",
		args[0], t.Version, t.Workers, t.Records, t.Stored, t.Removed, set.Live())
	return a.report("the file")
}
