package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
)

// This file embeds the router, in 40 lines of code below the imports. A program calls start once, and ask for each
// request.

// start makes a router for the workers. Until ctx ends, goroutines of the group running follow the workers' KV events
// and clean up the router.
func start(ctx context.Context, running *sync.WaitGroup, workers []worker, log *slog.Logger) (*warmpath.Router, *kvfeed.Feed, error) {
	router, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{})})
	if err != nil {
		return nil, nil, err
	}
	for _, w := range workers {
		router.Fleet().Put(w.url, w.facts)
	}
	feed := kvfeed.New(router, kvfeed.Config{}, log)
	running.Go(func() { _ = feed.Run(ctx) }) // without Config.Listen, Run returns no error
	running.Go(func() { upkeep(ctx, router) })
	return router, feed, nil
}

// upkeep releases the load of lost requests, and frees the ids of workers that left. It runs until ctx ends.
func upkeep(ctx context.Context, router *warmpath.Router) {
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			router.Fleet().Expire(now())
			router.Reclaim(now())
		}
	}
}

// ask routes a prompt, prints the decision, and sends the prompt to the worker that the router chose.
func ask(ctx context.Context, out io.Writer, router *warmpath.Router, model string, prompt []block.Token) error {
	d, err := router.Route(ctx, &warmpath.Request{Model: model, Tokens: prompt, MaxTokens: 8, Now: now(), Random: rand.Uint64()})
	if err != nil {
		return err
	}
	defer d.Recycle() // the last call: after Recycle, the decision's memory belongs to the router again
	fmt.Fprintln(out, d)
	err = send(ctx, d.Worker.URL, model, prompt, func() { d.FirstToken(now()) })
	d.Done(outcomeOf(err), now())
	return err
}

func now() int64 { return time.Now().UnixNano() }
