package testenv

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// python is Debian's Python interpreter. It can import zmq if Debian's package python3-zmq, which uses libzmq, is
// installed.
const python = "/usr/bin/python3"

var havePyzmq = sync.OnceValue(func() error { return exec.Command(python, "-c", "import zmq").Run() })

// patience bounds the time until a script prints a line. It is long, because the interpreter starts slowly on a busy
// machine.
const patience = 30 * time.Second

// Script is a running Python script with libzmq: the other side of an interoperability test.
type Script struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	lines chan string
}

// StartScript runs the script at path until the test ends. Without python3-zmq it skips the test.
func StartScript(t *testing.T, path string, args ...string) *Script {
	t.Helper()
	if err := havePyzmq(); err != nil {
		Missing(t, "Debian's python3-zmq", "make interop")
	}
	cmd := exec.Command(python, append([]string{path}, args...)...)
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
	p := &Script{t, cmd, stdin, make(chan string, 100_000)}
	read := make(chan struct{})
	go func() { // ends with the script's output; the cleanup waits
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		p.Kill()
		<-read
		_ = cmd.Wait() // the error only says that the script was killed
		if t.Failed() {
			t.Logf("%s %v says on stderr: %s", path, args, stderr.String())
		}
	})
	return p
}

// Kill kills the script.
func (p *Script) Kill() { _ = p.cmd.Process.Kill() }

// Signal sends a signal to the script.
func (p *Script) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// Line returns the next line that the script prints.
func (p *Script) Line() string {
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

// Say writes a line to the script's input.
func (p *Script) Say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}
