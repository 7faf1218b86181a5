// Package machine describes the machine, the commit and the command of a measurement, so that the measurement of a
// stored result can be repeated.
package machine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Facts describe the machine and the command. Programs print the facts before a result and store them with the result.
type Facts struct {
	Time    string `json:"time"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Load    string `json:"load"` // load averages over 1, 5 and 15 minutes, which show other work on the machine
	GOGC    string `json:"gogc"`
	Commit  string `json:"commit"` // commit, with "+changes" if tracked files of kvindex, block or bench differ from it
	Command string `json:"command"`
}

// Now collects the facts.
func Now() Facts {
	f := Facts{
		Time: time.Now().UTC().Format(time.RFC3339), Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), GOGC: "100", Commit: commit(), Command: command(),
	}
	if v := os.Getenv("GOGC"); v != "" {
		f.GOGC = v
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		f.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	return f
}

// String returns the facts in one line.
func (f Facts) String() string {
	return fmt.Sprintf("%s · %d × %s · %s %s GOGC=%s · load %s · commit %s · %s", f.Time, f.Cores, f.CPU, f.Go, f.OS, f.GOGC, f.Load, f.Commit, f.Command)
}

// command returns the command line of this process, without the folder of a temporary binary.
func command() string {
	args := append([]string(nil), os.Args...)
	args[0] = args[0][strings.LastIndexByte(args[0], '/')+1:]
	return strings.Join(args, " ")
}

func commit() string {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	c := string(bytes.TrimSpace(head))
	if changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":/kvindex", ":/block", ":/bench").Output(); err == nil && len(changed) > 0 {
		c += "+changes"
	}
	return c
}

// field returns the first value of a line "name : value" in a file, or "unknown".
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// ResidentBytes returns the process's resident anonymous memory: heap, stacks and anonymous maps, without mapped files.
func ResidentBytes() (int64, error) {
	value, ok := strings.CutSuffix(field("/proc/self/status", "RssAnon"), " kB")
	if !ok {
		return 0, errors.New("measure resident memory: /proc/self/status has no RssAnon")
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("measure resident memory: %w", err)
	}
	return n << 10, nil
}
