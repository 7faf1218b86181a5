package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// skipping is a testing.TB that records the message of Skipf or Fatalf, and does not end the test.
type skipping struct {
	testing.TB
	text, failure string
}

func (s *skipping) Helper()                          {}
func (s *skipping) Skipf(format string, args ...any) { s.text = fmt.Sprintf(format, args...) }
func (s *skipping) Fatalf(format string, args ...any) {
	s.failure = fmt.Sprintf(format, args...)
}

func TestABrokenInstallationFailsTheTestsThatTheInstallerRuns(t *testing.T) {
	for _, c := range []struct {
		command   string
		variables []string // each makes Missing fail the test
	}{
		{"make interop", []string{"WARMPATH_INTEROP"}},
		{"make test-engines", []string{"WARMPATH_ENGINES"}},
		{"make test-engines interop", []string{"WARMPATH_ENGINES", "WARMPATH_INTEROP"}},
		{"make test-engines golden", []string{"WARMPATH_ENGINES"}},
		{"make golden", nil},
		{"apt-get install make", nil},
	} {
		for _, set := range []string{"", "WARMPATH_ENGINES", "WARMPATH_INTEROP"} {
			for _, variable := range installed {
				t.Setenv(variable, "")
			}
			if set != "" {
				t.Setenv(set, "1")
			}
			s := &skipping{TB: t}
			Missing(s, "a thing", c.command)
			message, broken := s.text, slices.Contains(c.variables, set)
			if broken {
				message = s.failure
			}
			if (s.failure != "") != broken || !strings.Contains(message, "a thing") || !strings.Contains(message, c.command) {
				t.Errorf("%s, with %q set: skipped %q, failed %q", c.command, set, s.text, s.failure)
			}
		}
	}
}

// `make test` passes the output of `go test -v` through skipped.awk.
func TestMakeTestNamesWhatWasSkipped(t *testing.T) {
	for _, variable := range installed {
		t.Setenv(variable, "")
	}
	skip := func(what, command string) string {
		s := &skipping{TB: t}
		Missing(s, what, command)
		return "    some_test.go:12: " + s.text + "\n"
	}
	output := "=== RUN   TestA\n" + skip("/c/models", "make golden") + "--- SKIP: TestA (0.00s)\nok  \tm/a\t0.1s\n" +
		"=== RUN   TestB\n    b_test.go:3: wrong\n--- FAIL: TestB (0.00s)\nFAIL\nFAIL\tm/b\t0.2s\n" +
		"?   \tm/c\t[no test files]\n" +
		skip("/c/models", "make golden") + skip("python: 3", "make interop") + "ok  \tm/d\t(cached)\n" +
		"# m/e\ne.go:1:1: syntax error\nFAIL\tm/e [build failed]\nFAIL\n"
	want := "ok  \tm/a\t0.1s\n" +
		"=== RUN   TestB\n    b_test.go:3: wrong\n--- FAIL: TestB (0.00s)\nFAIL\nFAIL\tm/b\t0.2s\n" +
		"?   \tm/c\t[no test files]\nok  \tm/d\t(cached)\n" +
		"# m/e\ne.go:1:1: syntax error\nFAIL\tm/e [build failed]\nFAIL\n" +
		"skipped: 2 tests need /c/models: make golden\nskipped: 1 test needs python: 3: make interop\n"
	cmd := exec.Command("awk", "-f", "../skipped.awk")
	cmd.Stdin = strings.NewReader(output)
	got, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("awk ends with %v, want status 1: a package failed", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	cmd = exec.Command("awk", "-f", "../skipped.awk")
	cmd.Stdin = strings.NewReader("ok  \tm/a\t0.1s\n")
	if got, err := cmd.Output(); err != nil || string(got) != "ok  \tm/a\t0.1s\n" {
		t.Errorf("without a failure: %q, %v", got, err)
	}
}

// `go test` writes compile errors to its standard error. skipped.awk does not see them, but `make test` must print
// them.
func TestMakeTestShowsCompileErrors(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		Missing(t, "make", "apt-get install make")
	}
	stub := filepath.Join(t.TempDir(), "go")
	script := `#!/bin/sh
case $PWD in */examples) exit 0 ;; esac
printf '# m/b\nb.go:3:13: undefined: missing\n' >&2
printf '=== RUN   TestA\n    a_test.go:1: skipped: needs a thing: make thing\n--- SKIP: TestA (0.00s)\nok  \tm/a\t0.1s\n'
printf 'FAIL\tm/b [build failed]\nok  \tm/c\t0.1s\nFAIL\n'
exit 1
`
	if err := os.WriteFile(stub, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "-s", "-C", "../..", "test", "GO="+stub)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") })
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err == nil {
		t.Error("make test succeeds")
	}
	want := "ok  \tm/a\t0.1s\nFAIL\tm/b [build failed]\nok  \tm/c\t0.1s\nFAIL\nskipped: 1 test needs a thing: make thing\n"
	if diff := cmp.Diff(want, stdout.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(stderr.String(), "undefined: missing") {
		t.Errorf("the compile error is missing in\n%s", &stderr)
	}
}
