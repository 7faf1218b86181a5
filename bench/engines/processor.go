package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hertz is the unit of times in /proc: USER_HZ, 100 on every Linux that Go runs on.
const hertz = 100

// used is the processor time of a run.
type used struct {
	engines, routers float64 // seconds
	others           float64 // cores, on average: of processes that are neither this one nor the run's
}

// watchProcessors returns a function that tells what has been used since. What processes used that ended in between
// counts as others': a restart makes that figure too high.
func watchProcessors(engines, routers func() []int) func() used {
	start, before, mine := time.Now(), busyTicks(), groupTicks(append(engines(), routers()...))
	return func() used {
		var u used
		ticks := busyTicks() - before
		since := func(groups []int) (sum int64) {
			for pid, t := range groupTicks(groups) {
				sum += t - mine[pid]
			}
			return sum
		}
		own := since(nil)
		of := func(groups []int) float64 {
			t := since(groups) - own
			ticks -= t
			return float64(t) / hertz
		}
		u.engines, u.routers = of(engines()), of(routers())
		u.others = max(0, float64(ticks-own)/hertz/time.Since(start).Seconds())
		return u
	}
}

// busyTicks is the time that all processors have not been idle.
func busyTicks() int64 {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, f := range strings.Fields(line)[min(1, len(strings.Fields(line))):] {
		v, _ := strconv.ParseInt(f, 10, 64)
		if i != 3 && i != 4 && i < 8 { // not idle, not waiting for a disk; guests are counted in user
			busy += v
		}
	}
	return busy
}

// groupTicks is the processor time of each process of the groups and of this one, with what their ended children used.
func groupTicks(groups []int) map[int]int64 {
	out := map[int]int64{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // ended
		}
		pid, group, ticks, ok := parseStat(b)
		if ok && (pid == os.Getpid() || slices.Contains(groups, group)) {
			out[pid] = ticks
		}
	}
	return out
}

// frontTicks is the processor time of a group's processes but those that make an engine's passes, by their names.
func frontTicks(group int) (sum int64) {
	for pid, t := range groupTicks([]int{group}) {
		name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		if pid != os.Getpid() && !bytes.Contains(name, []byte("EngineCor")) && !bytes.Contains(name, []byte("::schedul")) {
			sum += t
		}
	}
	return sum
}

// parseStat reads a process's number, group and processor time from its line in /proc (proc(5)).
func parseStat(b []byte) (pid, group int, ticks int64, ok bool) {
	end := bytes.LastIndexByte(b, ')') // a command's name may have spaces and brackets
	open := bytes.IndexByte(b, '(')
	if end < 0 || open < 0 {
		return 0, 0, 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:open])))
	fields := strings.Fields(string(b[end+1:]))
	if err != nil || len(fields) < 15 {
		return 0, 0, 0, false
	}
	group, _ = strconv.Atoi(fields[2])
	for _, f := range fields[11:13] { // user and system; children are in /proc themselves while they live
		v, _ := strconv.ParseInt(f, 10, 64)
		ticks += v
	}
	return pid, group, ticks, true
}

// loadAverages are the machine's, of 1, 5 and 15 minutes.
func loadAverages() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b))[:min(3, len(strings.Fields(string(b))))], " ")
}
