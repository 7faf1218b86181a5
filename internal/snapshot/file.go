package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmpath/warmpath/kvfeed"
)

// errNothing means that there is no checkpoint to save.
var errNothing = errors.New("the cache of no holder is known completely")

// saveFile writes a snapshot of all holders whose engines have a replay endpoint to a file. The file is replaced at
// once, when the snapshot is whole and on disk: at each moment it has the old or the new snapshot. If there is no
// checkpoint, or ctx ends first, the old file stays. A file that is no snapshot is not replaced.
func saveFile(ctx context.Context, path string, feed *kvfeed.Feed, version string) (holders, blocks int, err error) {
	if err := ours(path); err != nil {
		return 0, 0, fmt.Errorf("save the index to %s: %w", path, err)
	}
	sweep(path)
	f, err := os.CreateTemp(filepath.Dir(path), unfinished(path))
	if err != nil {
		return 0, 0, fmt.Errorf("save the index: %w", err)
	}
	holders, blocks, err = fillFile(ctx, f, feed, version)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return 0, 0, fmt.Errorf("save the index to %s: %w", path, err)
	}
	return holders, blocks, nil
}

// tryFile returns why a snapshot could not be written to path. It makes a file beside it, and removes this file.
func tryFile(path string) error {
	if err := ours(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), unfinished(path))
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// unfinished returns the pattern of the names of files that are not finished, see os.CreateTemp.
func unfinished(path string) string { return "." + filepath.Base(path) + ".*" }

// sweepAge is the age from which an unfinished file is left over: its router was killed. Another router may be writing
// a younger one.
const sweepAge = time.Minute

// sweep removes what killed routers left of a snapshot file.
func sweep(path string) {
	dir, prefix := filepath.Dir(path), strings.TrimSuffix(unfinished(path), "*")
	all, err := os.ReadDir(dir)
	if err != nil {
		return // the caller will find out
	}
	for _, e := range all {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok || rest == "" || strings.Trim(rest, "0123456789") != "" || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(dir, e.Name())
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > sweepAge && ours(name) == nil {
			_ = os.Remove(name)
		}
	}
}

func fillFile(ctx context.Context, f *os.File, feed *kvfeed.Feed, version string) (holders, blocks int, err error) {
	out := bufio.NewWriterSize(f, 1<<20)
	holders, blocks, err = writeSnapshot(ctx, out, feed, feed.Replayable(), version, nil)
	switch {
	case err != nil:
		return holders, blocks, err
	case ctx.Err() != nil: // streams that end with ctx may be missing
		return holders, blocks, context.Cause(ctx)
	case holders == 0:
		return 0, 0, errNothing
	}
	if err := out.Flush(); err != nil {
		return holders, blocks, err
	}
	return holders, blocks, f.Sync()
}

// ours returns an error if there is a file that no router has written: the path may be a mistake.
func ours(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(magic))
	n, err := io.ReadFull(f, head)
	if n > 0 && string(head[:n]) != magic[:n] {
		return fmt.Errorf("the file is not replaced: %w", errForeign)
	}
	if err != nil && n == 0 && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// loadFile reads a snapshot from a file, and calls take with each checkpoint, and skip with each holder of which the
// file has no good one. It passes over the holders in known. take reports whether the checkpoint is kept. loadFile
// returns the number of checkpoints. If there is no file, the error wraps fs.ErrNotExist. If a file is cut short or
// damaged, the error says so, and the checkpoints before the damage were taken: each section has a hash of its own.
// room bounds the memory of all checkpoints that are kept. loadFile also removes what killed routers left of the file.
func loadFile(path string, room int64, known map[kvfeed.Place]bool, take func(*kvfeed.Checkpoint) bool, skip func(*skippedHolder)) (n int, err error) {
	sweep(path)
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r, err := newReader(bufio.NewReaderSize(f, 1<<20), room)
	if err != nil {
		return 0, err
	}
	r.known, r.unused = known, math.MaxInt64 // a file has an end
	return r.each(take, skip)
}
