package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: engines play|report|fit|list [flags]")
		os.Exit(2)
	}
	command, args := os.Args[1], os.Args[2:]
	var err error
	switch command {
	case "play":
		err = playAll(ctx, args)
	case "report":
		err = reportAll(args)
	case "fit":
		err = fitAll(ctx, args)
	case "list":
		list()
	default:
		err = fmt.Errorf("no command is called %q: play, report, fit or list", command)
	}
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		os.Exit(1)
	}
}

// say prints progress to stderr.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format("15:04:05 ")+format+"\n", args...)
}

func list() {
	fmt.Println("sets:")
	for _, s := range sets {
		fmt.Printf("  %-15s %s; %d s a run\n", s.name, s.about, s.seconds)
	}
	fmt.Println("routers:")
	for _, r := range routers {
		about := r.about
		if r.extra {
			about += "; played only when it is named"
		}
		fmt.Printf("  %-15s %s\n", r.name, about)
	}
}

func playAll(ctx context.Context, args []string) error {
	b, f := benchFlags("play")
	kindName := f.String("engine", "vllm", "vllm or sglang")
	setNames := f.String("sets", "all", "sets to play, separated by commas")
	routerNames := f.String("routers", "all", "routers to play them through, separated by commas; all but warmpath-asking unless named; \"warmpath FLAGS\" is Warmpath with more flags")
	rounds := f.Int("rounds", 3, "rounds; the order of the routers rotates")
	f.Float64Var(&b.scale, "scale", 1, "times the number of requests; prompts keep their lengths")
	f.Uint64Var(&b.seed, "seed", 1, "of the texts and their order")
	out := f.String("out", "engines.jsonl", "file of results; what is in it is not played again")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	b.kind = kind(*kindName)
	if _, ok := counters[b.kind]; !ok {
		return fmt.Errorf("engine %q: vllm or sglang", *kindName)
	}
	if b.scale <= 0 || *rounds < 1 {
		return errors.New("-scale and -rounds must be positive")
	}
	todo, err := b.todo(*setNames, *routerNames, *rounds, *out)
	if err != nil || len(todo) == 0 {
		if err == nil {
			say("nothing to do: all of it is in %s", *out)
		}
		return err
	}
	if err := b.open(); err != nil {
		return err
	}
	b.name()
	say("%d runs to play, about %s; results in %s, logs in %s", len(todo), duration(todo, b.scale), *out, b.dir)
	defer b.stop()
	lost := 0
	for i, t := range todo {
		start := time.Now()
		r, err := b.once(ctx, t.set, t.router, t.round)
		if ctx.Err() != nil {
			return errors.New("interrupted; the same command goes on where it was")
		}
		if errors.Is(err, errEngine) {
			return err
		}
		if err != nil { // the other routers can still be measured
			say("round %d, %s through %s: %v", t.round, t.set.name, t.router.name, err)
			lost++
			continue
		}
		if err := appendResult(*out, r); err != nil {
			return err
		}
		say("%d/%d round %d %s %s: hits %.1f %%, first token %.0f/%.0f/%.0f ms (mean/p50/p90), %.1f s, least share %.0f %%, failed %d, others %.1f cores; took %.0f s, %s left",
			i+1, len(todo), t.round, t.set.name, t.router.name, r.hits(), r.First.Mean, r.First.P50, r.First.P90, r.Seconds, r.least(), r.Failed,
			r.Others, time.Since(start).Seconds(), duration(todo[i+1:], b.scale))
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d runs failed; the same command plays them again", lost, len(todo))
	}
	return nil
}

// benchFlags returns a bench and the flags with its paths.
func benchFlags(command string) (*bench, *flag.FlagSet) {
	b := &bench{scale: 1}
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.StringVar(&b.scripts, "scripts", "", "folder of serve.sh and serve_sglang.sh")
	f.StringVar(&b.engines, "engines", "", "folder in which engines are installed")
	f.StringVar(&b.routers, "peers", "", "folder in which the peers are installed")
	f.StringVar(&b.warmpath, "warmpath", "", "binary of warmpath")
	f.StringVar(&b.dir, "logs", "", "folder for logs (default: a temporary one)")
	return b, f
}

// open makes the folder of logs and finds ports.
func (b *bench) open() (err error) {
	if b.dir == "" {
		b.dir, err = os.MkdirTemp("", "warmpath-engines-")
	} else {
		err = os.MkdirAll(b.dir, 0o755)
	}
	if err == nil {
		b.ports, err = freePorts(40)
	}
	return err
}

// turn is one run to play.
type turn struct {
	set    set
	router routerKind
	round  int
}

// todo returns the wanted runs that are not in the file. Runs with the same engines come together, so that engines are
// started seldom; then runs are ordered by round, set and router.
func (b *bench) todo(setNames, routerNames string, rounds int, out string) ([]turn, error) {
	chosen, err := choose(setNames, sets, setNamed)
	if err != nil {
		return nil, err
	}
	through, err := choose(routerNames, usual(), routerNamed)
	if err != nil {
		return nil, err
	}
	before, err := readResults(out)
	if err != nil {
		return nil, err
	}
	done := map[string]bool{}
	for i := range before {
		done[before[i].key()] = true
	}
	var todo []turn
	for _, ranks := range []bool{false, true} {
		for round := 1; round <= rounds; round++ {
			for _, s := range chosen {
				if s.ranks != ranks {
					continue
				}
				first := (round - 1) % len(through)
				for _, r := range slices.Concat(through[first:], through[:first]) {
					t := result{Engine: string(b.kind), Set: s.name, Work: s.fingerprint(), Router: r.name, Round: round, Scale: b.scale, Seed: b.seed}
					if !done[t.key()] {
						todo = append(todo, turn{s, r, round})
					}
				}
			}
		}
	}
	return todo, nil
}

// choose returns the elements with the given names, which are separated by commas. "all" means every element.
func choose[T any](names string, all []T, named func(string) (T, error)) ([]T, error) {
	if names == "all" {
		return all, nil
	}
	var chosen []T
	for _, name := range strings.Split(names, ",") {
		one, err := named(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, one)
	}
	return chosen, nil
}

// duration estimates how long the runs take together.
func duration(todo []turn, scale float64) time.Duration {
	const around = 6 // seconds before and after a run's requests: empty the caches, start and stop the router
	sum, engines := 0.0, map[bool]bool{}
	for _, t := range todo {
		fixed := around
		if t.set.event == engineRestart {
			fixed += 75
		}
		sum += float64(fixed) + float64(t.set.seconds-fixed)*scale
		engines[t.set.ranks] = true
	}
	return (time.Duration(sum+120*float64(len(engines))) * time.Second).Round(time.Minute)
}

// name records the commit, and the versions of engines and routers, for the results.
func (b *bench) name() {
	b.commit = "unknown"
	if out, err := exec.Command(b.warmpath, "version").Output(); err == nil {
		b.commit = strings.TrimSpace(string(out))
	}
	if c := os.Getenv("WARMPATH_COMMIT"); c != "" {
		b.commit = c
	}
	b.versions = map[string]string{
		"engine":      (&engine{kind: b.kind, root: b.engines}).version(),
		"smg":         installed(filepath.Join(b.routers, "smg"), "smg"),
		"vllm-router": installed(filepath.Join(b.routers, "vllm-router"), "vllm-router"),
		"nginx":       "nginx",
	}
	if out, err := exec.Command("/usr/sbin/nginx", "-v").CombinedOutput(); err == nil {
		_, b.versions["nginx"], _ = strings.Cut(strings.TrimSpace(string(out)), ": ")
	}
}
