package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

type entry struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

// runJournal writes the lines and waits until they are in the file.
func runJournal(t *testing.T, tel *Telemetry, cfg JournalConfig, log *slog.Logger, values ...any) {
	t.Helper()
	j := tel.NewJournal("access", cfg, log)
	for _, v := range values {
		j.Add(v, 100)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Run writes what waits, and ends
	if err := j.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAJournalKeepsABoundedNumberOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "access.jsonl")
	cfg := JournalConfig{File: file, Sample: 1, MaxBytes: leastJournal, MaxFiles: 2}
	tel := New(DefaultConfig())
	text := strings.Repeat("x", 1000)
	n := 0
	for range 8 {
		var values []any
		for range 100 {
			n++
			values = append(values, entry{n, text})
		}
		runJournal(t, tel, cfg, slog.New(slog.DiscardHandler), values...)
	}
	files, _ := filepath.Glob(file + "*")
	if len(files) != 3 {
		t.Fatalf("files %v", files)
	}
	// The lines of the files, the oldest file first, are the last lines in order, each of them whole.
	next := 0
	for _, name := range []string{file + ".2", file + ".1", file} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > leastJournal+2*batchBytes {
			t.Errorf("%s has %d bytes", name, len(content))
		}
		for line := range bytes.Lines(content) {
			var e entry
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s: %v in %.50q", name, err, line)
			}
			if next != 0 && e.N != next {
				t.Fatalf("%s: line %d follows line %d", name, e.N, next-1)
			}
			next = e.N + 1
		}
	}
	if next != n+1 {
		t.Errorf("the last line is %d of %d", next-1, n)
	}
	has(t, scrape(t, tel, Sources{}), fmt.Sprintf(`warmpath_log_lines_total{log="access",result="written"} %d`, n))
}

// No writer runs here: that is a file that takes no line at all.
func TestAFullJournalDropsLinesAndNeverWaits(t *testing.T) {
	tel := New(DefaultConfig())
	j := tel.NewJournal("decision", JournalConfig{File: "unused", Sample: 1}, slog.New(slog.DiscardHandler))
	for range maxWaitingLines + 10 {
		j.Add(entry{}, 1)
	}
	has(t, scrape(t, tel, Sources{}), `warmpath_log_lines_total{log="decision",result="dropped"} 10`)
	large := tel.NewJournal("access", JournalConfig{File: "unused", Sample: 1}, slog.New(slog.DiscardHandler))
	for range 20 {
		large.Add(entry{}, 1<<20)
	}
	has(t, scrape(t, tel, Sources{}), `warmpath_log_lines_total{log="access",result="dropped"} 4`)
}

func TestAJournalSurvivesAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	var log bytes.Buffer
	tel := New(DefaultConfig())
	runJournal(t, tel, JournalConfig{File: "/dev/full", Sample: 1}, slog.New(slog.NewTextHandler(&log, nil)), entry{}, entry{})
	has(t, scrape(t, tel, Sources{}), `warmpath_log_lines_total{log="access",result="failed"} 2`, `warmpath_log_lines_total{log="access",result="written"} 0`)
	if !strings.Contains(log.String(), "no space left") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("log: %s", log.String())
	}
}

// fillingUp is a file on a disk that is full during some writes: these write only the given number of bytes.
type fillingUp struct {
	bytes.Buffer
	room []int
}

func (f *fillingUp) Write(b []byte) (int, error) {
	if len(f.room) == 0 {
		return f.Buffer.Write(b)
	}
	n := min(f.room[0], len(b))
	f.room = f.room[1:]
	f.Buffer.Write(b[:n])
	return n, syscall.ENOSPC
}

// The full disk leaves a part of a line. The lines after it stand alone, so that a reader loses only that line.
func TestALineAfterAFullDiskStandsAlone(t *testing.T) {
	j := New(DefaultConfig()).NewJournal("access", JournalConfig{File: "unused", Sample: 1}, slog.New(slog.DiscardHandler))
	out := &fillingUp{room: []int{5, 0, 0}}
	j.out = out
	var b batch
	b.encoder = json.NewEncoder(&b.text)
	for n := range 6 {
		j.put(&b, line{value: entry{n, ""}})
	}
	want := `{"n":` + "\n" + `{"n":3,"text":""}` + "\n" + `{"n":4,"text":""}` + "\n" + `{"n":5,"text":""}` + "\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// Somebody removes a log because the disk is full. The router lets go of it, so that the disk gets the space back.
func TestALogThatWasRemovedFromAFullDiskBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	j := New(DefaultConfig()).NewJournal("access", JournalConfig{File: path, Sample: 1}, slog.New(slog.DiscardHandler))
	if err := j.Open(); err != nil {
		t.Fatal(err)
	}
	defer func() { j.Close() }()
	var b batch
	b.encoder = json.NewEncoder(&b.text)
	full := func() { j.out = &fillingUp{room: []int{0}} } // the next write fails
	old := j.file
	full()
	if j.put(&b, line{value: entry{0, ""}}); j.file != old {
		t.Error("a file that is still there was opened anew")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	full()
	j.put(&b, line{value: entry{1, ""}}) // lost
	j.put(&b, line{value: entry{2, ""}})
	if text, err := os.ReadFile(path); err != nil || string(text) != `{"n":2,"text":""}`+"\n" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := old.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the removed file is still open: %v", err)
	}
}

// A file that cannot be renamed, because its folder is gone, keeps its lines.
func TestAJournalThatCannotRotateWritesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(file+".1", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(file+".1", "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	tel := New(DefaultConfig())
	cfg := JournalConfig{File: file, Sample: 1, MaxBytes: leastJournal, MaxFiles: 1}
	for range 3 {
		runJournal(t, tel, cfg, slog.New(slog.NewTextHandler(&log, nil)), entry{1, strings.Repeat("x", leastJournal)})
	}
	info, err := os.Stat(file)
	if err != nil || info.Size() < 3*leastJournal || !strings.Contains(log.String(), "cannot be rotated") {
		t.Errorf("%v, %v: %s", info, err, log.String())
	}
}

func TestAJournalsFileIsOpenedAtTheStart(t *testing.T) {
	tel := New(DefaultConfig())
	j := tel.NewJournal("access", JournalConfig{File: filepath.Join(t.TempDir(), "missing", "log"), Sample: 1}, slog.New(slog.DiscardHandler))
	for step, err := range map[string]error{"open": j.Open(), "run": j.Run(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "make the folder ") || !strings.Contains(err.Error(), "telemetry.access_log.file") {
			t.Errorf("%s: error %v", step, err)
		}
	}
}

// A FIFO without a reader is an error, and not a start that hangs. With a reader it takes lines.
func TestAJournalDoesNotWaitForTheReaderOfAFIFO(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	tel, cfg := New(DefaultConfig()), JournalConfig{File: file, Sample: 1, MaxBytes: leastJournal, MaxFiles: 1}
	opened := make(chan error, 1)
	go func() { opened <- tel.NewJournal("access", cfg, slog.New(slog.DiscardHandler)).Open() }() // ends with a reader at the latest
	var err error
	select {
	case err = <-opened:
	case <-time.After(10 * time.Second):
		t.Error("Open waits for a reader")
	}
	if err == nil || !strings.Contains(err.Error(), "start its reader first") || !strings.Contains(err.Error(), "telemetry.access_log.file") {
		t.Errorf("without a reader: %v", err)
	}
	reader, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	runJournal(t, tel, cfg, slog.New(slog.DiscardHandler), entry{7, "read"})
	var buffer [100]byte
	if n, err := reader.Read(buffer[:]); err != nil || string(buffer[:n]) != `{"n":7,"text":"read"}`+"\n" {
		t.Errorf("with a reader: %v: %s", err, buffer[:n])
	}
}

// A FIFO or a device has no size. To rename it would take it from its readers, and as root /dev/stderr from everybody.
func TestAJournalRenamesNoDevice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.Symlink(os.DevNull, file); err != nil {
		t.Fatal(err)
	}
	cfg := JournalConfig{File: file, Sample: 1, MaxBytes: leastJournal, MaxFiles: 1}
	runJournal(t, New(DefaultConfig()), cfg, slog.New(slog.DiscardHandler), entry{1, strings.Repeat("x", leastJournal)})
	if target, err := os.Readlink(file); err != nil || target != os.DevNull {
		t.Errorf("the device was renamed: %q, %v", target, err)
	}
}

// The last line before a crash may be cut. The next line begins behind it.
func TestAJournalBeginsWithALineOfItsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(`{"n":1,"te`), 0o600); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		runJournal(t, New(DefaultConfig()), JournalConfig{File: file, Sample: 1}, nil, entry{n, ""})
	}
	want := `{"n":1,"te` + "\n" + `{"n":0,"text":""}` + "\n" + `{"n":1,"text":""}` + "\n"
	if text, err := os.ReadFile(file); err != nil || string(text) != want {
		t.Errorf("%v: %q", err, text)
	}
}

func TestAJournalTakesASample(t *testing.T) {
	var off *Journal
	if off.Takes() {
		t.Error("a journal without a file takes lines")
	}
	tel := New(DefaultConfig())
	for share, want := range map[float64][2]int{0: {0, 0}, 1: {1000, 1000}, .5: {400, 600}} {
		j, n := tel.NewJournal("access", JournalConfig{File: "unused", Sample: share}, nil), 0
		for range 1000 {
			if j.Takes() {
				n++
			}
		}
		if n < want[0] || n > want[1] {
			t.Errorf("sample %v takes %d of 1000", share, n)
		}
	}
}

func TestLinesAreWrittenWhileARouterRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	j := New(DefaultConfig()).NewJournal("access", JournalConfig{File: file, Sample: 1}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	j.Add(entry{7, "now"}, 10)
	testenv.Until(t, "the line is in the file", func() bool {
		text, _ := os.ReadFile(file)
		return string(text) == `{"n":7,"text":"now"}`+"\n"
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
