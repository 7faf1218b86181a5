//go:build unix

package publish

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// wheel builds the wheel of the Python library and installs it, with what it depends on, into a fresh environment. It
// returns the environment's interpreter.
func wheel(t testing.TB) (python string) {
	t.Helper()
	if testing.Short() {
		t.Skip("the Python library is tested by `make test` and `make interop`, not by -short")
	}
	pip := testenv.Installed(t, "publish/venv/bin/pip", "make interop")
	wheels := testenv.Installed(t, "publish/wheels", "make interop")
	dir := t.TempDir()
	// hatchling builds in the folder of the sources, so a copy keeps this folder clean.
	source := filepath.Join(dir, "source")
	if err := os.CopyFS(source, os.DirFS("python")); err != nil {
		t.Fatal(err)
	}
	command(t, dir, pip, "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-w", dir, source)
	built, err := filepath.Glob(filepath.Join(dir, "warmpath_publish-*-py3-none-any.whl"))
	if err != nil || len(built) != 1 {
		t.Fatalf("built wheels: %q, %v", built, err)
	}
	command(t, dir, filepath.Join(filepath.Dir(pip), "python"), "-m", "venv", "--without-pip", "fresh")
	python = filepath.Join(dir, "fresh/bin/python")
	command(t, dir, pip, "--python", python, "install", "-q", "--disable-pip-version-check", "--no-index", "--find-links", wheels, built[0])
	return python
}

func TestThePythonLibraryPassesItsTests(t *testing.T) {
	python := wheel(t)
	dir := t.TempDir()
	v := readVectors(t)
	v.Cases = slices.Concat(v.Cases, vllmCases(t))
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	vectors := filepath.Join(dir, "vectors.json")
	if err := os.WriteFile(vectors, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tests, err := filepath.Abs("python/tests")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("timeout", "-k", "1", "300", python, "-B", "-X", "dev", "-m", "unittest", "discover", "-s", tests)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	cmd.Env = append(os.Environ(), "WARMPATH_VECTORS="+vectors)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\nOK\n") {
		t.Errorf("the tests of the Python library: %v\n%s", err, out)
	}
	installed := command(t, dir, python, "-c", "import os, warmpath_publish as w; d = os.path.dirname(w.__file__); print(w.__version__, d, sorted(os.listdir(d)))")
	if !strings.HasPrefix(installed, "0.1.0 ") || !strings.Contains(installed, "fresh") || !strings.Contains(installed, "'py.typed'") {
		t.Errorf("installed is %s", installed)
	}
}
