package inprocess

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	// maxHubFile bounds a download in bytes. The largest known tokenizer.json has 35 MB.
	maxHubFile = 512 << 20
	// hubTries is how many times the download of a file is begun or continued if connections break.
	hubTries = 4
	// progressEvery is the time between two log lines about a long download.
	progressEvery = 2 * time.Second
)

var errDigest = errors.New("the file differs from the hub's listing")

// download downloads f into dir, unless dir has the file. It writes to a file with the suffix .incomplete. If an
// earlier download broke off, download continues it, also after a restart of the router. When the file is complete and
// has the digest of the hub's listing, download renames it. It returns the file's size in bytes.
func (h *Hub) download(ctx context.Context, m hubModel, commit string, f hubRemote, dir string) (size int64,
	err error) {
	to := filepath.Join(dir, filepath.FromSlash(f.Name))
	if info, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return 0, fmt.Errorf("download %s: %w", f.Name, err)
		}
		return info.Size(), nil
	}
	if f.Size > h.most {
		return 0, fmt.Errorf("download %s: %d bytes are more than %d", f.Name, f.Size, h.most)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return 0, fmt.Errorf("download %s: %w", f.Name, err)
	}
	url := h.cfg.Endpoint + "/" + m.name + "/resolve/" + commit + "/" + f.Name
	part := to + ".incomplete"
	wait := h.retry
	for try := 1; ; try++ {
		size, err = h.transfer(ctx, m, url, part, f)
		if err == nil {
			break
		}
		if !errors.Is(err, errUnreachable) && !errors.Is(err, errDigest) || try == hubTries || ctx.Err() != nil {
			return 0, fmt.Errorf("download %s of %s: %w", f.Name, m.name, err)
		}
		h.log.Warn("a download broke off and is continued", "model", m.name, "file", f.Name, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait *= 2
	}
	if err := os.Rename(part, to); err != nil {
		return 0, fmt.Errorf("download %s: %w", f.Name, err)
	}
	return size, nil
}

// transfer appends the missing bytes to the file at the path part, checks the whole file, and returns the file's size
// in bytes.
func (h *Hub) transfer(ctx context.Context, m hubModel, url, part string, f hubRemote) (size int64, err error) {
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	have, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if f.Size == 0 || have < f.Size {
		if err := h.fill(ctx, m, url, file, have, f); err != nil {
			return 0, err
		}
	}
	size, err = verify(file, f)
	if err != nil {
		_ = file.Truncate(0) // the next try downloads the whole file
		return 0, err
	}
	return size, file.Sync()
}

// fill downloads the rest of the file at url and appends it to file. file already has have bytes.
func (h *Hub) fill(ctx context.Context, m hubModel, url string, file *os.File, have int64, f hubRemote) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(h.stall, func() { cancel(fmt.Errorf("nothing came for %v", h.stall)) })
	defer stalled.Stop()
	resp, err := h.get(ctx, url, have)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusRequestedRangeNotSatisfiable: // the bytes in part are not the beginning of this file
		_ = file.Truncate(0)
		return fmt.Errorf("%w: it has no bytes from %d on", errUnreachable, have)
	case http.StatusOK: // the server sends the whole file
		if have, err = 0, file.Truncate(0); err != nil {
			return err
		}
	}
	if err := h.statusError(resp.StatusCode, m); err != nil {
		return err
	}
	if _, err := file.Seek(have, io.SeekStart); err != nil {
		return err
	}
	w := &progress{Writer: file, done: have, logged: time.Now(), step: func(done int64) {
		h.log.Info("downloading", "model", m.name, "file", f.Name, "bytes", done, "of", f.Size)
	}, alive: func() { stalled.Reset(h.stall) }}
	n, err := io.Copy(w, io.LimitReader(resp.Body, h.most-have+1))
	switch {
	case w.failed != nil:
		return w.failed
	case err != nil:
		return fmt.Errorf("%w: after %d bytes: %w", errUnreachable, have+n, errors.Join(err, context.Cause(ctx)))
	case have+n > h.most:
		return fmt.Errorf("more than %d bytes", h.most)
	}
	h.log.Info("downloaded", "model", m.name, "file", f.Name, "bytes", have+n)
	return nil
}

// progress counts the bytes that are written, and calls step with their number once in each progressEvery. alive is
// called at each write.
type progress struct {
	io.Writer
	done   int64
	logged time.Time
	step   func(done int64)
	alive  func()
	failed error // an error of the disk, not of the network
}

func (p *progress) Write(b []byte) (int, error) {
	p.alive()
	n, err := p.Writer.Write(b)
	p.done += int64(n)
	p.failed = err
	if now := time.Now(); now.Sub(p.logged) >= progressEvery {
		p.logged = now
		p.step(p.done)
	}
	return n, err
}

// verify compares the file with the size and the digest in the hub's listing, if the listing has them. It returns the
// size.
func verify(file *os.File, f hubRemote) (size int64, err error) {
	size, err = file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	var digest hash.Hash
	var want string
	switch {
	case f.LFS != nil && f.LFS.SHA256 != "":
		digest, want = sha256.New(), f.LFS.SHA256
	case f.Git != "":
		digest, want = sha1.New(), f.Git
		fmt.Fprintf(digest, "blob %d\x00", size)
	}
	if f.Size != 0 && size != f.Size {
		return 0, fmt.Errorf("%w: %d bytes, not %d", errDigest, size, f.Size)
	}
	if digest == nil {
		return size, nil
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	if _, err := io.Copy(digest, file); err != nil {
		return 0, err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != want {
		return 0, fmt.Errorf("%w: digest %s, not %s", errDigest, got, want)
	}
	return size, nil
}
