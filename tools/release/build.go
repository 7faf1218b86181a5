package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// binary is the program for one platform.
type binary struct {
	os, arch string
	data     []byte
	info     *debug.BuildInfo
}

// release has what the files of a release are made of.
type release struct {
	version  string    // without the v of the tag
	commit   string    // its whole hash
	when     time.Time // the time of the commit
	binaries []binary

	license, licenses       []byte // ours, and those of the modules in the binaries
	manual, sample, service []byte
	completions             map[string][]byte // by shell
	documents               tree              // README.md, CHANGELOG.md and docs
	scripts                 map[string][]byte // of the Debian package
}

// newRelease builds the binaries, and reads and makes everything else.
func newRelease(root string, platforms []string) (*release, error) {
	work, err := os.MkdirTemp("", "warmpath-release-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	r := &release{completions: map[string][]byte{}, scripts: map[string][]byte{}}
	for _, p := range platforms {
		goos, arch, ok := strings.Cut(p, "/")
		if !ok {
			return nil, fmt.Errorf("the platform %q is not understood: write it like linux/amd64", p)
		}
		b, err := build(root, filepath.Join(work, "warmpath-"+goos+"-"+arch), goos, arch)
		if err != nil {
			return nil, err
		}
		r.binaries = append(r.binaries, b)
	}
	if err := r.identify(r.binaries[0].info); err != nil {
		return nil, err
	}
	own := filepath.Join(work, "warmpath") // for this machine
	if _, err := build(root, own, runtime.GOOS, runtime.GOARCH); err != nil {
		return nil, err
	}
	if err := r.print(own); err != nil {
		return nil, err
	}
	if err := r.read(os.DirFS(root)); err != nil {
		return nil, err
	}
	r.licenses, err = licenses(root, r.binaries)
	return r, err
}

// build builds the program. Its flags are those of `make build`, so that anyone can make the same bytes. The variables
// of the environment that change the code are set. GOFLAGS is not empty, since an empty one would not override the
// user's `go env -w`.
func build(root, path, goos, arch string) (binary, error) {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-ldflags", "-s -w", "-o", path, "./cmd/warmpath")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=-buildvcs=true", "GOWORK=off", "GOEXPERIMENT=",
		"GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GOGC="+cmp.Or(os.Getenv("GOGC"), "400")) // GOGC: a third less time
	if err := cmd.Run(); err != nil {
		return binary{}, fmt.Errorf("build for %s/%s: %w", goos, arch, err)
	}
	b := binary{os: goos, arch: arch}
	var err error
	if b.info, err = buildinfo.ReadFile(path); err != nil {
		return binary{}, err
	}
	b.data, err = os.ReadFile(path)
	return b, err
}

// identify takes the version and the commit from a binary, where the go command has recorded them.
func (r *release) identify(info *debug.BuildInfo) error {
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.commit = s.Value
		case "vcs.time":
			when, err := time.Parse(time.RFC3339, s.Value)
			if err != nil {
				return err
			}
			r.when = when
		}
	}
	version, ok := strings.CutPrefix(info.Main.Version, "v")
	if !ok || r.commit == "" || r.when.IsZero() {
		return errors.New("the build has no version: run this in a checkout with git; the tag of the commit is the version, such as v0.1.0")
	}
	if strings.HasSuffix(version, "+dirty") {
		fmt.Fprintln(os.Stderr, "release: the checkout has changes that are not committed: the version says +dirty")
	}
	r.version = version
	return nil
}

// print keeps what the program prints about itself.
func (r *release) print(program string) error {
	var failed error
	printed := func(args ...string) []byte {
		out, err := exec.Command(program, args...).Output()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("warmpath %s: %w", strings.Join(args, " "), err))
		}
		return out
	}
	r.manual, r.sample = printed("man"), printed("config", "sample")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r.completions[shell] = printed("completion", shell)
	}
	return failed
}

// read reads the files of the checkout. The documents are those for users: the design pages stay out.
func (r *release) read(checkout fs.FS) error {
	var failed error
	text := func(name string) []byte {
		data, err := fs.ReadFile(checkout, name)
		failed = errors.Join(failed, err)
		return data
	}
	r.license, r.service = text("LICENSE"), text("deploy/warmpath.service")
	for _, script := range []string{"postinst", "prerm", "postrm", "copyright"} {
		r.scripts[script] = text("deploy/debian/" + script)
	}
	names := []string{"README.md", "CHANGELOG.md", "GLOSSARY.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*.svg", "docs/policies/*.md"} {
		found, err := fs.Glob(checkout, pattern)
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	for _, name := range names {
		r.documents = append(r.documents, file{name: name, data: text(name)})
	}
	return failed
}

var isLicense = regexp.MustCompile(`^(?i)(LICEN[SC]E|COPYING|NOTICE|PATENTS)([-.].*)?$`)

// licenses returns the licenses of Go and of every module in the binaries. They ask for a copy with each binary.
func licenses(root string, binaries []binary) ([]byte, error) {
	modules := map[string]string{} // the version of each module; a replaced module counts as its replacement
	for _, b := range binaries {
		for _, m := range b.info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			modules[m.Path] = m.Version
		}
	}
	goroot, err := output(root, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := appendLicenses(&text, "Go "+binaries[0].info.GoVersion, goroot); err != nil {
		return nil, err
	}
	list := make([]string, 0, len(modules))
	for path := range modules {
		list = append(list, path)
	}
	slices.Sort(list)
	for _, path := range list {
		dir, err := output(root, "list", "-m", "-f", "{{.Dir}}", path+"@"+modules[path])
		if err != nil {
			return nil, err
		}
		if err := appendLicenses(&text, path+" "+modules[path], dir); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

// output returns what a go command prints.
func output(root string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// appendLicenses writes the licenses in the folder dir of a module.
func appendLicenses(text *bytes.Buffer, module, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !isLicense.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		found = true
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(text, "=== %s: %s\n\n%s\n\n", module, e.Name(), bytes.TrimSpace(data))
	}
	if !found {
		return fmt.Errorf("%s has no license in %s: read its terms before you ship it", module, dir)
	}
	return nil
}
