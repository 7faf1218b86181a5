package app

import (
	"context"
	"os"
	"time"
)

// watch is a set of files that are read again when they change.
type watch struct {
	what   string
	files  func() []string
	seen   func() looks // the files before they were last read
	reload func() error
	before looks // the files at the last look

	told   string // the error that the log named last
	toldOf looks  // the files at that moment
}

// watchFiles reads the files of the configuration and of certificates again when they have changed, until ctx ends. It
// looks at the files instead of asking the system for events: this also works for network file systems, for a file that
// another file replaces, and for Kubernetes, which replaces a symbolic link in the path (..data). The price is one stat
// for each file and look.
func (a *App) watchFiles(ctx context.Context, interval time.Duration) error {
	watches := []*watch{{what: "the configuration", files: a.files, seen: a.seenFiles, reload: func() error {
		_, err := a.Reload()
		return err
	}}}
	for i, c := range a.allCertificates() {
		seen := a.seenCertificates[i]
		watches = append(watches, &watch{what: "a certificate", files: c.Files, seen: func() looks { return seen }, reload: func() error {
			seen = look(c.Files())
			return a.reloadCertificates(c)
		}})
	}
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		for _, w := range watches {
			if !w.changed() {
				continue
			}
			if err := w.reload(); err != nil && w.news(err) {
				a.log.Error("files changed and cannot be used: the old ones stay in force until the files change again", "files", w.what, "error", err)
			}
		}
	}
}

// changed looks at the files, and reports whether they differ from what was read. A file that is being written changes
// between two looks, or is missing at one of them. So changed waits until two looks in a row see the same files. A file
// that is missing at both counts as a change: the reload then says so, in place of an eternal silence.
func (w *watch) changed() bool {
	now := look(w.files())
	settled := now.equal(w.before)
	w.before = now
	return settled && !now.equal(w.seen())
}

// news reports whether the log has not yet named this error of the files as they are. A file of the configuration is
// read at each look while a certificate is broken, because it can be used as soon as the certificate is corrected.
func (w *watch) news(err error) bool {
	if err.Error() == w.told && w.before.equal(w.toldOf) {
		return false
	}
	w.told, w.toldOf = err.Error(), w.before
	return true
}

// files returns the paths of the files that a reload reads.
func (a *App) files() []string {
	if a.options.Load == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var paths []string
	for _, path := range []string{a.options.File, a.cfg.TenantsFile, a.cfg.TenantSaltKeyFile, a.cfg.WorkersFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return append(paths, scriptFiles(a.cfg)...)
}

// seenFiles returns the files of the configuration before they were last read.
func (a *App) seenFiles() looks {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
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
