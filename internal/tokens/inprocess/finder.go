package inprocess

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Bounds on what finding models' files may cost.
const (
	// maxHeld is how many models found here are held at once: each takes 7 to 100 MB for its tokenizer, and up to 64
	// MiB of conversations. A model beyond gets its ids from its engine, or its files by hand.
	maxHeld = 8
	// maxReaders is how many folders are read at once. A tokenizer takes a second of a processor to load.
	maxReaders = 2
	// maxStuck is how many reads may hang before nothing is read any more: a read of a dead network disk cannot be
	// ended, and holds a thread. For a worker one may hang: nothing that it names is read until that read ends.
	maxStuck = 16
	// maxVerifying is how many workers are asked probes at once, each one probe at a time.
	maxVerifying = 4
	// maxFetched is how many models are downloaded in a day because workers named them, where downloads are allowed, and
	// maxFetchedFor for one worker: one that names another model every minute leaves the others theirs.
	maxFetched, maxFetchedFor = 32, 4

	// readTime is how long a folder may take to read and to load; the largest tokenizers take 3 s on one processor.
	readTime = 30 * time.Second
	// lookEvery is the time between two looks at the folders of a model whose ids are not made here: files may come.
	lookEvery = time.Minute
	// fetchEvery is the time between two tries of a download that failed.
	fetchEvery = 10 * time.Minute
	// fetchTime is how long a download may take before another one has its turn; the next try takes it up again. The
	// largest tokenizers have 35 MB.
	fetchTime = 10 * time.Minute
	// fetchDay is how long a download counts.
	fetchDay = 24 * time.Hour
)

// Asker is what a Finder needs of [tokens.Source]: it asks engines for ids, and keeps how ids made here compared.
type Asker interface {
	Ask(ctx context.Context, w tokens.Worker, p tokens.Prompt) tokens.Found
	// Compared returns how ids that were made here compared with engines' while serving; Renew forgets it.
	Compared(model string) tokens.Comparison
	Renew(model string)
	// Keep forgets what is known of models that are not served.
	Keep(served func(model string) bool)
}

// FinderParts are what a Finder works with; all but Given, Hub and Authorization are required.
type FinderParts struct {
	Fleet *fleet.Fleet
	Asker Asker
	// Given are the models whose files the operator named: they win. Nil is none.
	Given *Models
	// Off: no files are looked for, and only Given counts.
	Off bool
	// Cache is the Hugging Face cache of this machine.
	Cache string
	// Hub downloads what workers name, where that is allowed; nil is not.
	Hub *Hub
	// Authorization returns the header with which the worker at url is asked; nil is none for all.
	Authorization func(url string) string
	Log           *slog.Logger
}

// Finder makes ids from the files that the operator named, and from those that it finds by itself: at the path that the
// engine reports, in the Hugging Face cache, on the hub. Files that were found are used once their ids are those of an
// engine in every probe; until then, and where they differ, ok is false and the engine is asked. It implements
// tokens.Local and is safe for concurrent use. Run does the work.
type Finder struct {
	FinderParts
	inUse    atomic.Pointer[map[unitKey]*use]
	statuses atomic.Pointer[[]Status]
	several  atomic.Bool // the fleet has several base models: see followNameless

	// What follows belongs to the goroutine of Run.
	units       map[unitKey]*unit
	held        map[place]*Model
	nameless    place           // of the files that were named without a model; they are held always
	nameChecked map[string]bool // of the models whose files were named, those that were served, or told not to be
	since       time.Time       // when the first worker said what it serves
	fetched     map[string]*fetch
	fetching    int
	readers     int            // reads and loads under way, without those that hang
	stuck       int            // those that hang
	hanging     map[string]int // of them, those for a worker, by URL
	verifying   int
	crowded     bool // a model finds no room
	results     chan func()
	search      func(origin string) (places []place, why string) // finds the folders of an origin
	read        func(dir string) (m *Model, why string)          // loads a model
	jobs        sync.WaitGroup
}

// fetch is a download that was tried.
type fetch struct {
	name    string
	began   time.Time // the first try
	workers []string  // that named it then, by URL
	done    bool
	why     string    // it failed
	again   time.Time // when a download that failed is tried again
}

// use is a model whose ids are made here. It is immutable.
type use struct {
	model  *Model
	folder string
	agreed map[string]bool // URLs of the workers that agreed in all probes, as they run now
}

// NewFinder returns a Finder. It starts nothing and finds nothing before Run.
func NewFinder(parts FinderParts) *Finder {
	f := &Finder{FinderParts: parts, units: map[unitKey]*unit{}, held: map[place]*Model{}, fetched: map[string]*fetch{}, hanging: map[string]int{},
		nameChecked: map[string]bool{}, results: make(chan func())}
	if f.Given == nil {
		f.Given = &Models{}
	}
	if m := f.Given.nameless; m != nil {
		f.nameless = place{dir: f.Given.from[m]}
		f.held[f.nameless] = m
	}
	if f.Hub != nil {
		f.Hub.most, f.Hub.inAll = maxFoundFile, maxFoundBytes // what is fetched is read within the same bounds
	}
	f.search = func(origin string) ([]place, string) { return look(origin, f.Cache) }
	f.read = func(dir string) (*Model, string) { return loadFound(dir, f.Log) }
	f.inUse.Store(&map[unitKey]*use{})
	f.statuses.Store(&[]Status{})
	return f
}

// Find makes the ids of a prompt. ok is false when that cannot be done here, or not yet.
func (f *Finder) Find(_ context.Context, p *tokens.Prompt) (found tokens.Found, ok bool) {
	if m := f.given(p.Model); m != nil {
		return m.find(p)
	}
	u := f.use(p.Model, p.Kind)
	if u == nil {
		return tokens.Found{}, false
	}
	found, ok = u.model.find(p)
	found.Probed = len(found.Features) == 0 // no probe has images
	return found, ok
}

// Agrees implements tokens.Prober.
func (f *Finder) Agrees(model string, w tokens.Worker) bool {
	u := f.use(model, w.Kind)
	return u != nil && u.agreed[w.URL]
}

// Text returns the text of ids, for messages; of ids made from files that were found, as their vocabulary spells them.
func (f *Finder) Text(model string, ids []block.Token) string {
	if m := f.given(model); m != nil {
		return m.Decode(ids)
	}
	for _, kind := range [...]tokens.Kind{tokens.VLLM, tokens.SGLang} {
		if u := f.use(model, kind); u != nil {
			return u.model.spelled(ids)
		}
	}
	return ""
}

// Folder implements tokens.Located.
func (f *Finder) Folder(model string, kind tokens.Kind) string {
	if m := f.given(model); m != nil {
		return f.Given.from[m]
	}
	if u := f.use(model, kind); u != nil {
		return u.folder
	}
	return ""
}

// given returns the model whose files the operator named; nil is none. Files that were named without a model count
// while the fleet has one base model.
func (f *Finder) given(model string) *Model {
	if m := f.Given.named[model]; m != nil {
		return m
	}
	if f.several.Load() {
		return nil
	}
	return f.Given.nameless
}

func (f *Finder) use(model string, kind tokens.Kind) *use {
	return (*f.inUse.Load())[unitKey{model, kind}]
}

// Run follows the fleet until ctx ends, which is no error.
func (f *Finder) Run(ctx context.Context) error {
	defer f.jobs.Wait()
	for ctx.Err() == nil {
		snapshot := f.Fleet.Snapshot()
		f.follow(snapshot)
		f.checkNames(snapshot, time.Now())
		f.drop(snapshot, time.Now())
		wait := f.step(ctx, snapshot, time.Now())
		f.publish(time.Now())
		timer := time.NewTimer(wait)
		select {
		case apply := <-f.results:
			apply()
		case <-snapshot.Superseded():
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// follow takes what each worker serves from the snapshot. Only a worker's base model counts: events are about no other,
// and a worker that lists many models takes no more room for it.
func (f *Finder) follow(s *fleet.Snapshot) {
	members := map[unitKey][]*member{}
	for _, w := range s.Workers() {
		if m := memberOf(w); m != nil {
			key := unitKey{w.Facts.BaseModel(), m.worker.Kind}
			members[key] = append(members[key], m)
		}
	}
	gone := false
	for key, u := range f.units {
		if members[key] == nil {
			delete(f.units, key)
			u.job.giveUp(f)
			u.download.giveUp(f)
			gone = true
		}
	}
	if gone {
		f.Asker.Keep(func(model string) bool {
			_, served := s.Pool(model)
			return served
		})
	}
	for key, now := range members {
		u := f.units[key]
		if u == nil {
			u = &unit{key: key, verdicts: map[verdictKey]*verdict{}, rejected: map[place]string{}}
			f.units[key] = u
		}
		u.follow(now)
	}
}

// drop lets go of models that nobody needs. Where another one finds no room, it lets go of those of which nobody can be
// asked now, too, once they were held for lookEvery: they are loaded again, which takes a second of a processor.
func (f *Finder) drop(s *fleet.Snapshot, now time.Time) {
	needed := map[place]bool{f.nameless: true}
	for _, u := range f.units {
		if p, ok := u.current(now); ok && !(f.crowded && u.pauses(p, s, now) && now.Sub(u.loaded) >= lookEvery) {
			needed[p] = true
		}
	}
	f.crowded = false
	maps.DeleteFunc(f.held, func(p place, _ *Model) bool { return !needed[p] })
}

// step begins what can be done now, and returns how long nothing more will come to do by itself.
func (f *Finder) step(ctx context.Context, s *fleet.Snapshot, now time.Time) time.Duration {
	if f.Off {
		return lookEvery
	}
	// Models that were not loaded yet come first, then those that were longest ago.
	keys := slices.SortedFunc(maps.Keys(f.units), func(a, b unitKey) int {
		return cmp.Or(f.units[a].loaded.Compare(f.units[b].loaded), a.compare(b))
	})
	var missing []*unit
	for _, key := range keys {
		u := f.units[key]
		if u.job != nil && u.job.reads() && now.After(u.job.deadline) {
			u.job.giveUp(f)
			u.gaveUp(u.job, now)
			u.job = nil
		}
		if f.given(key.model) != nil {
			continue
		}
		if u.job == nil {
			f.begin(ctx, s, u, now)
		}
		if u.missing(now) {
			missing = append(missing, u)
		}
	}
	f.fetch(ctx, missing, now)
	wait := lookEvery
	for _, key := range keys {
		wait = min(wait, f.units[key].wait(now))
	}
	return wait
}

// begin starts the next job of a unit, if there is one: it looks at the folders, loads one, or asks a worker.
func (f *Finder) begin(ctx context.Context, s *fleet.Snapshot, u *unit, now time.Time) {
	if !u.ready() {
		return
	}
	p, ok := u.current(now)
	inUse := ok && f.held[p] != nil && u.standing(p, now) == standsAgreed
	switch {
	case !u.looked || !inUse && now.Sub(u.lookedAt) >= lookEvery:
		f.look(ctx, u, s, now)
	case !ok: // only a download can help
	case f.held[p] == nil && u.pauses(p, s, now):
	case f.held[p] == nil:
		if f.crowded = f.crowded || len(f.held)+f.loads() >= maxHeld; !f.crowded {
			f.load(ctx, u, p, s, now)
		}
	default:
		if m := u.next(p, s, now); m != nil && f.verifying < maxVerifying {
			f.verify(ctx, u, p, m)
		}
	}
}

// loads is how many models are being loaded.
func (f *Finder) loads() int {
	n := 0
	for _, u := range f.units {
		if u.job != nil && u.job.task == loading {
			n++
		}
	}
	return n
}

// task is a kind of job.
type task uint8

const (
	looking  task = iota // for folders
	loading              // the files of one
	asking               // a worker
	fetching             // from the hub
)

// reads reports whether a job reads folders, and may hang.
func (t task) reads() bool { return t == looking || t == loading }

// job is work under way for a unit, in a goroutine that Run waits for.
type job struct {
	task
	deadline time.Time // of a job that reads
	workers  []string  // by URL: they named what it reads
	place    place     // that is loaded
	cancel   context.CancelFunc
	over     bool // its result is not used any more
	stuck    bool // it hangs
}

// giveUp makes sure that the job's result is not used. A read that goes on counts as stuck until it ends.
func (j *job) giveUp(f *Finder) {
	if j == nil || j.over {
		return
	}
	j.over = true
	j.cancel()
	if j.reads() {
		f.count(j, -1)
		j.stuck = true
		f.count(j, 1)
	}
}

// start runs work in a goroutine, and what it returns in the goroutine of Run, unless the job was given up. slot is the
// place of the job in its unit.
func (f *Finder) start(ctx context.Context, slot **job, j *job, work func(ctx context.Context) (apply func())) {
	own, cancel := context.WithCancel(ctx)
	j.cancel, *slot = cancel, j
	f.count(j, 1)
	begin := f.jobs.Go
	if j.reads() { // it ends when the system's read does, which may be never: Run does not wait for it
		begin = func(work func()) { go work() }
	}
	begin(func() {
		apply := work(own)
		cancel()
		finish := func() {
			f.count(j, -1)
			if !j.over {
				j.over, *slot = true, nil
				apply()
			}
		}
		select {
		case f.results <- finish:
		case <-ctx.Done():
		}
	})
}

// count books the beginning or the end of a job.
func (f *Finder) count(j *job, n int) {
	switch {
	case j.stuck:
		f.stuck += n
		for _, url := range j.workers {
			if f.hanging[url] += n; f.hanging[url] == 0 {
				delete(f.hanging, url)
			}
		}
	case j.reads():
		f.readers += n
	case j.task == asking:
		f.verifying += n
	default:
		f.fetching += n
	}
}
