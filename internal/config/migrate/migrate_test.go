package migrate

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/internal/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestFilesOfOtherRoutersBecomeOurs compares each new file with the golden file beside the old one. Each new file is
// valid, and repeats no secret.
func TestFilesOfOtherRoutersBecomeOurs(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Convert(path, data)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		golden := strings.TrimSuffix(path, ".yaml") + ".golden"
		if *update {
			if err := os.WriteFile(golden, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if err := config.Check(golden, got); err != nil {
			t.Errorf("%s: %v", golden, err)
		}
		if bytes.Contains(got, []byte("do-not-repeat-me")) {
			t.Errorf("%s repeats a secret", golden)
		}
	}
}

func TestFilesThatCannotBeConvertedAreExplained(t *testing.T) {
	for _, test := range []struct{ file, err string }{
		{"", "is no file that is known"},
		{"a: 1", "is no file that is known"},
		{"- a", "is no file that is known"},
		{"mode: {", "file.yaml:1:"},
		{"worker_urls: [gpu-1:8000]", "write http://gpu-1:8000"},
		{"worker_urls: [http://a:1]\nrequest_timeout_secs: soon", "file.yaml: request_timeout_secs: "},
		{"worker_urls: [http://a:1]\nqueue_timeout_secs: 0", "file.yaml: queue_timeout_secs: 0 is no time to wait"},
		{"worker_urls: [http://a:1]\npolicy: {type: cache_aware, cache_threshold: 7}", "cache_threshold"},
		{"worker_urls: [http://a:1]\npolicy: {type: cache_aware, cache_threshold: seven}", `"seven" is not a number`},
		{"policy: {type: x}\n---\npolicy: {type: y}", "file.yaml:"},
	} {
		out, err := Convert("file.yaml", []byte(test.file))
		if err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%q: error %v, want %q\n%s", test.file, err, test.err, out)
		}
	}
}

// Whatever the old file is, the new file is valid, or there is an error.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/golden/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := Convert("old.yaml", data)
		if err != nil {
			return
		}
		if err := config.Check("new.yaml", out); err != nil {
			t.Errorf("the new file is not valid: %v\n%s", err, out)
		}
	})
}
