package main

// The demo shows what Warmpath does on one machine in half a minute, without a download. Three policies play the same
// work at the same time: round robin, another project's cache_aware and the default policy. Each policy has four mock
// engines and a gateway of its own. The demo is a client of the public API: it prints what the answers' headers and
// usage say. It looks inside the routers only before the work, to wait until they are ready.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
)

const (
	demoModel   = "demo-model"
	demoWorkers = 4 // number of workers in each fleet
	// demoSpeed is the factor by which the mock engines are faster than the accelerators that they model. With slower
	// engines the demo takes more than half a minute. With faster engines, the milliseconds that the router itself
	// takes on a small machine matter as much as the engines' time.
	demoSpeed     = 1.5
	demoBlockSize = 16 // tokens
	// demoBlocks is the size of an engine's cache in blocks. At their full length, the conversations of all users need
	// about 2.6 times the blocks of one cache, and a fleet has four caches. So a fleet has room for one copy of each
	// conversation, but not for two.
	demoBlocks = 8000
	// demoRamp is the time over which the users start. If all users started at the same time, all first requests would
	// meet empty caches, and this effect would hide all other effects.
	demoRamp = 2 * time.Second
)

// demoPeer is the policy of SMG and the SGLang router, with the defaults of their command line.
const demoPeer = "cache_aware"

// demoPolicies returns the policies that are played: a baseline, another project's policy, and the default policy.
func demoPolicies() []string { return []string{"round_robin", demoPeer, config.Default().Policy} }

// demoOptions are the settings of the demo.
type demoOptions struct {
	Out io.Writer
	// Live redraws one block of status lines in place. Without it a plain line is printed every three seconds.
	Live bool
	// Stay leaves the fleet of the default policy running until the context ends.
	Stay bool
	// Small runs a fifth of the work, on engines without delays and with short pauses: for tests.
	Small bool
}

// errDemoInterrupted tells scripts that the demo did not reach its end.
var errDemoInterrupted = errors.New("the demo was interrupted before its end: there is nothing to compare")

// runDemo shows the demo and returns what the runs measured, in the order of [demoPolicies]. It ends early when ctx
// ends.
func runDemo(ctx context.Context, o demoOptions) ([]*demoResult, error) {
	out := &stickyWriter{out: o.Out}
	o.Out = out
	plan := demoWorkload(1)
	if o.Small {
		plan = plan[:demoConversations/5]
	}
	printDemoOpening(o.Out, len(plan))
	results, err := playAll(ctx, plan, &o)
	switch {
	case ctx.Err() != nil && err != nil:
		err = errDemoInterrupted
	case err == nil:
		err = out.err
	}
	return results, err
}

// playAll plays the plan on a fleet for each policy and prints the comparison.
func playAll(ctx context.Context, plan []demoConversation, o *demoOptions) (results []*demoResult, err error) {
	var fleets []*demoFleet
	stop := func(all []*demoFleet) {
		for _, s := range all {
			err = errors.Join(err, s.stop())
		}
	}
	defer func() { stop(fleets) }()
	for _, policy := range demoPolicies() {
		s, err := startDemoFleet(ctx, policy, o)
		fleets = append(fleets, s)
		if err != nil {
			return nil, err
		}
		results = append(results, newDemoResult(policy, len(plan)*demoTurns))
	}
	late, err := playPlan(ctx, fleets, results, plan, o)
	if err != nil {
		return results, err
	}
	last := len(fleets) - 1
	printDemoComparison(o.Out, results)
	printDemoCheck(o.Out, results[last])
	printDemoWorth(o.Out, results, late)
	printDemoNext(o.Out, fleets[last], o.Stay)
	if o.Stay {
		stop(fleets[:last])
		fleets = fleets[last:]
		<-ctx.Done()
	}
	return results, err
}

// playPlan gives the plan to all fleets at the same time, so that other work on the machine affects all fleets alike.
// It shows the progress. late is the result of schedulingDelay.
func playPlan(ctx context.Context, fleets []*demoFleet, results []*demoResult, plan []demoConversation, o *demoOptions) (late time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(fleets))
	for i, s := range fleets {
		results[i].began = time.Now()
		wg.Go(func() {
			if errs[i] = s.drive(ctx, plan, results[i], o); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", s.policy, errs[i])
				cancel()
			}
		})
	}
	done := make(chan struct{})
	go func() { // ends with the last conversation; showDemo waits for it
		wg.Wait()
		close(done)
	}()
	measured := make(chan time.Duration)
	go func() { measured <- schedulingDelay(done) }() // ends with done
	showDemo(results, done, o)
	return <-measured, errors.Join(errs...)
}

// schedulingDelay returns the mean time by which timers fire late on this machine, measured until done is closed. A
// request uses a dozen goroutines one after another, and each goroutine waits about as long as a timer for a processor.
func schedulingDelay(done <-chan struct{}) time.Duration {
	const nap = 20 * time.Millisecond
	timer := time.NewTimer(nap)
	defer timer.Stop()
	var sum time.Duration
	for n := 0; ; n++ {
		began := time.Now()
		select {
		case <-timer.C:
			sum += time.Since(began) - nap
			timer.Reset(nap)
		case <-done:
			return sum / time.Duration(max(n, 1))
		}
	}
}

// demoFleet is one fleet of engines with a gateway in front.
type demoFleet struct {
	app     *app.App
	engines []*mockengine.Server
	client  *http.Client
	url     string
	policy  string
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	failed error // guarded by mu; the errors of the components that failed
}

// startDemoFleet builds engines and gateway, and waits until the events of every engine are known to be complete. The
// caller has to stop the fleet, also after an error.
func startDemoFleet(ctx context.Context, policy string, o *demoOptions) (*demoFleet, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &demoFleet{policy: policy, cancel: cancel, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * demoUsers}}}
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Policy = "127.0.0.1:0", "127.0.0.1:0", policy
	for i := range demoWorkers {
		// All engines have the same seed, so that an answer depends only on its prompt, and every fleet gets exactly
		// the same requests.
		engine := mockengine.DefaultConfig()
		engine.Model, engine.BlockSize, engine.Blocks, engine.Speed, engine.Seed = demoModel, demoBlockSize, demoBlocks, demoSpeed, 1
		if o.Small {
			engine.Speed = 0
		}
		server, err := mockengine.New(engine)
		if err != nil {
			return s, fmt.Errorf("make engine %d: %w", i, err)
		}
		s.engines = append(s.engines, server)
		s.run(func() error { return server.Run(ctx) })
		select {
		case <-server.Ready():
		case <-ctx.Done():
			return s, fmt.Errorf("start engine %d: %w", i, ctx.Err())
		}
		cfg.Workers = append(cfg.Workers, discovery.Target{URL: server.URL()})
	}
	if err := cfg.Validate(); err != nil {
		return s, err
	}
	var err error
	if s.app, err = app.New(&cfg, app.Options{Log: slog.New(slog.DiscardHandler)}); err != nil {
		return s, err
	}
	s.run(func() error { return s.app.Run(ctx) })
	select {
	case <-s.app.Listening():
	case <-ctx.Done():
		return s, ctx.Err()
	}
	s.url = "http://" + s.app.Addr().String()
	return s, s.settle(ctx)
}

// run runs a component. If the component fails, it ends the fleet.
func (s *demoFleet) run(component func() error) {
	s.running.Go(func() {
		if err := component(); err != nil {
			s.mu.Lock()
			s.failed = errors.Join(s.failed, err)
			s.mu.Unlock()
			s.cancel()
		}
	})
}

// settle waits, for at most 20 s, until every holder has exact trust: the router then knows the holder's cache from its
// events.
func (s *demoFleet) settle(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		snapshot := s.app.Router().Fleet().Snapshot()
		exact := 0
		for _, w := range snapshot.Workers() {
			for _, h := range w.Holders {
				if t, _ := snapshot.Trust(h); t == fleet.TrustExact && w.Ready {
					exact++
				}
			}
		}
		if exact == demoWorkers {
			return nil
		}
		select {
		case <-limit.Done():
			return fmt.Errorf("only %d of %d engines have complete events", exact, demoWorkers)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends all components of the fleet, waits for them, and returns their errors.
func (s *demoFleet) stop() error {
	s.cancel()
	s.running.Wait()
	s.client.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// drive lets the users hold the conversations of the plan. A user begins the next conversation when the user's last
// conversation has ended.
func (s *demoFleet) drive(ctx context.Context, plan []demoConversation, r *demoResult, o *demoOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan *demoConversation, len(plan))
	for i := range plan {
		queue <- &plan[i]
	}
	close(queue)
	var wg sync.WaitGroup
	for i := range demoUsers {
		wg.Go(func() {
			if !o.Small && !demoPause(ctx, demoRamp*time.Duration(i)/demoUsers) {
				return
			}
			for c := range queue {
				if err := s.converse(ctx, c, r, o); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.finish()
	return nil
}

// converse holds one conversation. Between turns it pauses, as if an agent's tool ran.
func (s *demoFleet) converse(ctx context.Context, c *demoConversation, r *demoResult, o *demoOptions) error {
	random := rand.New(rand.NewPCG(2, uint64(c.id)))
	history := []demoMessage{{"system", c.system}}
	for _, text := range c.asks {
		history = append(history, demoMessage{"user", text})
		a, err := askDemo(ctx, s.client, s.url, c.body(history))
		if err == nil && a.policy != s.policy {
			err = fmt.Errorf("decided by policy %q", a.policy)
		}
		if err != nil {
			return fmt.Errorf("conversation %d: %w", c.id, err)
		}
		a.conversation = c.id
		r.add(&a)
		history = append(history, demoMessage{"assistant", a.text})
		tool := time.Duration(50+random.IntN(500)) * time.Millisecond
		if o.Small {
			tool = 10 * time.Millisecond
		}
		if !demoPause(ctx, tool) {
			return ctx.Err()
		}
	}
	return nil
}

// demoPause waits for d, and reports false when ctx ended first.
func demoPause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stickyWriter keeps the first error of a writer, such as a full disk, and writes nothing more after it.
type stickyWriter struct {
	out io.Writer
	err error
}

func (s *stickyWriter) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.out.Write(p)
	s.err = err
	return n, err
}
