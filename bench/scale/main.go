// Command scale measures what grows with the number of workers: a real router in front of many mock engines, the memory
// of a fleet, and the operations of an index that look at everything. See ../README.md.
//
//	go run ./scale serve -binary ../bin/warmpath -workers 1000 -idle 60s -rate 100 -load 60s
//	go run ./scale fleet 10000          memory of a fleet of 10,000 workers
//	go run ./scale index 1000 10000000  Clear and Forget in an index of 10 M blocks at 1,000 holders
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/warmpath/warmpath/bench/internal/machine"
	"github.com/warmpath/warmpath/internal/mockengine"
)

const usage = "usage: scale serve FLAGS | scale fleet WORKERS | scale index HOLDERS BLOCKS"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("name a measurement; %s", usage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var counts []int
	if args[0] != "serve" {
		for _, a := range args[1:] {
			n, err := strconv.Atoi(a)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a number above 0; %s", a, usage)
			}
			counts = append(counts, n)
		}
	}
	switch {
	case args[0] == "serve":
		return runServe(ctx, args[1:])
	case args[0] == "engines" && len(counts) == 1:
		return engines(ctx, counts[0])
	case args[0] == "fleet" && len(counts) == 1:
		fmt.Println(machine.Now())
		return fleetMemory(counts[0])
	case args[0] == "index" && len(counts) == 2:
		fmt.Println(machine.Now())
		return indexSweeps(counts[0], counts[1])
	}
	return fmt.Errorf("%q is no measurement; %s", args[0], usage)
}

func runServe(ctx context.Context, args []string) error {
	var s serve
	flags := flag.NewFlagSet("scale serve", flag.ContinueOnError)
	flags.StringVar(&s.binary, "binary", "../bin/warmpath", "the router's binary")
	flags.IntVar(&s.workers, "workers", 1000, "number of mock engines")
	flags.DurationVar(&s.idle, "idle", time.Minute, "how long the router is measured without requests")
	flags.IntVar(&s.rate, "rate", 100, "requests a second of the load")
	flags.DurationVar(&s.load, "load", 30*time.Second, "how long the load lasts; 0 for no load")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fmt.Println(machine.Now())
	return s.run(ctx)
}

// engines runs mock engines in this process until ctx ends. It prints a JSON list of their URLs when all are ready.
func engines(ctx context.Context, n int) error {
	urls := make([]string, n)
	ended := make(chan error, n)
	for i := range urls {
		cfg := mockengine.DefaultConfig()
		cfg.Blocks, cfg.BufferSteps, cfg.Speed, cfg.Seed = 1024, 100, 0, uint64(i)
		e, err := mockengine.New(cfg)
		if err != nil {
			return err
		}
		go func() { ended <- e.Run(ctx) }() // ends with ctx; waited for below
		select {
		case <-e.Ready():
			urls[i] = e.URL()
		case err := <-ended:
			return fmt.Errorf("start engine %d: %w", i, err)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(urls); err != nil {
		return err
	}
	for range urls {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}
