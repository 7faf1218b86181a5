package indexer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

const (
	// registerLease is how long a worker stays in the service after its last registration, and registerEvery how often it
	// is registered. Two of three registrations may fail.
	registerLease = 30 * time.Second
	registerEvery = 10 * time.Second
	// registerTimeout bounds the registrations after one poll; the rest comes after the next. registerAtOnce is how many
	// are under way at the same time: 20,000 workers with 5 ms each take 6 s.
	registerTimeout = time.Second
	registerAtOnce  = 16
)

// sent is a registration that was sent.
type sent struct {
	at    time.Time // when the service took it; zero: not yet
	body  string    // what the service took
	tried time.Time // when it was sent last
}

// register registers the workers of the fleet that were not registered lately, or have changed. What was registered
// before an error or the end of ctx counts. fresh says that the service took a worker for the first time, or a changed
// one. The error says that some workers are not registered, for a reason that is not their own.
func (c *Client) register(ctx context.Context, snap *fleet.Snapshot) (fresh bool, err error) {
	if !c.config.Register {
		return false, nil
	}
	now := time.Now()
	due, next := c.due(snap, now)
	c.registered = next
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var taken atomic.Int64
	var all sync.WaitGroup
	for range min(registerAtOnce, len(due)) {
		all.Go(func() {
			for i := int(taken.Add(1)) - 1; i < len(due) && ctx.Err() == nil; i = int(taken.Add(1)) - 1 {
				if err := c.registerOne(ctx, &due[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	var busy error
	for i := range due {
		d := &due[i]
		switch {
		case d.busy != nil:
			busy = cmp.Or(busy, d.busy)
			next[d.url] = sent{d.last.at, d.last.body, now}
			continue
		case !d.done:
			continue
		}
		next[d.url] = sent{now, d.body, now}
		fresh = fresh || d.refused == "" && d.body != d.last.body && (d.last.body != "" || d.last.tried.IsZero())
		if d.refused != "" && d.refused != c.refused[d.url] {
			c.log.Warn("the index service does not take a worker", "worker", d.url, "error", d.refused)
		}
		if c.refused[d.url] = d.refused; d.refused == "" {
			delete(c.refused, d.url)
		}
	}
	maps.DeleteFunc(c.refused, func(url, _ string) bool { _, present := next[url]; return !present })
	if err := cmp.Or(context.Cause(ctx), busy); err != nil {
		return fresh, fmt.Errorf("register workers at the index service: %w", err)
	}
	return fresh, nil
}

// due returns the workers that have to be registered now, and what was sent for all workers of the fleet. The workers
// whose last attempt is longest ago come first, so that each has its turn if there is no time for all.
func (c *Client) due(snap *fleet.Snapshot, now time.Time) (due []dueWorker, known map[string]sent) {
	known = map[string]sent{}
	for _, w := range snap.Workers() {
		if w.Facts.BaseModel() == "" {
			continue // it has not answered yet
		}
		body := string(registrationOf(w).appendTo(nil))
		last, has := c.registered[w.URL]
		if has {
			known[w.URL] = last
		}
		if last.body != body || now.Sub(last.at) >= registerEvery {
			due = append(due, dueWorker{url: w.URL, body: body, last: last})
		}
	}
	slices.SortStableFunc(due, func(a, b dueWorker) int { return a.last.tried.Compare(b.last.tried) })
	return due, known
}

// dueWorker is a worker that has to be registered.
type dueWorker struct {
	url, body string
	last      sent
	done      bool   // the service has decided
	refused   string // why the service does not take it
	busy      error  // why the service could not decide: the next look tries again
}

// registerOne registers one worker. If the service does not take this worker, that costs no other one.
func (c *Client) registerOne(ctx context.Context, d *dueWorker) error {
	a := ask{out: []byte(d.body)}
	a.body.Reset(a.out)
	err := c.call(ctx, http.MethodPost, "/register", &a, maxAnswer)
	refused := new(refusal)
	switch {
	case err == nil:
		d.done = true
	case !errors.As(err, &refused), refused.status == http.StatusUnauthorized, refused.status == http.StatusNotFound, refused.status == http.StatusMethodNotAllowed:
		return err // it is about the service, and not about the worker
	case refused.temporary():
		d.busy = err
	default:
		d.done, d.refused = true, err.Error()
	}
	return nil
}

// lateLooks is how many looks in a row may leave workers unregistered before the log says so: a service that starts is
// busy for a moment.
const lateLooks = 3

// noteLate logs that not all workers are registered for some time, or all again. err says why; nil: all are.
func (c *Client) noteLate(err error) {
	if err == nil {
		if c.unfinished >= lateLooks {
			c.log.Info("all workers are registered at the index service", "service", c.config.URL)
		}
		c.unfinished = 0
		return
	}
	if c.unfinished++; c.unfinished == lateLooks {
		c.log.Warn("not all workers are registered at the index service: the router tries again", "service", c.config.URL, "error", c.blank(err.Error()))
	}
}

// registrationOf returns what the service has to know of a worker to follow its events.
func registrationOf(w *fleet.Worker) *registration {
	f := &w.Facts
	return &registration{worker: w.URL, models: f.Models, engine: f.Engine.String(), version: f.Version, blockSize: f.BlockSize, sources: f.Events,
		ranks: f.UsedRanks(), firstRank: f.FirstRank, lease: registerLease}
}
