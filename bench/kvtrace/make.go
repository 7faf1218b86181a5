package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/warmpath/warmpath/bench/internal/synth"
	"github.com/warmpath/warmpath/bench/internal/trace"
)

// presets has the workload files for which results are published, as changes of synth.DefaultLRU.
var presets = map[string]func(c *synth.LRUConfig){
	"main":  func(*synth.LRUConfig) {},
	"mem1m": func(c *synth.LRUConfig) { c.Capacity, c.Stored, c.Seed = 0, 1_000_000, 43 },
	"shared": func(c *synth.LRUConfig) {
		c.Same, c.Capacity, c.Stored, c.Seed, c.Conversations = true, 0, 60_000, 44, 100
	},
}

// makeTrace writes a workload file and prints its SHA-256.
func makeTrace(args []string) error {
	lru, hard := synth.DefaultLRU, synth.DefaultHard
	flags := flag.NewFlagSet("kvtrace make", flag.ContinueOnError)
	out := flags.String("o", "", "file to write (required)")
	preset := flags.String("preset", "", "a published file: main, mem1m or shared; other flags are ignored")
	isHard := flags.Bool("hard", false, "with behaviours of real engines that LRU caches do not have")
	with := flags.String("with", "holes,double,recut,forget", "with -hard: which troubles")
	version1 := flags.Bool("version1", false, "with -hard: the same events in version 1 of the format, which peerbench reads, too")
	seed := flags.Uint64("seed", 0, "0: the model's own")
	workers := flags.Int("workers", 0, "0: 16")
	conversations := flags.Int("convs", 0, "conversations that share prefixes; 0: the model's own")
	capacity := flags.Int("cap", -1, "blocks a worker may hold; 0: no limit; -1: the model's own")
	stored := flags.Int("stored", 0, "stop once this many blocks were stored; 0: the model's own")
	shortest := flags.Int("min", 0, "shortest chain in blocks; 0: the model's own")
	longest := flags.Int("max", 0, "longest chain in blocks; 0: the model's own")
	flags.BoolVar(&lru.Same, "same", false, "every worker stores the same; -stored then counts distinct blocks")
	flags.IntVar(&lru.Probes, "probes", lru.Probes, "most probes of each length")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" {
		return errors.New("make: name the file to write with -o")
	}
	if *capacity == 0 && *isHard {
		return errors.New("make: a hard trace needs a capacity")
	}
	override := func(dst *int, v int) {
		if v > 0 {
			*dst = v
		}
	}
	for _, o := range []struct {
		v         int
		lru, hard *int
	}{
		{*workers, &lru.Workers, &hard.Workers},
		{*conversations, &lru.Conversations, &hard.Conversations},
		{*capacity, &lru.Capacity, &hard.Capacity},
		{*stored, &lru.Stored, &hard.Stored},
		{*shortest, &lru.MinLen, &hard.MinLen},
		{*longest, &lru.MaxLen, &hard.MaxLen},
	} {
		override(o.lru, o.v)
		override(o.hard, o.v)
	}
	if *capacity == 0 {
		lru.Capacity = 0
	}
	if *seed != 0 {
		lru.Seed, hard.Seed = *seed, *seed
	}
	if *preset != "" {
		set := presets[*preset]
		if set == nil {
			return fmt.Errorf("make: unknown preset %q: give main, mem1m or shared", *preset)
		}
		lru = synth.DefaultLRU
		set(&lru)
	}
	if lru.MinLen > lru.MaxLen || lru.MaxLen > 65535 || hard.MinLen > hard.MaxLen || lru.Workers > trace.MaxWorkers {
		return fmt.Errorf("make: lengths must be within 1..65535, shortest first, and workers at most %d", trace.MaxWorkers)
	}
	trouble, err := synth.ParseTrouble(*with)
	if err != nil {
		return fmt.Errorf("make: %w", err)
	}
	hard.Trouble, hard.Version1 = trouble, *version1
	return writeTrace(*out, func(to io.WriteSeeker) (trace.Header, error) {
		if *isHard {
			return synth.Hard(to, hard)
		}
		return synth.LRU(to, lru)
	})
}

func writeTrace(path string, write func(io.WriteSeeker) (trace.Header, error)) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make: %w", err)
	}
	header, err := write(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make: %w", err)
	}
	again, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("make: %w", err)
	}
	defer again.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, again); err != nil {
		return fmt.Errorf("make: %w", err)
	}
	fmt.Printf("%s: %d records, %d queries, %d blocks stored, %d removed, sha256 %x\n",
		path, header.Records, header.Queries, header.Stored, header.Removed, sum.Sum(nil))
	return nil
}
