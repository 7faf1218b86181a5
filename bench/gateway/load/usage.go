package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// usage has the processor time that each process in the flag -pids had used when the measurement began.
type usage struct {
	names []string
	pids  []int
	ticks []int64
}

func startUsage() *usage {
	u := &usage{}
	if *pids == "" {
		return u
	}
	for _, text := range strings.Split(*pids, ",") {
		name, number, _ := strings.Cut(text, "=")
		pid, err := strconv.Atoi(number)
		if err != nil {
			fmt.Fprintf(os.Stderr, "load: -pids: %v\n", err)
			os.Exit(1)
		}
		ticks, _ := tree(pid)
		u.names, u.pids, u.ticks = append(u.names, name), append(u.pids, pid), append(u.ticks, ticks)
	}
	return u
}

// since returns each process's processor time divided by n requests, in µs, and its memory in MB.
func (u *usage) since(n int) map[string]any {
	const tick = 10_000 // µs in one tick; Linux counts in hundredths of a second
	out := map[string]any{}
	for i, name := range u.names {
		ticks, kb := tree(u.pids[i])
		out["cpu_us_"+name] = float64(ticks-u.ticks[i]) * tick / float64(n)
		out["rss_mb_"+name] = float64(kb) / 1024
	}
	return out
}

// tree returns the processor time in ticks, and the resident memory in KB, of a process and its children.
func tree(root int) (ticks, kb int64) {
	type process struct{ ticks, kb int64 }
	processes, children := map[int]process{}, map[int][]int{}
	// Only Linux has these files. On other systems both results are 0.
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		text := string(data)
		pid, _ := strconv.Atoi(text[:strings.IndexByte(text, ' ')])
		// fields has the fields after the process's name, because the name may contain spaces.
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+2:])
		number := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
		processes[pid] = process{number(11) + number(12), number(21) * int64(os.Getpagesize()/1024)}
		children[int(number(1))] = append(children[int(number(1))], pid)
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		ticks, kb = ticks+processes[all[i]].ticks, kb+processes[all[i]].kb
		all = append(all, children[all[i]]...)
	}
	return ticks, kb
}
