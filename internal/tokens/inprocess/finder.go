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

// These constants bound what finding models' files may cost.
const (
	// maxHeld is how many found models are held at the same time. Each model takes 7 to 100 MB for its tokenizer, and
	// up to 64 MiB for conversations. For further models, engines are asked for the ids, unless the operator names the
	// models' files.
	maxHeld = 8
	// maxReaders is how many searches and loads may be under way at the same time. Loading a tokenizer takes a second of a
	// processor.
	maxReaders = 2
	// maxStuck is how many reads may hang before no further read begins. A read from a dead network disk cannot be ended,
	// and holds a thread. While a read of a folder that a worker named hangs, no other folder is read for this worker
	// alone.
	maxStuck = 16
	// maxVerifying is how many workers get probes at the same time. Each worker gets one probe at a time.
	maxVerifying = 4
	// maxFetched is how many models that workers name are downloaded in a day, if downloads are allowed. maxFetchedFor
	// is the limit for one worker. So a worker that names many models leaves room for others.
	maxFetched, maxFetchedFor = 32, 4

	// readTime is how long reading and loading a folder may take. The largest tokenizers take 3 s on one processor.
	readTime = 30 * time.Second
	// lookEvery is the time between two looks at the folders of a model without usable files, to which files may have
	// been added.
	lookEvery = time.Minute
	// fetchEvery is the time between two tries of a download that failed.
	fetchEvery = 10 * time.Minute
	// fetchTime is how long a download may take before it is another model's turn. The next try continues the download.
	// The largest tokenizers have 35 MB.
	fetchTime = 10 * time.Minute
	// fetchDay is how long a download counts towards maxFetched.
	fetchDay = 24 * time.Hour
)

// Asker is the part of [tokens.Source] that a Finder uses. It asks engines for ids. It also records whether ids that
// this process made are equal to the engines' ids.
type Asker interface {
	Ask(ctx context.Context, w tokens.Worker, p tokens.Prompt) tokens.Found
	// Compared returns the comparisons of ids that this process made with engines' ids, for requests of clients. Renew
	// forgets these comparisons.
	Compared(model string) tokens.Comparison
	Renew(model string)
	// Keep forgets everything about models that are not served.
	Keep(served func(model string) bool)
}

// FinderParts are the parts of a Finder. Given, Hub, Authorization and Bare may be nil; the other parts are required.
type FinderParts struct {
	Fleet *fleet.Fleet
	Asker Asker
	// Given has the models with files that the operator named. These files are preferred to found files. Nil means
	// none.
	Given *Models
	// If Off is true, the Finder looks for no files, and uses Given only.
	Off bool
	// Cache is the Hugging Face cache of this machine.
	Cache string
	// Hub downloads models that workers name. Nil means that downloads are not allowed.
	Hub *Hub
	// Authorization returns the header for questions to the worker at url. Nil means that no worker gets a header.
	Authorization func(url string) string
	// Bare returns the fleet's name of a model or a worker without what the fleet adds to it. The index service adds a
	// group. Nil means that the fleet adds nothing.
	Bare func(name string) string
	Log  *slog.Logger
}

// Finder makes ids from files that the operator named, and from files that it finds itself: at the path that the engine
// reports, in the Hugging Face cache, and on the hub. A probe is a prompt of a fixed list. Found files are used if they
// give the same ids as the engine in every probe. If the ids differ, or the probes have not ended, Find returns false
// and the engine is asked. Finder implements tokens.Local, and is safe for concurrent use. Run searches for files and
// compares their ids.
type Finder struct {
	FinderParts
	inUse    atomic.Pointer[map[unitKey]*use]
	statuses atomic.Pointer[[]Status]
	several  atomic.Bool // the fleet has several base models, so that files without a model's name are treated differently: see followNameless

	// The following fields are used only by the goroutine of Run.
	units       map[unitKey]*unit // a unit is a base model on one kind of engine (vLLM or SGLang)
	held        map[place]*Model  // the loaded models; a place is a folder with the state of its files
	nameless    place             // the place of files that the operator named without a model; these files are always held
	nameChecked map[string]bool   // models with named files whose names were checked: a worker serves the model, or a warning was logged
	since       time.Time         // when the first worker reported its models
	fetched     map[string]*fetch
	fetching    int
	readers     int            // number of reads and loads under way that do not hang
	stuck       int            // number of reads and loads that hang
	hanging     map[string]int // number of reads that hang, by worker URL
	verifying   int
	roomWanted  bool // a model could not be loaded because maxHeld models are held
	results     chan func()
	search      func(origin string) (places []place, why string) // finds the folders of an origin
	read        func(dir string) (m *Model, why string)          // loads a model
	jobs        sync.WaitGroup
}

// fetch records the tries of a download.
type fetch struct {
	name    string
	began   time.Time // time of the first try
	workers []string  // URLs of the workers that named the model at that time
	done    bool
	why     string    // reason of the last failure
	again   time.Time // time of the next try of a failed download
}

// use is a model whose found files are in use. It is immutable.
type use struct {
	model  *Model
	folder string
	agreed map[string]bool // URLs of the workers whose present process agreed in all probes
}

// NewFinder returns a Finder. The Finder does nothing before Run.
func NewFinder(parts FinderParts) *Finder {
	f := &Finder{FinderParts: parts, units: map[unitKey]*unit{}, held: map[place]*Model{}, fetched: map[string]*fetch{},
		hanging:     map[string]int{},
		nameChecked: map[string]bool{}, results: make(chan func())}
	if f.Given == nil {
		f.Given = &Models{}
	}
	if f.Bare == nil {
		f.Bare = func(name string) string { return name }
	}
	if m := f.Given.nameless; m != nil {
		f.nameless = place{dir: f.Given.from[m]}
		f.held[f.nameless] = m
	}
	if f.Hub != nil {
		// The Finder refuses larger files, so the Hub does not download them.
		f.Hub.most, f.Hub.inAll = maxFoundFile, maxFoundBytes
	}
	f.search = func(origin string) ([]place, string) { return look(origin, f.Cache) }
	f.read = func(dir string) (*Model, string) { return loadFound(dir, f.Log) }
	f.inUse.Store(&map[unitKey]*use{})
	f.statuses.Store(&[]Status{})
	return f
}

// Find makes the ids of a prompt. If it cannot make these ids, or not yet, ok is false.
func (f *Finder) Find(_ context.Context, p *tokens.Prompt) (found tokens.Found, ok bool) {
	if m := f.given(p.Model); m != nil {
		return m.find(p)
	}
	u := f.use(p.Model, p.Kind)
	if u == nil {
		return tokens.Found{}, false
	}
	found, ok = u.model.find(p)
	found.Probed = len(found.Features) == 0 // ids of prompts with images were not probed: no probe has images
	return found, ok
}

// Agrees implements tokens.Prober.
func (f *Finder) Agrees(model string, w tokens.Worker) bool {
	u := f.use(model, w.Kind)
	return u != nil && u.agreed[w.URL]
}

// Text returns the text of ids, for log messages. For found files it returns the vocabulary's spelling of the ids.
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

// given returns the model with files that the operator named, or nil if there is none. Files that were named without a
// model are used as long as the fleet has only one base model.
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

// Run follows the fleet until ctx ends, and returns nil then.
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

// follow updates the units from the snapshot. Only a worker's base model counts, so that a worker that lists many
// models does not take more room.
func (f *Finder) follow(s *fleet.Snapshot) {
	members := map[unitKey][]*member{}
	for _, w := range s.Workers() {
		if m := f.memberOf(w); m != nil {
			key := unitKey{f.Bare(w.Facts.BaseModel()), m.worker.Kind}
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
		served := map[string]bool{}
		for _, m := range s.Models() {
			served[f.Bare(m.ID)] = true
		}
		f.Asker.Keep(func(model string) bool { return served[model] })
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

// drop frees the loaded models that are not needed. If a model could not be loaded because maxHeld models are held,
// drop also frees models that were loaded at least lookEvery ago and cannot be compared with any worker now: see
// pauses. Loading such a model once more takes a second of a processor.
func (f *Finder) drop(s *fleet.Snapshot, now time.Time) {
	needed := map[place]bool{f.nameless: true}
	for _, u := range f.units {
		if p, ok := u.current(now); ok && !(f.roomWanted && u.pauses(p, s, now) && now.Sub(u.loaded) >= lookEvery) {
			needed[p] = true
		}
	}
	f.roomWanted = false
	maps.DeleteFunc(f.held, func(p place, _ *Model) bool { return !needed[p] })
}

// step starts the jobs that can run now. It returns how long Run waits for an event before it calls step again.
func (f *Finder) step(ctx context.Context, s *fleet.Snapshot, now time.Time) time.Duration {
	if f.Off {
		return lookEvery
	}
	// Models that were never loaded come first. After them comes the model whose last load is the oldest.
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

// begin starts the next job of a unit, if the unit needs one. A job looks at folders, loads one folder, or asks a
// worker.
func (f *Finder) begin(ctx context.Context, s *fleet.Snapshot, u *unit, now time.Time) {
	if !u.ready() {
		return
	}
	p, ok := u.current(now)
	inUse := ok && f.held[p] != nil && u.standing(p, now) == standsAgreed
	switch {
	case !u.looked || !inUse && now.Sub(u.lookedAt) >= lookEvery:
		f.look(ctx, u, s, now)
	case !ok: // no place has usable files: only a download can help
	case f.held[p] == nil && u.pauses(p, s, now):
	case f.held[p] == nil:
		if f.roomWanted = f.roomWanted || len(f.held)+f.loads() >= maxHeld; !f.roomWanted {
			f.load(ctx, u, p, s, now)
		}
	default:
		if m := u.next(p, s, now); m != nil && f.verifying < maxVerifying {
			f.verify(ctx, u, p, m)
		}
	}
}

// loads returns the number of models that are being loaded.
func (f *Finder) loads() int {
	n := 0
	for _, u := range f.units {
		if u.job != nil && u.job.task == loading {
			n++
		}
	}
	return n
}

// task is what a job does.
type task uint8

const (
	looking  task = iota // searches for folders with files
	loading              // loads the files of one folder
	asking               // compares the ids of probes with a worker's ids
	fetching             // downloads from the hub
)

// reads reports whether jobs of this kind read folders. Such a job may hang.
func (t task) reads() bool { return t == looking || t == loading }

// job is work under way for a unit, in a goroutine of its own. Before Run returns, it waits for all jobs except those
// that read folders: such a read may never end.
type job struct {
	task
	deadline time.Time // time at which a read is given up; only for jobs that read folders
	workers  []string  // URLs of the workers that named the folder
	place    place     // the place whose files are loaded
	cancel   context.CancelFunc
	over     bool // the result was applied, or will not be used
	stuck    bool // the read hangs
}

// giveUp gives up the job: its result will not be used. A job that reads folders counts as stuck until its read ends.
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

// start runs work in a goroutine. When work has returned, the goroutine of Run calls the function that work returned,
// unless the job was given up. slot is the unit's field for the job.
func (f *Finder) start(ctx context.Context, slot **job, j *job, work func(ctx context.Context) (apply func())) {
	own, cancel := context.WithCancel(ctx)
	j.cancel, *slot = cancel, j
	f.count(j, 1)
	begin := f.jobs.Go
	if j.reads() { // the system's read may never end, so Run does not wait for it
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

// count counts a job that begins (n = 1) or ends (n = -1).
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
