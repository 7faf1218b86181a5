// Command release builds a release of Warmpath from a checkout: a static binary for each platform, with a list of its
// modules; archives; Debian packages; a container image; and the SHA-256 of each file. deploy/release.sh runs it.
//
// Two runs for the same commit, with the same Go, write the same bytes: every file has the time of the commit, and
// nothing depends on the machine, the user or the folder.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", "..", "`FOLDER` of the checkout")
	out := flag.String("out", "", "`FOLDER` that the release is written into; it must be empty, or not exist")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "`LIST` of platforms")
	flag.Parse()
	if err := run(*root, *out, strings.Split(*platforms, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(root, out string, platforms []string) error {
	if out == "" || flag.NArg() > 0 {
		return errors.New("name the folder of the release: -out FOLDER")
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: remove it first, or name another folder", out)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	r, err := newRelease(root, platforms)
	if err != nil {
		return err
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.data), f.name)
	}
	files = append(files, file{name: "SHA256SUMS", data: sums.Bytes()})
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(out, f.name), f.data, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("warmpath %s: %d files in %s\n", r.version, len(files), out)
	return nil
}

// files returns the files of the release, without the list of their SHA-256.
func (r *release) files() ([]file, error) {
	var files []file
	for _, b := range r.binaries {
		name := fmt.Sprintf("warmpath-%s-%s-%s", r.version, b.os, b.arch)
		sbom, err := r.sbom(b)
		if err != nil {
			return nil, err
		}
		archive, err := compressed(r.archive(b, name), r.when, "")
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: name + ".tar.gz", data: archive}, file{name: name + ".cdx.json", data: sbom})
		if b.os != "linux" {
			continue
		}
		deb, err := r.debian(b)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: fmt.Sprintf("warmpath_%s_%s.deb", r.debianVersion(), b.arch), data: deb})
	}
	image, err := r.image()
	if err != nil {
		return nil, err
	}
	if image != nil {
		files = append(files, file{name: "warmpath-" + r.version + "-image.tar", data: image})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files, nil
}

// archive returns the content of the archive for one platform, in the folder name.
func (r *release) archive(b binary, name string) tree {
	t := tree{
		{name: "warmpath", mode: 0o755, data: b.data},
		{name: "LICENSE", data: r.license},
		{name: "THIRD_PARTY_LICENSES", data: r.licenses},
		{name: "warmpath.1", data: r.manual},
		{name: "warmpath.yaml", data: r.sample},
		{name: "completions/warmpath.bash", data: r.completions["bash"]},
		{name: "completions/_warmpath", data: r.completions["zsh"]},
		{name: "completions/warmpath.fish", data: r.completions["fish"]},
		{name: "completions/warmpath.ps1", data: r.completions["powershell"]},
	}
	if b.os == "linux" {
		t = append(t, file{name: "warmpath.service", data: r.service})
	}
	t = append(t, r.documents...)
	for i := range t {
		t[i].name = name + "/" + t[i].name
	}
	return t
}
