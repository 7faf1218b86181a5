//go:build unix

package publish

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A release of the C library is built from its tarball alone: the library is installed, and the example engine is built
// against it, as the README says.
func TestTheTarballIsEnoughToBuildAndInstall(t *testing.T) {
	needC(t)
	dir := t.TempDir()
	archive := func(name string) string { return filepath.Join(dir, name, "warmpath_kv-0.1.0.tar.gz") }
	command(t, "c", "make", "-s", "BUILD="+filepath.Join(dir, "first"), "dist")
	command(t, dir, "tar", "-xzf", archive("first"))
	unpacked := filepath.Join(dir, "warmpath_kv-0.1.0")
	for copied, of := range map[string]string{"LICENSE": "../LICENSE", "engine.c": "examples/engine.c", "include/warmpath_kv.h": "c/include/warmpath_kv.h"} {
		got, err := os.ReadFile(filepath.Join(unpacked, copied))
		if err != nil {
			t.Fatal(err)
		}
		if want, err := os.ReadFile(of); err != nil || string(got) != string(want) {
			t.Errorf("%s of the tarball is not %s: %v", copied, of, err)
		}
	}
	prefix := filepath.Join(dir, "usr")
	command(t, unpacked, "make", "-s", "CC=gcc", strict, "PREFIX="+prefix, "install", "bin/engine", "bin/driver")
	command(t, unpacked, "sh", "-c", "PKG_CONFIG_PATH='"+prefix+"/lib/pkgconfig' && export PKG_CONFIG_PATH && "+
		"gcc -o engine engine.c $(pkg-config --cflags --libs warmpath_kv) -Wl,-rpath,'"+prefix+"/lib'")
	for _, engine := range []string{"./engine", "bin/engine"} {
		if got := printed(t, unpacked, engine); !strings.HasPrefix(got, "usage: engine") {
			t.Errorf("%s without arguments prints %q", engine, got)
		}
		if got := printed(t, unpacked, engine, "0", "udp://x:1", "-"); !strings.Contains(got, "is no endpoint of events") {
			t.Errorf("%s with a wrong endpoint prints %q", engine, got)
		}
	}
	// A distribution may change the sources and make a tarball of its own.
	command(t, unpacked, "make", "-s", "BUILD="+filepath.Join(dir, "second"), "dist")
	if one, two := command(t, dir, "tar", "-tzf", archive("first")), command(t, dir, "tar", "-tzf", archive("second")); one != two {
		t.Errorf("the tarball has\n%s\nand the one made of it\n%s", one, two)
	}
}

// printed returns what a program prints that ends with an error.
func printed(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s did not end within %v: %v", name, patience, err)
	}
	if err == nil {
		t.Errorf("%s %q ended without an error", name, args)
	}
	return string(out)
}
