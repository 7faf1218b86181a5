package telemetry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stalled is a standard error that somebody holds open and does not read, until open is closed.
type stalled struct {
	open chan struct{}
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (s *stalled) Write(b []byte) (int, error) {
	<-s.open
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// Each call of the logger returns although nothing can be written. Later the log has whole lines in their order, and
// one that says how many are missing behind them.
func TestALogThatNobodyReadsDropsLinesAndNeverWaits(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		synctest.Test(t, func(t *testing.T) {
			out := &stalled{open: make(chan struct{})}
			l, err := openLog(Config{LogLevel: "error", LogFormat: format}, out)
			if err != nil {
				t.Fatal(err)
			}
			l.Logger().Error("the first")
			synctest.Wait() // it is in the writer's hands
			const lines = 30000
			for n := range lines {
				l.Logger().Error("line", "n", n, "text", strings.Repeat("x", 100))
			}
			close(out.open)
			synctest.Wait()
			l.Logger().Error("the last")
			l.Close()
			counted := l.Lines()
			if counted.Dropped < lines/2 || counted.Dropped > lines-1000 || counted.Written+counted.Dropped != lines+2 || counted.Failed != 0 {
				t.Errorf("%s: %+v", format, counted)
			}
			text := strings.Split(strings.TrimSuffix(out.text.String(), "\n"), "\n")
			kept := lines - int(counted.Dropped)
			if len(text) != kept+3 {
				t.Fatalf("%s: %d lines, want %d", format, len(text), kept+3)
			}
			for n, line := range text[1 : kept+1] {
				if want := map[string]string{"text": fmt.Sprintf(" n=%d ", n), "json": fmt.Sprintf(`"n":%d,`, n)}[format]; !strings.Contains(line, want) {
					t.Fatalf("%s: line %d is %s", format, n, line)
				}
			}
			want := map[string]string{"text": fmt.Sprintf("lines=%d", counted.Dropped), "json": fmt.Sprintf(`"lines":%d}`, counted.Dropped)}[format]
			if note := text[kept+1]; !strings.Contains(note, "lines of this log are lost") || !strings.HasSuffix(note, want) || !strings.Contains(text[kept+2], "the last") {
				t.Errorf("%s: the end is %s", format, text[kept+1:])
			}
		})
	}
}

func TestTheEndWaitsASecondForTheReaderOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stalled{open: make(chan struct{})}
		l, err := openLog(DefaultConfig(), out)
		if err != nil {
			t.Fatal(err)
		}
		l.Logger().Info("stopped")
		begin := time.Now()
		l.Close()
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("Close waits %v for a reader that does not read", waited)
		}
		close(out.open)
		synctest.Wait()
		l.Logger().Info("too late")
		if got := l.Lines(); got != (LogLines{Written: 1, Dropped: 1}) || !strings.Contains(out.text.String(), "stopped") {
			t.Errorf("%+v: %s", got, out.text.String())
		}
	})
}

// A closed log has written each line, such as the reason why the router does not start.
func TestAClosedLogHasEachLine(t *testing.T) {
	var out bytes.Buffer
	l, err := openLog(DefaultConfig(), &out)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1000 {
		l.Logger().Info("line", "n", n)
	}
	l.Close()
	for n := range 1000 {
		if line, err := out.ReadString('\n'); err != nil || !strings.HasSuffix(line, fmt.Sprintf(" n=%d\n", n)) {
			t.Fatalf("line %d: %q, %v", n, line, err)
		}
	}
	has(t, scrape(t, New(DefaultConfig()), Sources{Log: l.Lines}), `warmpath_log_lines_total{log="router",result="written"} 1000`,
		`warmpath_log_lines_total{log="router",result="dropped"} 0`)
}

// openLog returns a log that runs.
func openLog(c Config, out io.Writer) (*Log, error) {
	l, err := NewLog(c, out)
	if err == nil {
		go l.Run() // ends after Close
	}
	return l, err
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	l, err := openLog(DefaultConfig(), broken{})
	if err != nil {
		t.Fatal(err)
	}
	l.Logger().Info("a line")
	l.Close()
	tel := New(DefaultConfig())
	access := tel.NewJournal("access", JournalConfig{File: "unused", Sample: 1}, l.Logger())
	access.drop(1)
	has(t, scrape(t, tel, Sources{Log: l.Lines}), `warmpath_log_lines_total{log="router",result="failed"} 1`,
		`warmpath_log_lines_total{log="access",result="dropped"} 1`) // both in one family
}
