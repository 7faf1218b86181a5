package app

import (
	"context"
	"os"
	"time"
)

// watchFiles reloads the configuration when one of its files has changed, until ctx ends. It looks at the files instead
// of asking the system for events: this also works for network file systems, for a file that another file replaces, and
// for Kubernetes, which replaces a symbolic link in the path (..data). The price is one stat for each file and look.
func (a *App) watchFiles(ctx context.Context, interval time.Duration) error {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	var before looks
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		now := look(a.files())
		a.mu.Lock()
		seen := a.seen
		a.mu.Unlock()
		// A file that an editor is writing changes between two looks, or is missing at one of them. A reload waits until two
		// looks in a row see the same files.
		settled := now.equal(before) && now.complete()
		before = now
		if !settled || now.equal(seen) {
			continue
		}
		a.log.Info("a file of the configuration changed")
		if _, err := a.Reload(); err != nil {
			a.log.Error("reload refused: the old configuration stays until the file changes again", "error", err)
		}
	}
}

// files returns the paths of the files that a reload reads.
func (a *App) files() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	paths := []string{a.options.File}
	for _, path := range []string{a.cfg.TenantsFile, a.cfg.TenantSaltKeyFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

// looks are the states of some files at one moment.
type looks []fileLook

type fileLook struct {
	path string
	info os.FileInfo // nil: the file cannot be read
}

// look follows symbolic links, so a link that points to another file counts as a change.
func look(paths []string) looks {
	var all looks
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		all = append(all, fileLook{path, info})
	}
	return all
}

// complete reports whether all files are there.
func (l looks) complete() bool {
	for _, f := range l {
		if f.info == nil {
			return false
		}
	}
	return true
}

func (l looks) equal(o looks) bool {
	if len(l) != len(o) {
		return false
	}
	for i, f := range l {
		g := o[i]
		if f.path != g.path || (f.info == nil) != (g.info == nil) {
			return false
		}
		if f.info != nil && !(os.SameFile(f.info, g.info) && f.info.ModTime().Equal(g.info.ModTime()) && f.info.Size() == g.info.Size()) {
			return false
		}
	}
	return true
}
