package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a running command with its children, in a process group of its own.
type process struct {
	name string
	pgid int
	log  string
	done chan struct{} // closed when the command has ended; its children may still run
}

// launch starts a command and writes its output to dir/name.log.
func launch(dir, name string, env []string, command string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(command, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pgid = cmd.Process.Pid
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// gone reports whether all processes of the group have ended.
func (p *process) gone() bool {
	select {
	case <-p.done: // the command has ended; now check its children
	default:
		return false
	}
	return syscall.Kill(-p.pgid, 0) != nil
}

// stop ends the process group. It sends SIGTERM first, because a killed API server does not end its engine process.
// After grace it sends SIGKILL.
func (p *process) stop(grace time.Duration) {
	_ = syscall.Kill(-p.pgid, syscall.SIGTERM)
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if p.gone() {
			return
		}
	}
	_ = syscall.Kill(-p.pgid, syscall.SIGKILL)
	<-p.done
}

// ready waits until a GET of url answers 200, at most the time patience.
func (p *process) ready(ctx context.Context, url string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if get(ctx, url) == nil {
			return nil
		}
		if p.gone() {
			return fmt.Errorf("%s ended while starting:\n%s", p.name, p.said())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer %s after %v:\n%s", p.name, url, patience, p.said())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// said returns the last lines of the process's log.
func (p *process) said() string {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-15):], "\n  ")
}

// quick is the HTTP client for requests that an engine answers without a pass of the model.
var quick = &http.Client{Timeout: 10 * time.Second}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := quick.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// freePorts returns the first of n consecutive free ports. The ports are above the range that Linux uses for outgoing
// connections (32768 to 60999 by default), because such a connection could take a port before the engine listens on it.
func freePorts(n int) (int, error) {
	const first, last = 61000, 65500
	for range 200 {
		base := first + rand.IntN(last-first-n)
		free := true
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", base+i))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row from %d to %d", n, first, last)
}
