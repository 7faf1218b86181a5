// Command load sends chat requests to routers and workers (targets). For each target it writes one JSON line: times to
// the first byte, requests per second, and the processor time of the routers' processes. bench/gateway/run.sh calls
// this command.
//
//	load -mode cycle  -targets direct=127.0.0.1:9001,warmpath=127.0.0.1:8080 -wl a -n 1000 -warm 50
//	load -mode closed -c 32 -targets warmpath=127.0.0.1:8080 -pids router=PID -wl b -n 4000
//	load -mode open   -rate 200 -dur 20s -targets warmpath=127.0.0.1:8080 -wl b
//
// Mode cycle: one client sends each request to all targets, one after the other, and the times at a target are compared
// with the times at the first target. Mode closed: -c clients send without a pause. Mode open: requests start at a
// fixed rate, and the times of a request count from the time at which it was due.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	mode    = flag.String("mode", "closed", "cycle, closed or open")
	targets = flag.String("targets", "", "NAME=HOST:PORT[+HOST:PORT…], separated by commas; closed and open ask the first. NAME=A/B: the client sends the prefill leg to A, then the decode leg to B")
	work    = flag.String("wl", "a", "workload: a, prompts of 250 bytes; b, bodies of 33 KB of which 50 sessions share 24 KB; 8k, 64k and 512k, prompts that share nothing")
	clients = flag.Int("c", 1, "closed: clients at once")
	count   = flag.Int("n", 1000, "cycle and closed: requests")
	warm    = flag.Int("warm", 0, "cycle and closed: requests before those that count")
	longest = flag.Duration("maxdur", 60*time.Second, "cycle and closed: end after this time")
	rate    = flag.Float64("rate", 200, "open: requests a second")
	length  = flag.Duration("dur", 20*time.Second, "open: time over which requests start")
	pids    = flag.String("pids", "", "NAME=PID, separated by commas: processes whose processor time counts, with their children")
	out     = flag.String("out", "", "file to which the lines are added")
)

// unfinished bounds the requests under way in mode open: at this number it stops sending.
const unfinished = 512

// target is a router, or a set of workers that are asked without a router.
type target struct {
	name      string
	addresses []string
}

func main() {
	flag.Parse()
	all := parseTargets()
	switch *mode {
	case "cycle":
		cycle(all)
	case "closed":
		closed(all[0])
	case "open":
		open(all[0])
	default:
		fmt.Fprintf(os.Stderr, "load: there is no mode %q\n", *mode)
		os.Exit(1)
	}
}

func parseTargets() (all []target) {
	for _, text := range strings.Split(*targets, ",") {
		name, addresses, _ := strings.Cut(text, "=")
		all = append(all, target{name, strings.Split(addresses, "+")})
	}
	return all
}

// aim sets the address of s: HOST:PORT, or the addresses of both legs with a slash between them.
func (s *sender) aim(address string) {
	if prefill, decode, two := strings.Cut(address, "/"); two {
		s.address, s.first = decode, &sender{address: prefill}
		return
	}
	s.address = address
}

// cycle sends each request to all targets, one after the other, with one client. It compares each target's times with
// the first target's times for the same request.
func cycle(all []target) {
	bodies := makeBodies(*count + *warm)
	results := make([][]result, len(all))
	senders := make([]sender, len(all))
	for k, t := range all {
		senders[k].aim(t.addresses[0])
	}
	begin := time.Now()
	order := rand.New(rand.NewSource(7))
	for i := 0; i < *count+*warm && time.Since(begin) < *longest; i++ {
		for _, k := range order.Perm(len(all)) {
			r := senders[k].send(bodies[i%len(bodies)], time.Now())
			if i >= *warm {
				results[k] = append(results[k], r)
			}
		}
	}
	took := time.Since(begin)
	for k, t := range all {
		extra := map[string]any{}
		if k > 0 {
			extra["added_ttft_p50"], extra["added_total_p50"] = added(results[k], results[0])
		}
		emit(summary(t.name, results[k], took, extra))
	}
}

// added returns, in µs, by how much a target's times are longer than the first target's (base): the medians of the
// differences to the first byte and to the end.
func added(results, base []result) (first, total float64) {
	var firsts, totals []time.Duration
	for i := range min(len(results), len(base)) {
		if results[i].err == "" && base[i].err == "" {
			firsts = append(firsts, results[i].first-base[i].first)
			totals = append(totals, results[i].total-base[i].total)
		}
	}
	slices.Sort(firsts)
	slices.Sort(totals)
	return quantile(firsts, 0.5), quantile(totals, 0.5)
}

// closed runs clients. Each client sends its next request when its last request is answered.
func closed(t target) {
	bodies := makeBodies(*count + *warm)
	play := func(n int) ([]result, time.Duration) {
		var next atomic.Int64
		var group sync.WaitGroup
		each := make([][]result, *clients)
		begin := time.Now()
		for c := range *clients {
			group.Go(func() {
				var s sender
				s.aim(t.addresses[c%len(t.addresses)])
				defer s.close()
				for {
					i := int(next.Add(1)) - 1
					if i >= n || time.Since(begin) > *longest {
						return
					}
					each[c] = append(each[c], s.send(bodies[i%len(bodies)], time.Now()))
				}
			})
		}
		group.Wait()
		return slices.Concat(each...), time.Since(begin)
	}
	play(*warm)
	u := startUsage()
	results, took := play(*count)
	emit(summary(t.name, results, took, u.since(len(results))))
}

// open starts requests at a fixed rate, even if earlier requests are not answered yet.
func open(t target) {
	total := int(*rate * length.Seconds())
	bodies := makeBodies(total)
	results := make([]result, total)
	var mu sync.Mutex
	idle := map[string][]*sender{}
	take := func(address string) *sender {
		mu.Lock()
		defer mu.Unlock()
		if l := idle[address]; len(l) > 0 {
			idle[address] = l[:len(l)-1]
			return l[len(l)-1]
		}
		s := new(sender)
		s.aim(address)
		return s
	}
	var group sync.WaitGroup
	var outstanding atomic.Int64
	u := startUsage()
	begin := time.Now().Add(50 * time.Millisecond)
	interval := time.Duration(float64(time.Second) / *rate)
	sent := 0
	for i := range total {
		due := begin.Add(time.Duration(i) * interval)
		time.Sleep(time.Until(due))
		if outstanding.Load() >= unfinished {
			results[i] = result{err: "not sent: too many requests are unanswered"}
			continue
		}
		sent++
		outstanding.Add(1)
		group.Go(func() {
			defer outstanding.Add(-1)
			address := t.addresses[i%len(t.addresses)]
			s := take(address)
			results[i] = s.send(bodies[i%len(bodies)], due)
			mu.Lock()
			idle[address] = append(idle[address], s)
			mu.Unlock()
		})
	}
	group.Wait()
	extra := u.since(sent)
	extra["not_sent"] = total - sent
	emit(summary(t.name, results, time.Since(begin), extra))
}

// quantile returns a quantile of sorted durations, in µs.
func quantile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(p*float64(len(sorted)-1)+0.5)].Microseconds())
}

// summary returns the output line of one target. Times are in µs, and cover only requests with a good answer.
func summary(name string, results []result, took time.Duration, extra map[string]any) map[string]any {
	good := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.err != "" })
	errors := map[string]int{}
	for _, r := range results {
		if r.err != "" {
			errors[r.err[:min(len(r.err), 120)]]++
		}
	}
	line := map[string]any{"mode": *mode, "wl": *work, "c": *clients, "target": name, "n": len(results), "ok": len(good),
		"wall_s": took.Seconds(), "rps": float64(len(good)) / took.Seconds()}
	for key, value := range map[string]func(result) time.Duration{
		"ttft": func(r result) time.Duration { return r.first }, "total": func(r result) time.Duration { return r.total },
	} {
		slices.SortFunc(good, func(a, b result) int { return cmp.Compare(value(a), value(b)) })
		var sorted []time.Duration
		for _, r := range good {
			sorted = append(sorted, value(r))
		}
		line[key+"_p50"], line[key+"_p99"] = quantile(sorted, 0.5), quantile(sorted, 0.99)
	}
	if len(errors) > 0 {
		line["errors"] = errors
	}
	for key, value := range extra {
		line[key] = value
	}
	return line
}

// emit prints a line and appends it to the file that the flag -out names.
func emit(line map[string]any) {
	data, err := json.Marshal(line)
	if err != nil {
		panic(fmt.Sprintf("bug: encode a line: %v", err))
	}
	fmt.Println(string(data))
	if *out == "" {
		return
	}
	f, err := os.OpenFile(*out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.Write(append(data, '\n'))
		err = cmp.Or(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}
