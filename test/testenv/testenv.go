// Package testenv has what tests of several packages need beside the code that they test: recordings of engines, traces,
// the built binary, and processes that play the other side. It imports nothing of this module, so that every package
// can use it.
package testenv

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Path returns the place of name below the shared folder, or skips the test when it is not there. The folder is
// $WARMPATH_SHARED, or the first `shared` found beside a parent of the working directory.
func Path(t testing.TB, name string) string {
	t.Helper()
	if root := os.Getenv("WARMPATH_SHARED"); root != "" {
		return existing(t, filepath.Join(root, name))
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("find the working directory: %v", err)
	}
	for {
		candidate := filepath.Join(dir, "shared", name)
		if _, err := os.Stat(candidate); err == nil {
			return candidate
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Skipf("skipped: %s is not in a shared/ folder beside the project; set WARMPATH_SHARED to where it is", name)
		}
		dir = parent
	}
}

// Recordings returns the folder of what real engines sent, as Path does. Where $CI is set the test fails when it is not
// there: a promise about real engines' streams that CI skips is not kept by anything.
func Recordings(t testing.TB) string {
	t.Helper()
	if os.Getenv("CI") != "" {
		defer func() {
			if t.Skipped() {
				t.Errorf("the recordings of engines are missing, and CI is set: put shared/vectors/live beside the project, or set WARMPATH_SHARED")
			}
		}()
	}
	return Path(t, "vectors/live")
}

func existing(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skipf("skipped: %s does not exist (WARMPATH_SHARED is set)", path)
	}
	return path
}

// Gunzip returns the unpacked content of the gzip file at path.
func Gunzip(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("unpack %s: %v", path, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("unpack %s: %v", path, err)
	}
	return data
}
