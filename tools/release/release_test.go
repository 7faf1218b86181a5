package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// test/release.sh examines whole releases. The tests here are about cases that it does not meet.

func TestVersionsInTheFormOfDebian(t *testing.T) {
	for version, want := range map[string]string{
		"0.1.0":      "0.1.0",
		"0.2.0-rc.1": "0.2.0~rc.1", // older than 0.2.0
		"0.0.0-20261129015054-6fbea95cad6f+dirty": "0.0.0~20261129015054.6fbea95cad6f+dirty",
		"0.1.1-0.20261129015054-6fbea95cad6f":     "0.1.1~0.20261129015054.6fbea95cad6f",
	} {
		if got := (&release{version: version}).debianVersion(); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

func TestABuildWithoutACommitIsRefused(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	if err := new(release).identify(info); err == nil || !strings.Contains(err.Error(), "checkout with git") {
		t.Errorf("the error is %v", err)
	}
	info.Main.Version = "v0.1.0"
	info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}}
	r := new(release)
	if err := r.identify(info); err != nil || r.version != "0.1.0" || !r.when.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAModuleWithoutALicenseStopsTheRelease(t *testing.T) {
	dir := t.TempDir()
	var text bytes.Buffer
	if err := appendLicenses(&text, "example.org/m v1", dir); err == nil || !strings.Contains(err.Error(), "example.org/m v1 has no license") {
		t.Errorf("the error is %v", err)
	}
	for _, name := range []string{"LICENSE-MIT", "NOTICE", "license.go", "licensed.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := appendLicenses(&text, "example.org/m v1", dir); err != nil {
		t.Fatal(err)
	}
	if got := text.String(); strings.Count(got, "===") != 2 || !strings.Contains(got, "=== example.org/m v1: NOTICE") {
		t.Errorf("the text is\n%s", got)
	}
}

func TestAReplacedModuleIsListedAsItsReplacement(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "example.org/main"}, Deps: []*debug.Module{
		{Path: "example.org/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/b", Version: "v2.0.0+incompatible", Sum: "h1:x"}},
	}}
	text, err := (&release{version: "0.1.0"}).sbom(binary{info: info})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); strings.Contains(got, "example.org/a") || !strings.Contains(got, "pkg:golang/example.org/b@v2.0.0%2Bincompatible") || !strings.Contains(got, "pkg:golang/std@1.26.8") {
		t.Error(got)
	}
}

func TestAnArchiveHasTheFoldersOfItsFilesFirst(t *testing.T) {
	data, err := archived(tree{{name: "b/c/d", mode: 0o755}, {name: "a"}, {name: "b/c", dir: true, mode: 0o700, id: 7}, {dir: true}}, time.Unix(1, 0), "./")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Uname)
	}
	want := "drwxr-xr-x ./ root, -rw-r--r-- ./a root, drwxr-xr-x ./b/ root, drwx------ ./b/c/ , -rwxr-xr-x ./b/c/d root"
	if strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", strings.Join(got, ", "), want)
	}
}
