package gateway

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/queue"
)

// No request may be lost between the look-up of its line and its entry into the line, even if the line is dropped at
// this moment: run would never give the request a turn.
func TestNoRequestIsLostInADroppedLine(t *testing.T) {
	cfg := queue.DefaultConfig()
	cfg.Order, cfg.MaxRequests = queue.FCFS, 1<<20
	w := newWaiting(&Gateway{}, cfg, 1)
	snap := fleet.New(fleet.Config{}).Snapshot()
	late := w.line("m", true)
	w.forgetAbsent(snap)
	if err := w.enter(late, &waiter{}, time.Now()); !errors.Is(err, errDropped) {
		t.Errorf("a request enters a dropped line: %v", err)
	}
	stop := make(chan struct{})
	var dropping, joining sync.WaitGroup
	dropping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				w.forgetAbsent(snap)
			}
		}
	})
	for _, base := range []string{"m", "m", "n"} { // the line of n has at most one request, so it is often empty
		joining.Go(func() {
			for range 5000 {
				a := &waiter{called: make(chan error, 1), ended: make(chan ending, 1)}
				l, err := w.join(base, a, time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				if w.line(base, false) != l {
					t.Error("a waiting request is in a dropped line")
				}
				if !w.leave(l, a) {
					t.Error("the request has left its line already")
				}
			}
		})
	}
	joining.Wait()
	close(stop)
	dropping.Wait()
	w.forgetAbsent(snap)
	if n := len(w.snapshot()); n != 0 || w.all.Load() != 0 {
		t.Errorf("%d lines and %d waiting requests are left", n, w.all.Load())
	}
}

func TestALineOfAServedModelIsKept(t *testing.T) {
	w := newWaiting(&Gateway{}, queue.DefaultConfig(), 1)
	f := fleet.New(fleet.Config{})
	f.Put("http://w", fleet.Facts{Models: []fleet.Model{{ID: "base"}, {ID: "adapter", Parent: "base"}, {ID: "other", Parent: "unlisted"}}})
	for _, base := range []string{"base", "unlisted", "left"} {
		w.line(base, true)
	}
	w.forgetAbsent(f.Snapshot())
	if w.line("base", false) == nil || w.line("unlisted", false) == nil || w.line("left", false) != nil {
		t.Errorf("the lines are %v", w.snapshot())
	}
}
