package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"path"
	"slices"
	"strings"
	"time"
)

// file is one file or folder of an archive, or of the release.
type file struct {
	name string // without a slash at the beginning
	mode int64  // 0 stands for 0644; for a folder 0755
	dir  bool
	data []byte
	id   int // the number of the user and of the group; 0 is root
}

// tree is the content of an archive.
type tree []file

// withFolders returns t in the order of names, and with the folders of its files.
func (t tree) withFolders() tree {
	all := slices.Clone(t)
	seen := map[string]bool{".": true}
	for _, f := range t {
		if f.dir {
			seen[f.name] = true
		}
	}
	for _, f := range t {
		for dir := path.Dir(f.name); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			all = append(all, file{name: dir, dir: true})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return all
}

// archived returns t as a tar archive. All its times are when. prefix precedes each name.
func archived(t tree, when time.Time, prefix string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range t.withFolders() {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: prefix + f.name, Mode: cmp.Or(f.mode, 0o644), Size: int64(len(f.data)), ModTime: when, Uid: f.id, Gid: f.id, Format: tar.FormatGNU}
		if f.id == 0 {
			h.Uname, h.Gname = "root", "root"
		}
		if f.dir {
			h.Typeflag, h.Mode = tar.TypeDir, cmp.Or(f.mode, 0o755)
			if f.name != "" {
				h.Name += "/"
			}
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// compressed returns the tar archive of t, compressed.
func compressed(t tree, when time.Time, prefix string) ([]byte, error) {
	plain, err := archived(t, when, prefix)
	if err != nil {
		return nil, err
	}
	return zipped(plain, gzip.DefaultCompression), nil
}

// zipped compresses data. Its header has no name and no time. The best level takes three times as long, for 0.3 % of a
// binary's size; Debian asks for it for manual pages and changelogs.
func zipped(data []byte, level int) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, level) // fails only for unknown levels
	_, _ = w.Write(data)                     // a Buffer takes everything
	_ = w.Close()
	return out.Bytes()
}
