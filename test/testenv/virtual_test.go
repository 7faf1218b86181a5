package testenv_test

// The virtual_ files run the whole router (gateway, proxy, kvfeed, discovery, index, queue, admin) in virtual time: in
// a bubble of testing/synctest, over a network in memory, with mock engines as workers. A run plays a history: the
// configuration, and about thirty steps such as requests, faults of workers and of the network, and reloads. A seed
// determines the history. The test checks the router's promises after each step (check), after every ten steps, when it
// has ended all faults (calm, trial), and at the end (small, finish).
//
// Play seeds:
//
//	go test -run InVirtualTime ./test/testenv  # 40 seeds
//	make virtual SEEDS=1000 FIRST=1            # seeds 1 to 1000
//	make virtual SEEDS=1 FIRST=17              # seed 17, with the steps and the router's log
//
// If a seed fails, the test shrinks the history: it removes steps as long as the remaining history still fails. It
// prints the problem and the shrunk history, as lines of JSON. Copy these lines into a file, beginning with the line
// that starts with {"Seed". This command plays the file, and prints the steps and the router's log:
//
//	WARMPATH_VIRTUAL_HISTORY=file go test -count=1 -run InVirtualTime ./test/testenv
//
// You can edit the file: steps do not depend on each other, so you can remove any step.
//
// virtual_history_test.go draws histories. It draws the number, kinds, ranks, caches, wires and faults of the engines;
// the policy, queue, limits and time limits of the router; whether the router is stopped while requests are under way;
// and the steps. About two of five steps send requests. The method play in virtual_steps_test.go plays a step. A new
// kind of step changes the history of every seed.
//
// Two runs of a history have exactly the same times, faults and steps. But Go's scheduler, select statements, the order
// of maps and the router's jitter may differ. So a history that failed once may need several runs to fail again, and
// shrinking plays each candidate several times. With GODEBUG=tracebacklabels=1, which `make virtual` sets, the message
// of a panic has the seed of the goroutine. WARMPATH_VIRTUAL_FAILURES is the number of failed seeds after which the
// test ends; the default is 1.

import (
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

const (
	// length is the number of steps that a seed draws.
	length = 30
	// stuck bounds the real time of a run. It is a hundred times the usual duration. After this time the process prints
	// the history and all stacks, and ends, because a run with an endless loop cannot be ended in another way.
	stuck = 2 * time.Minute
	// tries is the number of runs without a failure after which a shrunk history counts as passing.
	tries = 3
)

func TestTheWholeRouterKeepsItsPromisesInVirtualTime(t *testing.T) {
	if path := os.Getenv("WARMPATH_VIRTUAL_HISTORY"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h, err := parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if why := run(t, h, os.Stderr); why != "" {
			t.Error(why)
		}
		return
	}
	log.SetOutput(io.Discard) // net/http logs answers that come without a request
	// The heap of a run is only a few megabytes. With the default GC percent of 100 the garbage collector takes a third of
	// the test's time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	seeds := number("WARMPATH_VIRTUAL_SEEDS", 40)
	if testing.Short() || testenv.Race() {
		seeds = min(seeds, 6)
	}
	first := number("WARMPATH_VIRTUAL_FIRST", 1)
	var out io.Writer = io.Discard
	if seeds == 1 {
		out = os.Stderr
	}
	began := time.Now()
	var next, failed atomic.Uint64
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for {
				n := next.Add(1)
				if n > seeds || failed.Load() >= number("WARMPATH_VIRTUAL_FAILURES", 1) {
					return
				}
				if n%1000 == 0 {
					fmt.Fprintf(os.Stderr, "%d seeds in %v\n", n, time.Since(began).Round(time.Second))
				}
				seed := first + n - 1
				h := draw(seed, length)
				if why := run(t, h, out); why != "" {
					failed.Add(1)
					t.Errorf("seed %d: %s", seed, why)
					small, why := shrink(t, h, why)
					t.Errorf("seed %d, shrunk to %d steps: %s\n%s", seed, len(small.Steps), why, small)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d seeds in %v", min(next.Load(), seeds), time.Since(began).Round(time.Millisecond))
}

func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// run plays a history in a new bubble, and returns the problems of the run; "": there are none.
func run(t *testing.T, h history, out io.Writer) (why string) {
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("seed", fmt.Sprint(h.Setup.Seed))))
	guard := time.AfterFunc(stuck, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("a run has not ended after %v\n%s", stuck, h))
	})
	defer guard.Stop()
	t.Run(fmt.Sprint("seed", h.Setup.Seed), func(t *testing.T) {
		var bubble string
		defer func() {
			if cause := recover(); cause != nil { // synctest.Test panics if goroutines of the bubble do not end
				why = fmt.Sprintf("%v; before: %q\n%s", cause, why, strings.Join(stacks(bubble), "\n\n"))
			}
		}()
		synctest.Test(t, func(*testing.T) {
			bubble = bubbleOf()
			why = inBubble(h, out)
		})
	})
	return why
}

// inBubble plays a history in the bubble of the calling goroutine, and returns the problems of the run.
func inBubble(h history, out io.Writer) string {
	w, err := start(h.Setup, out)
	if err != nil {
		w.problem("start: %v", err)
	}
	began := time.Now()
	for i, s := range h.Steps {
		if w.first() != "" {
			break
		}
		fmt.Fprintf(out, "=== step %d at %v: %s\n", i, time.Since(began), s)
		w.play(s)
		if w.first() == "" {
			w.check()
		}
		if w.first() != "" {
			w.mu.Lock()
			w.problems[0] = fmt.Sprintf("step %d at %v, %s: %s", i, time.Since(began), s, w.problems[0])
			w.mu.Unlock()
		}
	}
	switch {
	case w.first() != "":
	case h.Setup.StopBusy:
		w.crowd()
	default:
		w.calm()
		w.small()
	}
	w.finish()
	fmt.Fprintf(out, "=== ended after %v: %v\n", time.Since(began), w.counts)
	return w.first()
}

// pass lets the virtual time d pass: the bubble's clock advances when all goroutines of the bubble wait.
func pass(d time.Duration) { time.Sleep(d) }

// crowd sends requests shortly before the router is stopped, so that some of them are still under way then.
func (w *world) crowd() {
	for i := range uint64(6) {
		a := w.question(w.setup.Seed+i, []string{"ids", "chat"}[i%2], int(i/2)*100)
		a.last = true
		w.send(a)
	}
	pass(300 * time.Millisecond)
}

// ending is the longest permitted time from the end of the drain until the router has stopped.
const ending = 5 * time.Second

// finish stops everything. The router must stop within its time limit for a drain, and no goroutine or connection may
// be left.
func (w *world) finish() {
	broken := w.first() != ""
	if w.router != nil {
		w.stopRouter(broken)
	}
	for _, e := range w.engines {
		e.heal()
	}
	w.orders.Wait()
	for _, e := range w.engines {
		e.vacate()
	}
	if broken {
		w.leave() // the run has failed, so end all requests
		pass(time.Minute)
	}
	w.eventually(time.Minute, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.asks) > 0 {
			return w.asks[0].what + " waits though the router has stopped"
		}
		return ""
	})
	w.leave()
	// net/http continues to dial up to its own time limit, even if no request waits for the connection any more.
	pass(margin)
	w.clients.CloseIdleConnections()
	synctest.Wait()
	if n := w.network.Open(); n > 0 && !broken {
		w.problem("%d connections are open after the end", n)
	}
}

// stopRouter stops the router as SIGTERM does. It checks how long the router takes to stop and which error Run returns.
func (w *world) stopRouter(broken bool) {
	synctest.Wait()
	began := time.Now()
	w.stop()
	limit := w.setup.DrainDelay + w.setup.DrainTimeout + ending
	var err error
	select {
	case err = <-w.ended:
	case <-time.After(10 * limit):
		w.problem("the router runs on %v after it was stopped", 10*limit)
		if !broken {
			w.problem("%s", sorted(stacks(w.bubble)))
		}
		return
	}
	if d := time.Since(began); d > limit {
		w.problem("the router ran on for %v after it was stopped", d)
	}
	// Run may return an error only if requests were still under way at the end of the drain.
	if err != nil && !(w.setup.StopBusy && strings.HasPrefix(err.Error(), "drain: requests were cut after ")) {
		w.problem("the router ended with an error: %v", err)
	}
}
