package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// Source says where a worker is listed.
type Source string

// The sources, in the order of precedence: if several sources list a URL, the first one's settings count.
const (
	SourceList  Source = "list"  // the configuration file or the command line
	SourceFile  Source = "file"  // a file of workers
	SourceAdmin Source = "admin" // the admin API
	SourceDNS   Source = "dns"   // a DNS name
)

// Sources are all sources, in the order of precedence.
var Sources = [...]Source{SourceList, SourceFile, SourceAdmin, SourceDNS}

// maxAdded bounds the workers of the admin API. The largest known fleets have 2,000 workers.
const maxAdded = 4096

// Errors of the admin API's changes. Other errors mean that the settings of a worker are not valid.
var (
	// ErrPresent means that a worker with the URL is there already.
	ErrPresent = errors.New("a worker with this URL is there already")
	// ErrAbsent means that no worker has the URL.
	ErrAbsent = errors.New("no worker has this URL")
	// ErrElsewhere means that another source than the admin API has the settings of the worker.
	ErrElsewhere = errors.New("the worker's settings come from another source")
	// ErrFull means that the admin API has added as many workers as it may.
	ErrFull = fmt.Errorf("the admin API has added %d workers already", maxAdded)
)

// listed is a worker that is watched.
type listed struct {
	Target
	source Source
	stay   uint64 // another number for each time at which the URL joined
}

// roster is what the sources list, and what the admin API changed about it. The mutex of Watcher guards it.
type roster struct {
	lists map[Source][]Target
	// removed are the URLs that the admin API removed though a source lists them. They stay removed until no source
	// lists them any more.
	removed  map[string]bool
	leaving  map[string]*leave
	roles    map[string]string // by URL: the role that SetRole gave, in place of the setting
	stays    uint64
	defaults Defaults
}

// leave is a worker that leaves. Until it is gone, it gets no new requests, and is watched as before.
type leave struct {
	listed
	from, by time.Time // it leaves after `from` when it has no requests, and at `by` at the latest
	drained  bool      // an operator had drained it before
}

// Prepare checks the workers of a source and changes nothing. The function that it returns makes them the workers of
// the source, and cannot fail: Run then probes new workers, removes missing workers from the fleet, and probes changed
// workers again. Nothing changes for unchanged workers.
//
// A worker that was added by the admin API belongs to the list or the file as soon as one of them has it.
func (s *Watcher) Prepare(from Source, targets []Target) (apply func(), err error) {
	normal, err := normalAll(targets)
	if err != nil {
		return nil, err
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if from == SourceDNS || from == SourceFile { // a worker leaves them before it has ended its requests
			now := time.Now()
			for _, l := range s.targets {
				if l.source == from && s.roster.leaving[l.URL] == nil && index(normal, l.URL) < 0 {
					s.leave(l, now, now.Add(leaveListed))
				}
			}
		}
		changed := !slices.EqualFunc(s.roster.lists[from], normal, Target.Equal)
		s.roster.lists[from] = normal
		if from == SourceList || from == SourceFile {
			s.roster.lists[SourceAdmin] = slices.DeleteFunc(slices.Clone(s.roster.lists[SourceAdmin]), func(t Target) bool { return index(normal, t.URL) >= 0 })
		}
		if changed || from != SourceDNS {
			s.merge()
		}
	}, nil
}

// normalAll returns the targets in their normal form. The error names all targets that are not valid.
func normalAll(targets []Target) ([]Target, error) {
	var errs []error
	normal := make([]Target, 0, len(targets))
	seen := map[string]bool{}
	for _, t := range targets {
		n, err := t.normalize()
		if err == nil && seen[n.URL] {
			err = fmt.Errorf("URL %s is listed twice", n.URL)
		}
		if err == nil {
			_, err = n.peer()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("worker %q: %w", shown(t.URL), err))
			continue
		}
		seen[n.URL] = true
		normal = append(normal, n)
	}
	return normal, errors.Join(errs...)
}

// merge computes the watched workers from the roster. s.mu is held.
func (s *Watcher) merge() {
	r := &s.roster
	before := map[string]listed{}
	for _, l := range s.targets {
		before[l.URL] = l
	}
	var merged []listed
	seen := map[string]bool{}
	for _, from := range Sources {
		for _, t := range r.lists[from] {
			if seen[t.URL] {
				continue
			}
			seen[t.URL] = true
			if r.removed[t.URL] {
				continue
			}
			if l := r.leaving[t.URL]; l != nil { // it is listed again before it left
				delete(r.leaving, t.URL)
				s.drain(t.URL, l.drained)
			}
			next := listed{r.defaults.Fill(t), from, before[t.URL].stay}
			next.Role = cmp.Or(r.roles[t.URL], next.Role)
			if next.stay == 0 {
				r.stays++
				next.stay = r.stays
			}
			merged = append(merged, next)
		}
	}
	maps.DeleteFunc(r.removed, func(url string, _ bool) bool { return !seen[url] })
	maps.DeleteFunc(r.roles, func(url, _ string) bool { return !seen[url] })
	for _, url := range slices.Sorted(maps.Keys(r.leaving)) {
		merged = append(merged, r.leaving[url].listed)
	}
	peers := make([]*network.Peer, 0, len(merged))
	for _, l := range merged {
		if p, err := l.peer(); err == nil { // it was valid when it was listed
			peers = append(peers, p)
		}
	}
	s.config.Peers.Replace(peers)
	s.targets = merged
	close(s.changed)
	s.changed = make(chan struct{})
}

// drain begins or ends the drain of the worker at url, if it is in the fleet.
func (s *Watcher) drain(url string, draining bool) {
	if w := workerAt(s.fleet.Snapshot(), url); w != nil {
		s.fleet.SetDraining(w.ID, draining)
	}
}

// requestsAt returns how many requests of this router are under way at a worker.
func requestsAt(snap *fleet.Snapshot, w *fleet.Worker) (n int64) {
	for _, h := range w.Holders {
		n += snap.Load(h).Own().Requests
	}
	return n
}

// workerAt returns the worker at a normal URL, nil if there is none.
func workerAt(snap *fleet.Snapshot, url string) *fleet.Worker {
	for _, w := range snap.Workers() {
		if w.URL == url {
			return w
		}
	}
	return nil
}

func index(targets []Target, url string) int {
	return slices.IndexFunc(targets, func(t Target) bool { return t.URL == url })
}

// find returns the watched worker at url. s.mu is held.
func (s *Watcher) find(url string) (listed, bool) {
	i := slices.IndexFunc(s.targets, func(l listed) bool { return l.URL == url })
	if i < 0 {
		return listed{}, false
	}
	return s.targets[i], true
}

// SourceOf returns the source of the worker at url, "" if there is no such worker. leaving says that the worker leaves;
// by is then the time at which it leaves at the latest.
func (s *Watcher) SourceOf(url string) (from Source, leaving bool, by time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, _ := s.find(url)
	if out := s.roster.leaving[url]; out != nil {
		return l.source, true, out.by
	}
	return l.source, false, time.Time{}
}

// Listed returns the source of each watched worker, by its URL.
func (s *Watcher) Listed() map[string]Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]Source, len(s.targets))
	for _, l := range s.targets {
		all[l.URL] = l.source
	}
	return all
}

// Removed returns the URLs that a source lists, and that were removed all the same.
func (s *Watcher) Removed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.roster.removed))
}

// Add adds a worker to the workers of the admin API, and returns its URL in the normal form. A worker of another source
// that was removed comes back, with the settings of its source; t then has only a URL. The error is ErrPresent,
// ErrElsewhere or ErrFull, or says what is wrong with t.
func (s *Watcher) Add(t Target) (url string, err error) {
	n, err := t.checked()
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.roster
	switch _, present := s.find(n.URL); {
	case r.leaving[n.URL] != nil:
		return n.URL, fmt.Errorf("%w, and leaves: wait until it has left, or end its drain to keep it", ErrPresent)
	case present:
		return n.URL, ErrPresent
	case r.removed[n.URL] && !n.Equal(Target{URL: n.URL}):
		return n.URL, fmt.Errorf("%w: it was removed, and comes back if only its URL is given", ErrElsewhere)
	case r.removed[n.URL]:
		delete(r.removed, n.URL)
	case len(r.lists[SourceAdmin]) >= maxAdded:
		return n.URL, ErrFull
	default:
		r.lists[SourceAdmin] = append(slices.Clone(r.lists[SourceAdmin]), n)
	}
	s.merge()
	return n.URL, nil
}

// Change changes the settings of a worker of the admin API. The error is ErrAbsent or ErrElsewhere, or says what is
// wrong with the new settings.
func (s *Watcher) Change(url string, change func(*Target)) error {
	url = NormalURL(url)
	added := func() (int, error) { // s.mu is held
		l, present := s.find(url)
		i := index(s.roster.lists[SourceAdmin], url)
		switch {
		case !present:
			return i, ErrAbsent
		case i < 0:
			return i, fmt.Errorf("%w: %s", ErrElsewhere, l.source)
		}
		return i, nil
	}
	s.mu.Lock()
	i, err := added()
	if err != nil {
		s.mu.Unlock()
		return err
	}
	next := s.roster.lists[SourceAdmin][i]
	s.mu.Unlock()
	change(&next)
	next.URL = url
	if next, err = next.checked(); err != nil { // without the lock, because this reads files
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, err = added(); err != nil {
		return err
	}
	s.roster.lists[SourceAdmin] = slices.Clone(s.roster.lists[SourceAdmin])
	s.roster.lists[SourceAdmin][i] = next
	s.merge()
	return nil
}

// SetRole gives the worker at url another role than its settings say. The worker is probed again. The role outlasts a
// change of the settings, and ends when no source lists the URL any more. The error is ErrAbsent.
func (s *Watcher) SetRole(url string, role fleet.Role) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	url = NormalURL(url)
	if _, present := s.find(url); !present {
		return ErrAbsent
	}
	s.roster.roles[url] = role.String()
	s.merge()
	return nil
}

// checked returns the target in its normal form. It reads the files of TLS.
func (t Target) checked() (Target, error) {
	n, err := t.normalize()
	if err == nil {
		err = n.Validate()
	}
	if err == nil {
		_, err = n.peer()
	}
	return n, err
}

// Remove removes the worker at url, whatever source lists it. With a drain above 0 the worker gets no new requests, and
// leaves when its requests have ended, or after that time. Without a drain it leaves at once. In both cases, requests
// that are still under way then go on. Remove returns the number of requests under way at the worker. The error is
// ErrAbsent.
func (s *Watcher) Remove(url string, drain time.Duration) (requests int64, err error) {
	url = NormalURL(url)
	s.mu.Lock()
	defer s.mu.Unlock()
	l, present := s.find(url)
	if !present {
		return 0, ErrAbsent
	}
	r := &s.roster
	delete(r.leaving, url)
	r.lists[SourceAdmin] = slices.DeleteFunc(slices.Clone(r.lists[SourceAdmin]), func(t Target) bool { return t.URL == url })
	for _, from := range Sources {
		if index(r.lists[from], url) >= 0 {
			r.removed[url] = true
		}
	}
	if drain > 0 {
		now := time.Now()
		s.leave(l, now, now.Add(drain))
	}
	if w := workerAt(s.fleet.Snapshot(), url); w != nil {
		requests = requestsAt(s.fleet.Snapshot(), w)
	}
	s.merge()
	return requests, nil
}

// leave begins the leave of a worker. s.mu is held; the caller calls merge.
func (s *Watcher) leave(l listed, from, by time.Time) {
	w := workerAt(s.fleet.Snapshot(), l.URL)
	if w == nil {
		return // it has not joined the fleet: there is nothing to wait for
	}
	s.roster.leaving[l.URL] = &leave{listed: l, from: from, by: by, drained: w.Draining}
	s.fleet.SetDraining(w.ID, true)
}

// Stay ends the leave of a worker that Remove drains. It reports whether the worker was leaving.
func (s *Watcher) Stay(url string) bool {
	url = NormalURL(url)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.roster.leaving[url]
	if l == nil {
		return false
	}
	if delete(s.roster.removed, url); !slices.ContainsFunc(Sources[:], func(from Source) bool { return index(s.roster.lists[from], url) >= 0 }) {
		s.roster.lists[SourceAdmin] = append(slices.Clone(s.roster.lists[SourceAdmin]), l.Target)
	}
	s.merge()
	return true
}

// leaveEvery is the time between two looks whether the workers that leave have requests.
const leaveEvery = 100 * time.Millisecond

// endLeaves removes the workers whose time to leave has come, and reports whether others are left. s.mu is held.
func (s *Watcher) endLeaves(now time.Time) (more bool) {
	r := &s.roster
	if len(r.leaving) == 0 {
		return false
	}
	snap, before := s.fleet.Snapshot(), len(r.leaving)
	maps.DeleteFunc(r.leaving, func(url string, l *leave) bool {
		if !now.Before(l.by) {
			return true
		}
		w := workerAt(snap, url)
		return !now.Before(l.from) && (w == nil || requestsAt(snap, w) == 0)
	})
	if len(r.leaving) < before {
		s.merge()
	}
	return len(r.leaving) > 0
}

// NormalURL returns the URL under which the fleet knows the worker at url; url itself if it is not valid.
func NormalURL(url string) string {
	if n, err := (Target{URL: url}).normalize(); err == nil {
		return n.URL
	}
	return strings.TrimRight(url, "/")
}
