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

// hertz is USER_HZ: the number of time units of /proc in a second. It is 100 on every Linux on which Go runs.
const hertz = 100

// used has the processor times of a run.
type used struct {
	engines, routers float64 // processor time in seconds
	others           float64 // average number of cores that processes outside of the run used
}

// watchProcessors starts a measurement, and returns a function that returns the processor times since the start. The
// time of an engine or router process that ends in between counts as others, so a restart makes others too high.
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

// busyTicks returns the time in which processors were not idle, summed over all processors, in units of 1/hertz
// seconds.
func busyTicks() int64 {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, f := range strings.Fields(line)[min(1, len(strings.Fields(line))):] {
		v, _ := strconv.ParseInt(f, 10, 64)
		// Count all kinds of time except idle (field 3 of the values) and waiting for a disk (field 4). The fields from 8 on
		// are part of earlier fields.
		if i != 3 && i != 4 && i < 8 {
			busy += v
		}
	}
	return busy
}

// groupTicks returns, by process id, the processor time of each process in the groups and of this process. The time of
// ended children is not included.
func groupTicks(groups []int) map[int]int64 {
	out := map[int]int64{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the process has ended
		}
		pid, group, ticks, ok := parseStat(b)
		if ok && (pid == os.Getpid() || slices.Contains(groups, group)) {
			out[pid] = ticks
		}
	}
	return out
}

// frontTicks returns the processor time of a group, without the processes that make an engine's passes. It recognises
// these processes by name.
func frontTicks(group int) (sum int64) {
	for pid, t := range groupTicks([]int{group}) {
		name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		if pid != os.Getpid() && !bytes.Contains(name, []byte("EngineCor")) && !bytes.Contains(name, []byte("::schedul")) {
			sum += t
		}
	}
	return sum
}

// parseStat reads the id, the group and the processor time of a process from the content of /proc/PID/stat; see
// proc(5).
func parseStat(b []byte) (pid, group int, ticks int64, ok bool) {
	end := bytes.LastIndexByte(b, ')') // the name of a command may contain spaces and brackets
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
	for _, f := range fields[11:13] { // user and system time; a living child has its own line in /proc
		v, _ := strconv.ParseInt(f, 10, 64)
		ticks += v
	}
	return pid, group, ticks, true
}

// loadAverages returns the machine's load averages over 1, 5 and 15 minutes.
func loadAverages() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b))[:min(3, len(strings.Fields(string(b))))], " ")
}
