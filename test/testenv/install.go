package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// installed maps each target of make that installs software and then runs the tests that need it, to the environment
// variable that the target sets for these tests. Other targets, such as golden, only install.
var installed = map[string]string{"interop": "WARMPATH_INTEROP", "test-fleet": "WARMPATH_INTEROP", "test-engines": "WARMPATH_ENGINES"}

// Missing skips the test because what (some software) is not installed. Its message names the command that installs
// what. The command may have several targets, as `make test-engines interop`. If one of these targets itself runs the
// test, the installation is broken, and Missing fails the test. Every test that needs an installation must skip by
// Missing, because `make test` collects the messages of Missing and prints them last.
func Missing(t testing.TB, what, command string) {
	t.Helper()
	for _, target := range strings.Fields(command) {
		if v := installed[target]; v != "" && os.Getenv(v) != "" {
			t.Fatalf("%s is set, so `%s` should have installed %s: it is missing", v, command, what)
		}
	}
	t.Skipf("skipped: needs %s: %s", what, command)
}

// Cache returns the folder into which the project's commands install: on Linux $XDG_CACHE_HOME/warmpath, or
// ~/.cache/warmpath.
func Cache(t testing.TB) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("find the cache folder: %v", err)
	}
	return filepath.Join(dir, "warmpath")
}

// Installed returns the path of the file or folder name below Cache. If the path does not exist, the test skips with a
// message that names command, which installs the file.
func Installed(t testing.TB, name, command string) string {
	t.Helper()
	path := filepath.Join(Cache(t), name)
	if _, err := os.Stat(path); err != nil {
		Missing(t, path, command)
	}
	return path
}
