package kvindex_test

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

func TestADecisionDoesNotWaitForEvents(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	locked, goOn := make(chan bool), make(chan bool)
	x := kvindex.New(h, kvindex.Config{Worker: func(h fleet.Holder) (fleet.WorkerID, bool) {
		if h == 1 { // the writer calls this function while it has locked the index
			locked <- true
			<-goOn
		}
		return fleet.WorkerID(h), true
	}})
	known, next := newChain(seq(0, 1600)), newChain(seq(10_000, 1600))
	known.learn(x, 0)
	done := make(chan bool)
	go func() { // ends when the event is applied
		next.learn(x, 1)
		close(done)
	}()
	<-locked
	answer := make(chan []kvindex.Match, 1)
	go func() { answer <- x.Match(known.keys, nil) }() // if Match does not return soon, the test fails
	select {
	case m := <-answer:
		if len(m) != 1 || m[0].Blocks != 100 {
			t.Errorf("while the index is locked: %+v", m)
		}
	case <-time.After(10 * time.Second):
		t.Error("a match waits for the writer")
	}
	goOn <- true
	<-done
	if m := x.Match(next.keys, nil); len(m) != 1 || m[0].Blocks != 100 {
		t.Errorf("after the event: %+v", m)
	}
}
