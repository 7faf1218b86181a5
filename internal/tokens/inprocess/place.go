package inprocess

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/warmpath/warmpath/tokenizer"
)

// These constants bound the files of a folder that a worker named. A worker may be broken or hostile, and name any
// folder.
const (
	// maxFoundFile is the size of the largest file that is read, in bytes. The largest known tokenizer.json has 35 MB.
	maxFoundFile = 64 << 20
	// maxFoundBytes bounds all files of a model together, in bytes.
	maxFoundBytes = 96 << 20
	// A folder with more than maxEntries entries is not listed. A listing is needed for files that are found by a pattern.
	// A model's folder has some hundred entries, and most entries are weights.
	maxEntries = 1024
	// maxSnapshots is how many downloads of one model in a Hugging Face cache are tried.
	maxSnapshots = 3
	// maxOrigin is the length of the longest origin that is looked at, in bytes.
	maxOrigin = 1024
)

// place is a folder with a model's files in one state.
type place struct {
	dir   string
	state uint64 // hash of the files' sizes and times: after a change of the files the folder is another place
}

// foundFiles gives access only to a folder's files with known names. It opens only regular files, because a pipe or a
// device could block. It reads no more bytes than the constants allow. A foundFiles is not safe for concurrent use.
type foundFiles struct {
	dir  string
	left int64 // number of bytes that may still be read
}

var errNotRegular = errors.New("not a regular file")

func newFoundFiles(dir string) *foundFiles { return &foundFiles{dir: dir, left: maxFoundBytes} }

// Stat implements fs.StatFS.
func (f *foundFiles) Stat(name string) (fs.FileInfo, error) {
	if !wanted(name) {
		return nil, fs.ErrNotExist
	}
	info, err := os.Stat(filepath.Join(f.dir, filepath.FromSlash(name)))
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errNotRegular
	case info.Size() > maxFoundFile:
		return nil, fmt.Errorf("%d bytes are over the limit of %d", info.Size(), int64(maxFoundFile))
	}
	return info, nil
}

// Open implements fs.FS.
func (f *foundFiles) Open(name string) (fs.File, error) {
	if _, err := f.Stat(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	// With O_NONBLOCK, opening does not wait for a writer if the file has become a pipe.
	file, err := os.OpenFile(filepath.Join(f.dir, filepath.FromSlash(name)), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = file.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	return file, nil
}

// ReadFile implements fs.ReadFileFS.
func (f *foundFiles) ReadFile(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	limit := min(f.left, maxFoundFile)
	data, err := io.ReadAll(io.LimitReader(file, limit+1)) // the file may have grown after Stat
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: the model's files are over the limit of %d bytes", name, int64(maxFoundBytes))
	}
	f.left -= int64(len(data))
	return data, nil
}

// ReadDir implements fs.ReadDirFS. It returns the known files of the folder itself, or of its subfolder
// additional_chat_templates.
func (f *foundFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	if name != "." && name != "additional_chat_templates" {
		return nil, fs.ErrNotExist
	}
	entries, err := someEntries(filepath.Join(f.dir, name))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !wanted(path.Join(name, e.Name())) }), nil
}

// someEntries returns the entries of a folder, sorted by name. If there are more than maxEntries, it returns an error.
func someEntries(dir string) ([]fs.DirEntry, error) {
	info, err := os.Stat(dir) // if it is no folder, opening it could block
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is no folder", dir)
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	entries, err := file.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxEntries {
		return nil, fmt.Errorf("%s has more than %d entries", dir, maxEntries)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// knownFiles has the fixed names of a model's files. Further files are found by a pattern.
var knownFiles = [...]string{"tokenizer.json", "tekken.json", "tokenizer_config.json", "chat_template.jinja",
	"chat_template.json",
	"config.json", "preprocessor_config.json", "processor_config.json"}

var (
	errNotLookedAt = errors.New("not a path that is looked at")
	errNotFolder   = errors.New("not a folder")
)

// lookAt returns the folder as a place. If the folder has no tokenizer file that may be read, it returns an error.
func lookAt(dir string) (p place, err error) {
	above := slices.Contains(strings.Split(filepath.ToSlash(dir), "/"), "..")
	if len(dir) > maxOrigin || !filepath.IsAbs(dir) || strings.HasPrefix(dir, "//") || strings.ContainsRune(dir, 0) ||
		above {
		return place{}, errNotLookedAt
	}
	dir = filepath.Clean(dir)
	switch info, err := os.Stat(dir); {
	case err != nil:
		return place{}, err
	case !info.IsDir():
		return place{}, errNotFolder
	}
	files := newFoundFiles(dir)
	names := knownFiles[:]
	for _, pattern := range [...]string{"*.tiktoken", "additional_chat_templates/*.jinja"} {
		more, _ := fs.Glob(files, pattern) // the patterns are well-formed, so there is no error
		names = append(names, more...)
	}
	sum := fnv.New64a()
	found, why := false, tokenizer.ErrNoTokenizer
	for _, name := range names {
		info, err := files.Stat(name)
		if err != nil {
			if isTokenizer(name) && !errors.Is(err, fs.ErrNotExist) {
				why = err
			}
			continue
		}
		found = found || isTokenizer(name)
		_, _ = fmt.Fprintln(sum, name, info.Size(), info.ModTime().UnixNano())
	}
	if !found {
		return place{}, why
	}
	return place{dir, sum.Sum64()}, nil
}

// inCache returns the downloads of the model ORG/NAME in a Hugging Face cache. The revision main comes first. The other
// downloads follow, the newest first.
func inCache(cache, name string) []place {
	root := cacheFolder(cache, name)
	var dirs []string
	if dir, ok := cached(root, "main"); ok {
		dirs = append(dirs, dir)
	}
	snapshots := filepath.Join(root, "snapshots")
	entries, _ := someEntries(snapshots)
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return modified(b).Compare(modified(a)) })
	for _, e := range entries {
		if dir := filepath.Join(snapshots, e.Name()); hubCommit.MatchString(e.Name()) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	var places []place
	for _, dir := range dirs[:min(len(dirs), maxSnapshots)] {
		if p, err := lookAt(dir); err == nil {
			places = append(places, p)
		}
	}
	return places
}

// cacheFolder returns the folder of the model ORG/NAME in a Hugging Face cache.
func cacheFolder(cache, name string) string {
	return filepath.Join(cache, "models--"+strings.ReplaceAll(name, "/", "--"))
}

// hubNamed reports whether an origin can be the name of a model on the hub: ORG/NAME without a revision.
func hubNamed(origin string) bool {
	_, _, err := parseHub(hubPrefix + origin)
	return err == nil && !strings.Contains(origin, "@")
}

// look returns the places on this machine for an origin. If there are none, why is the reason. If the origin is neither
// an absolute path nor ORG/NAME, look returns no places and no reason.
func look(origin, cache string) (places []place, why string) {
	switch {
	case filepath.IsAbs(origin):
		p, err := lookAt(origin)
		if err == nil {
			return []place{p}, ""
		}
		return nil, shownOrigin(origin) + " " + whyNot(err)
	case hubNamed(origin):
		if found := inCache(cache, origin); found != nil {
			return found, ""
		}
		return nil, fmt.Sprintf("%s is not in the Hugging Face cache of this machine (%s)", shownOrigin(origin), cache)
	}
	return nil, ""
}

// whyNot returns the reason why a folder that a worker named cannot be used. The reason does not reveal the contents of
// files.
func whyNot(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is not on this machine"
	case errors.Is(err, fs.ErrPermission):
		return "may not be read by the user that the router runs as"
	case errors.Is(err, tokenizer.ErrNoTokenizer):
		return "has no tokenizer.json, tekken.json or .tiktoken file"
	case errors.Is(err, errNotFolder):
		return "is no folder"
	}
	return "cannot be read here"
}

// shownOrigin returns an origin in quotes, shortened for a log line.
func shownOrigin(origin string) string { return fmt.Sprintf("%q", bounded(origin)) }

// bounded returns the beginning of a text that comes from outside, for a log line.
func bounded(text string) string {
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
