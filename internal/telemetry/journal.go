package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// JournalConfig says where a journal writes its lines: the access log, or the decision log.
type JournalConfig struct {
	// File is the path of the file, or stdout. Empty: no lines are written.
	File string `yaml:"file"`
	// Sample is the share of the requests that get a line, 0 to 1.
	Sample float64 `yaml:"sample"`
	// MaxBytes is the size at which the file is renamed to FILE.1, and a new file begins; FILE.1 becomes FILE.2, and so
	// on. 0: the file grows without limit.
	MaxBytes int64 `yaml:"max_bytes"`
	// MaxFiles is the number of renamed files that are kept.
	MaxFiles int `yaml:"max_files"`
}

// DefaultJournalConfig writes nothing. With a file, each request gets a line, and all files together take at most 600
// MiB: a day of 7 requests a second in the access log.
func DefaultJournalConfig() JournalConfig {
	return JournalConfig{Sample: 1, MaxBytes: 100 << 20, MaxFiles: 5}
}

// Stdout is the name of the standard output as a journal's file.
const Stdout = "stdout"

// leastJournal is the smallest MaxBytes above 0. A smaller file would be renamed after every few lines.
const leastJournal = 64 << 10

// problems returns all problems of c. Each begins with the path of its setting, below the key.
func (c JournalConfig) problems(key string) (found []error) {
	if !(c.Sample >= 0 && c.Sample <= 1) {
		found = append(found, fmt.Errorf("%s.sample: %v is outside 0..1", key, c.Sample))
	}
	if c.MaxBytes < 0 || c.MaxBytes > 0 && c.MaxBytes < leastJournal {
		found = append(found, fmt.Errorf("%s.max_bytes: %d is neither 0 nor 64KiB or more", key, c.MaxBytes))
	}
	if c.MaxFiles < 0 || c.MaxFiles > 1000 {
		found = append(found, fmt.Errorf("%s.max_files: %d is outside 0..1000", key, c.MaxFiles))
	}
	return found
}

// NoFolder reports whether the folder of the file is missing on this machine.
func (c JournalConfig) NoFolder() bool {
	if c.File == "" || c.File == Stdout {
		return false
	}
	_, err := os.Stat(filepath.Dir(c.File))
	return errors.Is(err, fs.ErrNotExist)
}

// Lines that wait for the writer are bounded in number and in memory. 16 MiB hold the lines of some seconds of a busy
// router. If the file cannot keep up, further lines are dropped.
const (
	maxWaitingLines = 8192
	maxWaitingBytes = 16 << 20
)

// Journal writes lines of JSON to a file. Add never waits: one goroutine, Run, encodes and writes the lines. A nil
// *Journal takes no line. The methods are safe for concurrent use.
type Journal struct {
	name string // the value of the label log, such as access
	cfg  JournalConfig
	t    *Telemetry
	log  *slog.Logger

	lines   chan line
	waiting atomic.Int64 // bytes of the lines in the channel, as Add estimated them

	// The fields below belong to Open, Run and Close, which do not run at the same time.
	out    io.Writer // the open file, or the standard output
	file   *os.File  // nil: out is the standard output
	size   int64     // bytes of the file
	torn   bool      // the file ends with a part of a line, because an error cut a write short
	stays  bool      // out is no regular file, so it must not be renamed: a FIFO, /dev/stderr
	warned time.Time // when the last problem was logged
}

// line is a value that waits to be written as JSON, and its size in memory.
type line struct {
	value any
	bytes int64
}

// NewJournal returns a journal with that name, or nil if cfg names no file. It opens no file: Open or Run does.
func (t *Telemetry) NewJournal(name string, cfg JournalConfig, log *slog.Logger) *Journal {
	if cfg.File == "" {
		return nil
	}
	for _, result := range []string{"written", "dropped", "failed"} {
		t.journals.WithLabelValues(name, result) // so that an alert has a series before the first line
	}
	return &Journal{name: name, cfg: cfg, t: t, log: log, lines: make(chan line, maxWaitingLines)}
}

// Takes reports whether the journal wants the line of a request: it is on, and the request is in the sample.
func (j *Journal) Takes() bool {
	return j != nil && (j.cfg.Sample >= 1 || rand.Float64() < j.cfg.Sample)
}

// logLinesHelp is the help of the metric of all journals, and of the router's own log.
const logLinesHelp = "Lines of the logs, by log (access, decision, or router: the router's own log) and by result: written, dropped (the file, or the reader of the standard error, could not keep up), failed (an error of the file, such as a full disk)."

// makeJournalMetrics makes the metric of all journals.
func (t *Telemetry) makeJournalMetrics(f promauto.Factory) {
	t.journals = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_log_lines_total",
		Help: logLinesHelp},
		[]string{"log", "result"})
}

// Add gives the journal a value to write as one line of JSON. bytes is the value's size in memory, about. The value
// must not change any more. Add never waits: if the writer is too slow, it drops the line, and counts it.
func (j *Journal) Add(value any, bytes int) {
	if j.waiting.Add(int64(bytes)) > maxWaitingBytes {
		j.drop(bytes)
		return
	}
	select {
	case j.lines <- line{value, int64(bytes)}:
	default:
		j.drop(bytes)
	}
}

func (j *Journal) drop(bytes int) {
	j.waiting.Add(-int64(bytes))
	j.t.journals.WithLabelValues(j.name, "dropped").Inc()
}

// Open opens the file. A router calls it before it serves, to find a log that it cannot write. Run then does not open
// it. Close, or the end of Run, closes the file. A nil *Journal has no file.
func (j *Journal) Open() error {
	if j == nil || j.out != nil {
		return nil
	}
	return j.open()
}

// Close closes the file that Open opened, if Run does not follow. It must not be called while Run runs.
func (j *Journal) Close() {
	if j != nil && j.file != nil {
		_ = j.file.Close() // Run may have closed it
	}
}

// Run writes lines until ctx ends, and then the lines that still wait. Its error says that the file could not be
// opened. A later problem, such as a full disk, loses lines, and is logged once a minute.
func (j *Journal) Run(ctx context.Context) error {
	if err := j.Open(); err != nil {
		return err
	}
	defer j.Close()
	b := batch{}
	b.encoder = json.NewEncoder(&b.text)
	b.encoder.SetEscapeHTML(false)
	for {
		select {
		case l := <-j.lines:
			j.put(&b, l)
		case <-ctx.Done():
			for {
				select {
				case l := <-j.lines:
					j.put(&b, l)
				default:
					return nil
				}
			}
		}
	}
}

// endLine ends the last line of a file that another process could not complete, so that the next line stands alone.
func (j *Journal) endLine() error {
	if j.size == 0 {
		return nil
	}
	f, err := os.Open(j.cfg.File)
	if err != nil {
		return nil // the file may be written, but not read
	}
	defer func() { _ = f.Close() }()
	last := []byte{'\n'}
	if _, err := f.ReadAt(last, j.size-1); err != nil || last[0] == '\n' { // a device, or a whole line
		return nil
	}
	n, err := j.out.Write([]byte{'\n'})
	j.size += int64(n)
	return err
}

// batch has whole lines that are written together.
type batch struct {
	text    bytes.Buffer
	encoder *json.Encoder // writes to text
	lines   int
}

// batchBytes is the size from which a batch is written although further lines wait.
const batchBytes = 64 << 10

// put adds a line to the batch. It writes the batch if no further line waits, or if the batch is large.
func (j *Journal) put(b *batch, l line) {
	j.waiting.Add(-l.bytes)
	if err := b.encoder.Encode(l.value); err != nil {
		j.failed(1, err)
	} else {
		b.lines++
	}
	if b.lines == 0 || len(j.lines) > 0 && b.text.Len() < batchBytes {
		return
	}
	if err := j.write(b.text.Bytes()); err != nil {
		j.failed(b.lines, err)
		j.renew()
	} else {
		j.t.journals.WithLabelValues(j.name, "written").Add(float64(b.lines))
	}
	b.text.Reset()
	b.lines = 0
	if j.file != nil && !j.stays && j.cfg.MaxBytes > 0 && j.size >= j.cfg.MaxBytes {
		j.rotate()
	}
}

// write appends whole lines to the file. If the file ends with a part of a line, write ends that line first.
func (j *Journal) write(lines []byte) error {
	if j.torn {
		n, err := j.out.Write([]byte{'\n'})
		if err != nil {
			return err
		}
		j.size, j.torn = j.size+int64(n), false
	}
	n, err := j.out.Write(lines)
	j.size += int64(n)
	j.torn = n > 0 && lines[n-1] != '\n'
	return err
}

// open opens the file for appending. Its mode lets only the owner and the group read the file, because lines have the
// addresses of clients.
func (j *Journal) open() error {
	if j.cfg.File == Stdout {
		j.out = os.Stdout
		return nil
	}
	// Without O_NONBLOCK, the opening of a FIFO waits for a program that reads it. With it, there is an error
	// (fifo(7)).
	f, err := os.OpenFile(j.cfg.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		advice := "choose another file"
		if j.cfg.NoFolder() {
			advice = "make the folder " + filepath.Dir(j.cfg.File) + ", " + advice
		} else if errors.Is(err, syscall.ENXIO) && j.isFIFO() {
			advice = "no program reads this FIFO: start its reader first, " + advice
		}
		return fmt.Errorf("open the %s log: %w; %s, or turn it off (telemetry.%s_log.file)", j.name, err, advice, j.name)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("open the %s log: %w", j.name, err)
	}
	j.out, j.file, j.size, j.torn, j.stays = f, f, info.Size(), false, !info.Mode().IsRegular()
	return j.endLine()
}

// isFIFO reports whether the file is a FIFO, also called a named pipe.
func (j *Journal) isFIFO() bool {
	info, err := os.Stat(j.cfg.File)
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0
}

// rotate renames the files and opens a new one. If that fails, lines go on to the present file.
func (j *Journal) rotate() {
	name := func(i int) string { return j.cfg.File + "." + strconv.Itoa(i) }
	var err error
	if j.cfg.MaxFiles == 0 {
		err = os.Remove(j.cfg.File)
	} else {
		for i := j.cfg.MaxFiles - 1; i >= 1 && err == nil; i-- {
			if err = os.Rename(name(i), name(i+1)); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
		if err == nil {
			err = os.Rename(j.cfg.File, name(1))
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil // somebody else has moved the file
	}
	old := j.file
	if err == nil {
		err = j.open()
	}
	if err != nil {
		j.size = 0 // tries again after as many bytes
		j.warn("the file of the log cannot be rotated: it grows on", err)
		return
	}
	_ = old.Close()
}

// renew opens the file anew if somebody has removed or moved it. A disk gets the space of a removed file back only when
// no process has the file open.
func (j *Journal) renew() {
	old := j.file
	if old == nil {
		return
	}
	was, err := old.Stat()
	if err != nil {
		return
	}
	if is, err := os.Stat(j.cfg.File); err == nil && os.SameFile(was, is) || err != nil && !errors.Is(err, os.ErrNotExist) {
		return
	}
	if err := j.open(); err != nil {
		j.warn("the log has no file: it was removed or moved, and cannot be opened anew", err)
	}
	if j.file != old {
		_ = old.Close()
	}
}

// failed counts lines that could not be written.
func (j *Journal) failed(lines int, err error) {
	j.t.journals.WithLabelValues(j.name, "failed").Add(float64(lines))
	j.warn("lines of the log are lost: they cannot be written", err)
}

// warn logs a problem, at most once a minute.
func (j *Journal) warn(text string, err error) {
	if now := time.Now(); now.Sub(j.warned) >= time.Minute {
		j.warned = now
		j.log.Warn(text, "log", j.name, "file", j.cfg.File, "error", err)
	}
}
