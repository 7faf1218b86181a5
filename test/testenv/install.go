package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// Missing skips the test because it needs something that is not installed, and names the command that installs it.
// Every skip for a missing installation goes through here: `make test` collects these lines and prints them last.
func Missing(t testing.TB, what, command string) {
	t.Helper()
	t.Skipf("skipped: needs %s: %s", what, command)
}

// Cache returns the folder into which the project's commands install: $XDG_CACHE_HOME/warmpath, or ~/.cache/warmpath.
func Cache(t testing.TB) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("find the cache folder: %v", err)
	}
	return filepath.Join(dir, "warmpath")
}

// Installed returns the path of the file or folder name below Cache. Where it does not exist the test skips, and names
// the command that installs it.
func Installed(t testing.TB, name, command string) string {
	t.Helper()
	path := filepath.Join(Cache(t), name)
	if _, err := os.Stat(path); err != nil {
		Missing(t, path, command)
	}
	return path
}
