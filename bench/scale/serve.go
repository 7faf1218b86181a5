package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// serve measures a router process in front of mock engines, which run in one other process.
type serve struct {
	binary        string
	workers, rate int
	idle, load    time.Duration

	dir           string
	clients, side string // the router's addresses: for clients, and for operators
}

func (s *serve) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s.dir = dir
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fleet := exec.CommandContext(ctx, self, "engines", strconv.Itoa(s.workers))
	fleet.Stderr = os.Stderr
	out, err := fleet.StdoutPipe()
	if err != nil {
		return err
	}
	if err := fleet.Start(); err != nil {
		return err
	}
	defer end(fleet)
	var urls []string
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&urls); err != nil {
		return fmt.Errorf("start %d engines: %w", s.workers, err)
	}
	router, err := s.start(ctx, urls)
	if err != nil {
		return err
	}
	defer end(router)
	return s.measure(ctx, router.Process.Pid)
}

// end stops a process and waits for it.
func end(c *exec.Cmd) {
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
}

// start starts the router with the workers.
func (s *serve) start(ctx context.Context, urls []string) (*exec.Cmd, error) {
	var err error
	if s.clients, err = free(); err != nil {
		return nil, err
	}
	if s.side, err = free(); err != nil {
		return nil, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "listen: %q\nadmin: {listen: %q}\ntelemetry: {log_level: error}\ngateway: {drain_timeout: 1s}\nworkers:\n", s.clients, s.side)
	for _, u := range urls {
		fmt.Fprintf(&text, "  - url: %s\n", u)
	}
	file := filepath.Join(s.dir, "warmpath.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, s.binary, "serve", "--config", file)
	c.Stderr = os.Stderr
	return c, c.Start()
}

// free returns a loopback address that is free now.
func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// used is what a process has used so far.
type used struct {
	processor time.Duration
	resident  int64 // bytes
	files     int
}

// usageOf reads the figures of a process from /proc, see proc(5).
func usageOf(pid int) (used, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return used{}, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 22 {
		return used{}, errors.New("read /proc: the process has ended")
	}
	var ticks int64
	for _, f := range fields[11:13] { // user and system time, in ticks of 10 ms
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return used{}, err
		}
		ticks += n
	}
	pages, err := strconv.ParseInt(fields[21], 10, 64)
	if err != nil {
		return used{}, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return used{time.Duration(ticks) * 10 * time.Millisecond, pages * int64(os.Getpagesize()), len(open)}, err
}

func (s *serve) measure(ctx context.Context, pid int) error {
	begin := time.Now()
	for {
		ready, exact, err := s.count(ctx)
		if err == nil && ready == s.workers && exact == s.workers {
			break
		}
		if time.Since(begin) > 5*time.Minute {
			return fmt.Errorf("after 5 min %d workers of %d are ready, and %d caches are known: %w", ready, s.workers, exact, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	u, err := usageOf(pid)
	if err != nil {
		return err
	}
	fmt.Printf("workers %d: all ready after %.1f s, %.1f s of CPU, %d MB resident, %d descriptors\n",
		s.workers, time.Since(begin).Seconds(), u.processor.Seconds(), u.resident>>20, u.files)
	for _, phase := range []struct {
		name string
		time time.Duration
		rate int
	}{{"idle", s.idle, 0}, {"load", s.load, s.rate}} {
		if phase.time == 0 {
			continue
		}
		before, err := usageOf(pid)
		if err != nil {
			return err
		}
		began := time.Now()
		text := s.requests(ctx, phase.rate, phase.time)
		after, err := usageOf(pid)
		if err != nil {
			return err
		}
		took := time.Since(began)
		fmt.Printf("workers %d, %s for %.0f s: %.1f %% of a core, %d MB resident, %d descriptors%s\n", s.workers, phase.name,
			took.Seconds(), 100*float64(after.processor-before.processor)/float64(took), after.resident>>20, after.files, text)
	}
	return ctx.Err()
}

// count returns how many workers are ready, and how many caches are known exactly.
func (s *serve) count(ctx context.Context) (ready, exact int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.side+"/admin/workers", nil)
	if err != nil {
		return 0, 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	ready = strings.Count(string(text), `"ready":true`) + strings.Count(string(text), `"ready": true`)
	exact = strings.Count(string(text), `"trust":"exact"`) + strings.Count(string(text), `"trust": "exact"`)
	return ready, exact, err
}

// requests sends rate requests a second for some time, and describes the answers. All prompts have the same first 4,000
// bytes, and half of each prompt is its own.
func (s *serve) requests(ctx context.Context, rate int, duration time.Duration) string {
	if rate == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(duration):
		}
		return ""
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 30 * time.Second}
	shared := strings.Repeat("the same beginning ", 210)
	var group sync.WaitGroup
	var failed atomic.Int64
	n := int(float64(rate) * duration.Seconds())
	times := make([]time.Duration, n)
	began := time.Now()
	for i := range n {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(time.Until(due)):
		}
		group.Add(1)
		go func() { // ends with the answer or after 30 s; waited for below
			defer group.Done()
			body := fmt.Sprintf(`{"model":"mock","max_tokens":8,"prompt":%q}`, shared+strings.Repeat(fmt.Sprintf("%d and ", i), 500))
			response, err := client.Post("http://"+s.clients+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				failed.Add(1)
				return
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
				failed.Add(1)
			}
			times[i] = time.Since(due)
		}()
	}
	group.Wait()
	slices.Sort(times)
	return fmt.Sprintf(", %d requests at %d a second, %d failed, p50 %.1f ms, p99 %.1f ms", n, rate, failed.Load(),
		float64(times[n/2])/1e6, float64(times[n*99/100])/1e6)
}
