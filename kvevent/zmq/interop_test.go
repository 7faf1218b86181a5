//go:build unix

package zmq

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// python is the interpreter whose libzmq the tests talk to: Debian's python3-zmq.
const python = "/usr/bin/python3"

var havePyzmq = sync.OnceValue(func() error { return exec.Command(python, "-c", "import zmq").Run() })

// process is a script of testdata that runs, killed at the test's end.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	lines chan string
}

func startPython(t *testing.T, script string, args ...string) *process {
	t.Helper()
	if err := havePyzmq(); err != nil {
		t.Skipf("skipped: %s -c 'import zmq' says %v; apt-get install -y python3-zmq", python, err)
	}
	cmd := exec.Command(python, append([]string{filepath.Join("testdata", script)}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t, cmd, stdin, make(chan string, 100_000)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		p.kill()
		<-read
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s %v says on stderr: %s", script, args, stderr.String())
		}
	})
	return p
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

func (p *process) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the script ended")
		}
		return line
	case <-time.After(patience):
		p.t.Fatalf("no line of the script within %v", patience)
	}
	return ""
}

// order gives engine.py a command and returns its next sequence number.
func (p *process) order(command string, n int) uint64 {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.stdin, "%s %d\n", command, n); err != nil {
		p.t.Fatal(err)
	}
	next, err := strconv.ParseUint(p.line(), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return next
}

// realEngine starts engine.py and returns it with its endpoints.
func realEngine(t *testing.T, run string, src Source, more ...string) (*process, Source) {
	t.Helper()
	p := startPython(t, "engine.py", append([]string{run, src.Endpoint, src.Replay}, more...)...)
	src.Endpoint, src.Replay = p.line(), p.line()
	return p, src
}

var anyPort = Source{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*"}

func TestWeFollowARealPublisher(t *testing.T) {
	for _, form := range []string{"topic", "plain"} {
		t.Run(form, func(t *testing.T) {
			p, src := realEngine(t, "a", anyPort, "10000", form)
			src.Topic = "kv@"
			p.order("publish", 200)
			cfg := quick
			cfg.HeartbeatInterval, cfg.HeartbeatTimeout = 100*time.Millisecond, time.Second
			cfg.Verify = 200 * time.Millisecond
			d := newDiary(t)
			s, _ := subscribe(t, src, cfg, d)
			d.awaitComplete(1)
			p.order("publish", 50)
			p.order("drop", 5)
			n := p.order("publish", 50)
			d.awaitSeen(n)
			n = p.order("drop", 3) // the last ones: only the regular check finds them
			d.awaitSeen(n)
			d.expect(0)
			d.expectPayloads("a", 0, n)

			// Restarted at the same address, with more messages than before.
			p.kill()
			d.await("the disconnect", func() bool { return !d.connected })
			p, _ = realEngine(t, "b", src, "10000", form)
			n = p.order("publish", 400)
			d.await("the new stream", func() bool { return len(d.restarts) == 1 && d.next == n })
			d.awaitComplete(2)
			d.expectPayloads("b", 0, n)
			if st := s.Stats(); st.Lost != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// The ROUTER's default limit of 1000 messages makes libzmq lose most of a long replay (facts/engines.md, section 0, item 3).
func TestALongReplayOfARealRouterArrivesWhole(t *testing.T) {
	p, src := realEngine(t, "a", anyPort, "10000", "topic")
	n := p.order("publish", 10_000)
	d := newDiary(t)
	s, _ := subscribe(t, src, quick, d)
	d.awaitSeen(n)
	d.awaitComplete(1)
	d.expect(0)
	d.expectPayloads("a", 0, n)
	t.Logf("%d replays for %d messages", s.Stats().Replays, n)
}

func TestARealEnginesRotatedBufferIsSeen(t *testing.T) {
	p, src := realEngine(t, "a", anyPort, "100", "topic")
	n := p.order("publish", 1000)
	d := newDiary(t)
	subscribe(t, src, quick, d)
	d.awaitSeen(n)
	d.expect(0, [2]uint64{0, 900})
	d.expectPayloads("a", 900, n)
}

func TestAFrozenRealEngineIsNoticedAndFollowedAgain(t *testing.T) {
	p, src := realEngine(t, "a", anyPort, "1000", "topic")
	p.order("publish", 100)
	cfg := quick
	cfg.HeartbeatInterval, cfg.HeartbeatTimeout = 50*time.Millisecond, 100*time.Millisecond
	d := newDiary(t)
	subscribe(t, src, cfg, d)
	d.awaitComplete(1)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.await("the disconnect", func() bool { return !d.connected })
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	n := p.order("publish", 100)
	d.awaitSeen(n)
	d.awaitComplete(2)
	d.expect(0)
	d.expectPayloads("a", 0, n)
}

func TestARealEngineConnectsToOurListener(t *testing.T) {
	replay := nobody(t)
	g := &guests{t: t, replay: replay, diaries: make(map[Origin]*diary)}
	l := NewListener("ipc://"+filepath.Join(t.TempDir(), "s"), quick, g.accept)
	if err := l.Listen(); err != nil {
		t.Fatal(err)
	}
	runUntilStopped(t, l.Run)
	p, _ := realEngine(t, "a", Source{Endpoint: l.Endpoint(), Replay: replay}, "1000", "topic", "connect")
	for deadline := time.Now().Add(patience); len(g.find("a:1", "m", min(1, l.Stats().Streams))) == 0 && time.Now().Before(deadline); {
		p.order("publish", 1)
	}
	n := p.order("publish", 100)
	d := g.find("a:1", "m", 1)[0]
	d.awaitSeen(n)
	d.awaitComplete(1)
	d.expect(0)
	d.expectPayloads("a", 0, n)
}

func TestARealSubscriberFollowsOurPublisher(t *testing.T) {
	for _, withoutTopic := range []bool{false, true} {
		cfg := withReplay()
		cfg.ReplayWithoutTopic = withoutTopic
		e := startEngine(t, "a", cfg)
		e.publish(50)
		p := startPython(t, "subscriber.py", e.Endpoint(), e.ReplayEndpoint(), "10")
		for seq := uint64(10); seq < 50; seq++ {
			if got, want := p.line(), fmt.Sprintf("replay %d %d", seq, len(payload("a", seq))); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		if got := p.line(); got != "end" {
			t.Fatalf("got %q", got)
		}
		for !subscribed(e) {
			time.Sleep(time.Millisecond)
		}
		seq := e.Stats().Published - 1
		time.Sleep(500 * time.Millisecond) // longer than its heartbeats bear
		e.publish(1)
		for _, seq := range []uint64{seq, seq + 1} {
			if got, want := p.line(), fmt.Sprintf("live kv-events %d %d", seq, len(payload("a", seq))); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
}
