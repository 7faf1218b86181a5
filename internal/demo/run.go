package demo

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
	model   = "demo-model"
	workers = 4
	agents  = 20 // conversations under way at once
	// speed is how much faster the mock engines are than the accelerators they model, so that half a minute is enough.
	speed = 1.5
	// blocks of 16 tokens in an engine's cache: all four together hold the workload, one alone does not.
	blocks = 5000
)

// Options say how the demo shows itself.
type Options struct {
	Out io.Writer
	// Live redraws one status block in place; without it a plain line is printed every two seconds.
	Live bool
	// Stay leaves the second fleet running until the context ends.
	Stay bool
	// Small runs a tenth of the workload without delays: for tests.
	Small bool
}

// Run shows the demo and returns what the runs measured, round_robin first. It ends when the context does.
func Run(ctx context.Context, o Options) ([]*Result, error) {
	plan := workload(1)
	if o.Small {
		plan = plan[:conversations/5]
	}
	fmt.Fprintf(o.Out, "Warmpath demo: %d mock engines, %d conversations of %d turns, agents of %d kinds.\n"+
		"Each kind shares a system prompt with tools; each turn sends the whole conversation again.\n\n",
		workers, len(plan), turns, agentKinds)
	var results []*Result
	for _, policy := range []string{"round_robin", "kv_aware"} {
		s, err := start(ctx, policy, &o)
		if err != nil {
			return results, err
		}
		r, err := s.drive(ctx, plan, &o)
		results = append(results, r)
		last := policy == "kv_aware"
		if err == nil && last {
			printComparison(o.Out, results)
			printCheck(o.Out, r)
			printNext(o.Out, s, o.Stay)
			if o.Stay {
				<-ctx.Done()
			}
		}
		if stopErr := s.stop(); err == nil {
			err = stopErr
		}
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// setup is one fleet of engines with a gateway in front.
type setup struct {
	app     *app.App
	engines []*mockengine.Server
	client  *http.Client
	url     string
	policy  string
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	failed error // guarded by mu; the first component that failed
}

// start builds engines and gateway and waits until every engine's events are known to be complete.
func start(ctx context.Context, policy string, o *Options) (*setup, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &setup{policy: policy, cancel: cancel, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * agents}}}
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Policy = "127.0.0.1:0", "127.0.0.1:0", policy
	if o.Small {
		cfg.Tokens.Budget = 10 * time.Second // a machine that is busy with other tests must not route by load what has ids
	}
	for i := range workers {
		engine := mockengine.DefaultConfig()
		engine.Model, engine.Blocks, engine.Speed, engine.Seed = model, blocks, speed, uint64(i)
		if o.Small {
			engine.Speed = 0
		}
		server, err := mockengine.New(engine)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("make engine %d: %w", i, err)
		}
		s.engines = append(s.engines, server)
		s.run(func() error { return server.Run(ctx) })
		select {
		case <-server.Ready():
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("start engine %d: %w", i, ctx.Err()), s.stop())
		}
		cfg.Workers = append(cfg.Workers, discovery.Target{URL: server.URL()})
	}
	if err := cfg.Validate(); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	var err error
	if s.app, err = app.New(&cfg, app.Options{Log: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.run(func() error { return s.app.Run(ctx) })
	select {
	case <-s.app.Listening():
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.stop())
	}
	s.url = "http://" + s.app.Addr().String()
	return s, s.settle(ctx)
}

// run runs a component; one that fails ends the setup.
func (s *setup) run(component func() error) {
	s.running.Go(func() {
		if err := component(); err != nil {
			s.mu.Lock()
			s.failed = errors.Join(s.failed, err)
			s.mu.Unlock()
			s.cancel()
		}
	})
}

// settle waits until every holder is trusted exactly.
func (s *setup) settle(ctx context.Context) error {
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
		if exact == workers {
			return nil
		}
		select {
		case <-limit.Done():
			return errors.Join(fmt.Errorf("only %d of %d engines have complete events", exact, workers), s.stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends everything and waits for it.
func (s *setup) stop() error {
	s.cancel()
	s.running.Wait()
	s.client.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// drive runs the workload and shows its progress.
func (s *setup) drive(ctx context.Context, plan []conversation, o *Options) (*Result, error) {
	r := newResult(s.policy, s.app.Router().Fleet().Snapshot().Workers(), len(plan)*turns)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan *conversation)
	var wg sync.WaitGroup
	for range agents {
		wg.Go(func() {
			for c := range queue {
				if err := s.converse(ctx, c, r, o); err != nil {
					r.fail(err)
					cancel()
				}
			}
		})
	}
	shown := make(chan struct{})
	done := make(chan struct{})
	go func() { // ends when the workload has ended
		defer close(shown)
		r.show(done, o)
	}()
	for i := range plan {
		select {
		case queue <- &plan[i]:
		case <-ctx.Done():
		}
	}
	close(queue)
	wg.Wait()
	r.finish()
	close(done)
	<-shown
	return r, r.err()
}

// converse holds one conversation, with the pauses in which an agent's tools run.
func (s *setup) converse(ctx context.Context, c *conversation, r *Result, o *Options) error {
	random := rand.New(rand.NewPCG(2, uint64(c.id)))
	history := []message{{"system", c.system}}
	for _, text := range c.asks {
		history = append(history, message{"user", text})
		a, err := ask(ctx, s.client, s.url, c.body(history))
		if err != nil {
			return fmt.Errorf("conversation %d: %w", c.id, err)
		}
		r.add(&a)
		history = append(history, message{"assistant", a.text})
		pause := time.Duration(40+random.IntN(120)) * time.Millisecond
		if o.Small {
			pause = 10 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
