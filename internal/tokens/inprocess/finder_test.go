package inprocess

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

// engines are fake engines by URL. Each fake engine makes its ids from its own files.
type engines struct {
	mu      sync.Mutex
	by      map[string]*fakeEngine       // guarded by mu
	asked   map[string]int               // guarded by mu; number of questions, by URL of the engine
	renewed int                          // guarded by mu
	kept    func(string) bool            // guarded by mu; the function of the last call of Keep
	differs map[string]tokens.Comparison // guarded by mu; comparisons while serving, by model
}

type fakeEngine struct {
	model   *Model
	outcome tokens.Outcome // outcome of every question; if it is empty, the engine answers with ids
	hook    func()         // called with every question
}

func (e *engines) Renew(string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewed++
}

func (e *engines) Keep(served func(string) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = served
}

func (e *engines) Compared(model string) tokens.Comparison {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.differs[model]
}

// compare sets the comparisons of the model's ids while serving.
func (e *engines) compare(model string, c tokens.Comparison) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.differs = map[string]tokens.Comparison{model: c}
}

func (e *engines) Ask(ctx context.Context, w tokens.Worker, p tokens.Prompt) tokens.Found {
	e.mu.Lock()
	engine := e.by[w.URL]
	e.asked[w.URL]++
	e.mu.Unlock()
	if engine.hook != nil {
		engine.hook()
	}
	switch {
	case ctx.Err() != nil:
		return tokens.Found{Outcome: tokens.Failed}
	case engine.outcome != "":
		return tokens.Found{Outcome: engine.outcome}
	}
	p.Kind = w.Kind
	found, ok := engine.model.find(&p)
	switch {
	case !ok:
		return tokens.Found{Outcome: tokens.Failed}
	case found.Outcome == tokens.InProcess:
		found.Outcome = tokens.Tokenize
	}
	return found
}

func (e *engines) questions(url string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[url]
}

func (e *engines) set(url string, engine *fakeEngine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.by[url] = engine
}

// finderTest is a running Finder, with its fleet and its engines.
type finderTest struct {
	*Finder
	t       *testing.T
	engines *engines
	log     *testenv.Buffer
}

// runFinder runs a Finder until the test ends. It must be called inside a synctest bubble.
func runFinder(t *testing.T, change func(*FinderParts)) *finderTest {
	t.Helper()
	x := &finderTest{t: t, engines: &engines{by: map[string]*fakeEngine{}, asked: map[string]int{}}, log: &testenv.Buffer{}}
	parts := FinderParts{Fleet: fleet.New(fleet.Config{}), Asker: x.engines, Cache: "/nowhere",
		Log: slog.New(slog.NewTextHandler(x.log, nil))}
	if change != nil {
		change(&parts)
	}
	return x.run(NewFinder(parts))
}

// runThis runs f until the test ends. It must be called inside a synctest bubble.
func runThis(t *testing.T, f *Finder) *finderTest {
	x := &finderTest{t: t, engines: &engines{by: map[string]*fakeEngine{}, asked: map[string]int{}}, log: &testenv.Buffer{}}
	f.Asker = x.engines
	return x.run(f)
}

func (x *finderTest) run(f *Finder) *finderTest {
	x.Finder = f
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = x.Run(ctx)
	}()
	x.t.Cleanup(func() { cancel(); <-done })
	return x
}

// serve puts a vLLM worker into the fleet. The worker reports root as the model's origin, and engine answers its
// questions.
func (x *finderTest) serve(url, model, root string, engine *fakeEngine) fleet.WorkerID {
	x.engines.set(url, engine)
	id := x.Fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.32.0", BlockSize: 16,
		Models: []fleet.Model{{ID: model, Root: root, MaxModelLen: 32768}}})
	x.Fleet.SetHealth(id, true, "")
	return id
}

// after waits for the time d, and then until every goroutine waits for another event.
func (x *finderTest) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (x *finderTest) status(model string) Status {
	x.t.Helper()
	all := x.Statuses()
	i := slices.IndexFunc(all, func(s Status) bool { return s.Model == model })
	if i < 0 {
		x.t.Fatalf("nothing is said of %s: %+v", model, all)
	}
	return all[i]
}

// wants checks the source of a model's ids, and the reasons that its status gives.
func (x *finderTest) wants(model string, source Source, why ...string) {
	x.t.Helper()
	s := x.status(model)
	if s.Source != source {
		x.t.Errorf("%s: ids from %s (%s), want %s", model, s.Source, s.Why, source)
	}
	for _, w := range why {
		if !strings.Contains(s.Why, w) {
			x.t.Errorf("%s: %q does not say %q", model, s.Why, w)
		}
	}
	if (s.Advice == "") != (source != FromEngine) {
		x.t.Errorf("%s: advice %q", model, s.Advice)
	}
	found, ok := x.Find(x.t.Context(), &tokens.Prompt{Request: read(x.t, api.OpenAICompletions, `{"prompt":"hello"}`),
		Model: model})
	made := source == FromFiles || source == FromGiven
	if ok != made || ok && found.Probed != (source == FromFiles) {
		x.t.Errorf("%s: made here: %v, probed: %v, with ids from %s", model, ok, found.Probed, source)
	}
}

// folderOf writes a model's files into a new folder.
func folderOf(t *testing.T, fsys fstest.MapFS) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, fsys)
	return dir
}

// otherTools are files with another template for tools.
func otherTools() fstest.MapFS {
	fsys := files()
	config := string(fsys["tokenizer_config.json"].Data)
	fsys["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(strings.Replace(config, "{{ bos_token }} tool",
		"{{ bos_token }} extra", 1))}
	return fsys
}

// otherWords are files with another tokenizer.
func otherWords() fstest.MapFS {
	fsys := files()
	fsys["tokenizer.json"] = &fstest.MapFile{Data: bytes.Replace(fsys["tokenizer.json"].Data,
		[]byte(`"[UNK]":0,"hello":1`), []byte(`"[UNK]":1,"hello":0`), 1)}
	return fsys
}

const probesOfFiles = 27

func TestFilesAtTheReportedPathAreUsedOnceAllProbesAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromFiles)
		if s := x.status("m"); s.Folder != dir || s.Prompts != probesOfFiles ||
			x.engines.questions("http://a") != probesOfFiles {
			t.Errorf("%+v after %d questions", s, x.engines.questions("http://a"))
		}
		if !x.Agrees("m", tokens.Worker{URL: "http://a"}) || x.Agrees("m", tokens.Worker{URL: "http://b"}) {
			t.Error("the worker that agreed is not the one that may get ids")
		}
		x.after(time.Hour)
		if got := x.engines.questions("http://a"); got != probesOfFiles {
			t.Errorf("%d questions after an hour", got)
		}
		if said := strings.Count(x.log.String(), "token ids are"); said != 1 ||
			!strings.Contains(x.log.String(), "checked_prompts=27") {
			t.Errorf("the log says it %d times:\n%s", said, x.log)
		}
		if x.Text("m", []uint32{1, 2}) == "" {
			t.Error("ids have no text")
		}
	})
}

func TestAfterADifferentProbeTheEngineIsAskedUntilTheFilesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, otherTools())
		x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromEngine, `"tools"`, "http://a", "position 1")
		if log := x.log.String(); strings.Count(log, "differ from the engine's") != 1 ||
			!strings.Contains(log, `made="extra`) || !strings.Contains(log, `engine="tool`) {
			t.Errorf("the log does not show the difference:\n%s", log)
		}
		x.after(5 * time.Minute)
		if got := x.engines.questions("http://a"); got > probesOfFiles {
			t.Errorf("%d questions though nothing changed", got)
		}
		write(t, dir, files())
		x.after(lookEvery + time.Second)
		x.wants("m", FromFiles)
	})
}

func TestAProbeThatBothSidesRefuseIsNoDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noSystem := files()
		noSystem["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(`{"bos_token":"<s>","chat_template":` +
			`"{{ raise_exception('no system') if messages[0].role == 'system' or tools }}{{ bos_token }} plain {{ messages[-1].content }}"}`)}
		x := runFinder(t, nil)
		x.serve("http://a", "m", folderOf(t, noSystem), &fakeEngine{model: load(t, noSystem)})
		// This engine refuses requests that the files accept.
		x.serve("http://b", "n", folderOf(t, files()), &fakeEngine{model: load(t, noSystem)})
		x.serve("http://c", "o", folderOf(t, noSystem), &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromFiles)
		x.wants("n", FromEngine, "a system message")
		x.wants("o", FromEngine, "a system message")
	})
}

func TestFilesThatCannotBeComparedAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		right := load(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{outcome: tokens.Unsupported})
		x.serve("http://b", "n", dir, &fakeEngine{outcome: tokens.Refused})
		x.serve("http://c", "o", dir, &fakeEngine{outcome: tokens.Failed})
		x.after(time.Second)
		for _, name := range []string{"m", "n"} {
			x.wants(name, FromEngine, "cannot be compared", dir)
			if s := x.status(name); !strings.Contains(s.Advice, "--model-path "+name+"="+dir) {
				t.Errorf("advice %q", s.Advice)
			}
		}
		x.wants("o", Searching, "did not answer")
		x.after(10 * time.Minute)
		if got := x.engines.questions("http://c"); got > 20 {
			t.Errorf("a worker that does not answer was asked %d times in ten minutes", got)
		}
		for _, url := range []string{"http://a", "http://b", "http://c"} {
			x.engines.set(url, &fakeEngine{model: right})
		}
		x.after(silentPause + lookEvery)
		for _, name := range []string{"m", "n", "o"} {
			x.wants(name, FromFiles)
		}
	})
}

func TestAWorkerThatIsRemovedDuringAProbeLeavesNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		asked := make(chan struct{}, 100)
		id := x.serve("http://a", "m", folderOf(t, files()),
			&fakeEngine{model: load(t, files()), hook: func() { asked <- struct{}{} }})
		<-asked
		x.Fleet.Remove(id)
		x.after(time.Second)
		if len(x.Statuses()) != 0 || len(x.held) != 0 || len(x.units) != 0 || x.verifying != 0 {
			t.Errorf("left behind: %v, %d models, %d asked", x.Statuses(), len(x.held), x.verifying)
		}
		if got := x.engines.questions("http://a"); got > 2 {
			t.Errorf("the worker was asked %d times", got)
		}
	})
}

func TestAModelIsFreedWithItsLastWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		id := x.serve("http://a", "m", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromFiles)
		x.Fleet.SetHealth(id, false, "gone for a moment")
		x.after(time.Second)
		x.Fleet.SetHealth(id, true, "")
		x.after(time.Second)
		x.wants("m", FromFiles)
		if got := x.engines.questions("http://a"); got != probesOfFiles {
			t.Errorf("the same process was asked again: %d questions", got)
		}
		x.Fleet.Remove(id)
		x.after(time.Second)
		if len(x.held) != 0 {
			t.Error("the model is still held")
		}
		if _, ok := x.Find(t.Context(), &tokens.Prompt{Request: read(t, api.OpenAICompletions, `{"prompt":"hello"}`),
			Model: "m"}); ok {
			t.Error("ids are still made")
		}
	})
}

func TestAnEngineRestartedWithAnotherModelIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		x.serve("http://a", "m", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromFiles)
		next := folderOf(t, otherWords())
		id := x.serve("http://a", "m", next, &fakeEngine{model: load(t, otherWords())})
		x.Fleet.SetHealth(id, true, "")
		synctest.Wait()
		if x.use("m", tokens.VLLM) != nil {
			t.Error("the files of the old model are used for the new one")
		}
		x.after(time.Second)
		x.wants("m", FromFiles)
		if s := x.status("m"); s.Folder != next {
			t.Errorf("ids from %s", s.Folder)
		}
		if x.engines.renewed != 2 || len(x.held) != 1 {
			t.Errorf("comparisons were forgotten %d times, %d models are held", x.engines.renewed, len(x.held))
		}
	})
}

func TestARestartedProcessIsComparedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		id := x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.serve("http://b", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(2 * time.Second)
		x.wants("m", FromFiles)
		// The worker comes back with another template. Only the ids in its answers show the change.
		x.Fleet.Remove(id)
		id = x.serve("http://a", "m", dir, &fakeEngine{model: load(t, otherTools())})
		x.after(2 * time.Second)
		x.wants("m", FromEngine, "http://a")
		x.Fleet.Remove(id)
		x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(2 * time.Second)
		x.wants("m", FromFiles)
	})
}

func TestWorkersOfOneModelMustAllAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		right, other := folderOf(t, files()), folderOf(t, otherWords())
		x.serve("http://a", "m", right, &fakeEngine{model: load(t, files())})
		x.serve("http://b", "m", other, &fakeEngine{model: load(t, otherWords())})
		x.after(3 * time.Second)
		x.wants("m", FromEngine, right, other)

		// The two workers of n have different paths with the same files. This is not a difference.
		x.serve("http://c", "n", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.serve("http://d", "n", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		// Files that differ are replaced by files at another path that agree.
		x.serve("http://e", "o", other, &fakeEngine{model: load(t, files())})
		x.serve("http://f", "o", right, &fakeEngine{model: load(t, files())})
		// One of the two workers has no token endpoint, so only the other worker's answers count.
		x.serve("http://g", "p", right, &fakeEngine{model: load(t, files())})
		x.serve("http://h", "p", other, &fakeEngine{outcome: tokens.Unsupported})
		x.after(5 * time.Second)
		x.wants("n", FromFiles)
		x.wants("o", FromFiles)
		x.wants("p", FromFiles)
		if s := x.status("o"); s.Folder != right {
			t.Errorf("o: ids from %s", s.Folder)
		}
	})
}

func TestANewcomerOfAnotherVersionIsVerifiedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.engines.set("http://b", &fakeEngine{model: load(t, files())})
		facts := fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.33.0", Models: []fleet.Model{{ID: "m", Root: dir}}}
		x.Fleet.SetHealth(x.Fleet.Put("http://b", facts), true, "")
		synctest.Wait()
		x.wants("m", Searching)
		x.after(time.Second)
		x.wants("m", FromFiles)
		// Another worker of the new worker's group agreed, so the ids are used while the new worker gets its probes.
		x.engines.set("http://c", &fakeEngine{model: load(t, files())})
		x.Fleet.SetHealth(x.Fleet.Put("http://c", facts), true, "")
		synctest.Wait()
		x.wants("m", FromFiles)
		if x.Agrees("m", tokens.Worker{URL: "http://c"}) {
			t.Error("a worker agrees before it was asked")
		}
		x.after(time.Second)
		if !x.Agrees("m", tokens.Worker{URL: "http://c"}) {
			t.Error("the newcomer was not asked")
		}
	})
}

func TestEnginesOfTwoKindsAreComparedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.engines.set("http://s", &fakeEngine{model: load(t, otherWords())})
		x.Fleet.SetHealth(x.Fleet.Put("http://s", fleet.Facts{Engine: fleet.EngineSGLang, Origins: []string{dir},
			Models: []fleet.Model{{ID: "m", Root: "m"}}}), true, "")
		x.after(2 * time.Second)
		for kind, want := range map[tokens.Kind]bool{tokens.VLLM: true, tokens.SGLang: false} {
			if _, ok := x.Find(t.Context(), &tokens.Prompt{Request: read(t, api.OpenAICompletions, `{"prompt":"hello"}`),
				Model: "m", Kind: kind}); ok != want {
				t.Errorf("kind %d: made here is %v", kind, ok)
			}
		}
	})
}

func TestTheCacheOfThisMachineIsSearchedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := t.TempDir()
		newer := strings.Repeat("b", 40)
		write(t, filepath.Join(cacheFolder(cache, "org/words"), "snapshots", commit), files())
		write(t, filepath.Join(cacheFolder(cache, "org/words"), "snapshots", newer), otherWords())
		write(t, filepath.Join(cacheFolder(cache, "org/words"), "refs"), fstest.MapFS{"main": {Data: []byte(newer)}})
		x := runFinder(t, func(p *FinderParts) { p.Cache = cache })
		// The engine runs an older revision than main. Its ids show which revision it runs.
		x.serve("http://a", "m", "org/words", &fakeEngine{model: load(t, files())})
		x.serve("http://b", "org/words", "", &fakeEngine{model: load(t, otherWords())})
		x.serve("http://c", "n", "org/missing", &fakeEngine{model: load(t, files())})
		x.serve("http://d", "o", "words", &fakeEngine{model: load(t, files())})
		x.after(3 * time.Second)
		x.wants("m", FromFiles)
		x.wants("org/words", FromFiles)
		x.wants("n", FromEngine, "org/missing", cache)
		x.wants("o", FromEngine, "neither a folder nor ORG/NAME")
		if s := x.status("n"); !strings.Contains(s.Advice, "--allow-hub") {
			t.Errorf("advice %q", s.Advice)
		}
		write(t, filepath.Join(cacheFolder(cache, "org/missing"), "snapshots", commit), files())
		x.after(lookEvery + time.Second)
		x.wants("n", FromFiles)
	})
}

func TestNamedFilesArePreferredAndDiscoveryCanBeOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folderOf(t, files())
		given, err := Open([]Path{{Name: "m", Path: folderOf(t, otherWords())}})
		if err != nil {
			t.Fatal(err)
		}
		x := runFinder(t, func(p *FinderParts) { p.Given = given })
		x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromGiven)
		if x.engines.questions("http://a") != 0 {
			t.Error("the worker of a model with given files was asked")
		}
		off := runFinder(t, func(p *FinderParts) { p.Off = true })
		off.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
		off.after(2 * time.Minute)
		off.wants("m", FromEngine, "tokens.discover")
		if off.engines.questions("http://a") != 0 {
			t.Error("off, and a worker was asked")
		}
	})
}

func TestTheModelsHeldAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		var ids []fleet.WorkerID
		for i := range maxHeld + 2 {
			ids = append(ids, x.serve(fmt.Sprintf("http://%02d", i), fmt.Sprintf("m%02d", i), folderOf(t, files()),
				&fakeEngine{model: load(t, files())}))
		}
		x.after(10 * time.Second)
		if len(x.held) != maxHeld {
			t.Errorf("%d models are held", len(x.held))
		}
		x.wants("m00", FromFiles)
		x.wants("m09", FromEngine, "other models")
		for _, id := range ids[:2] {
			x.Fleet.Remove(id)
		}
		x.after(10 * time.Second)
		x.wants("m09", FromFiles)
	})
}

func TestTheLeastBusyWorkerIsAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.engines.set("http://busy", &fakeEngine{model: load(t, files())})
		x.engines.set("http://idle", &fakeEngine{model: load(t, files()), hook: func() {
			if x.engines.questions("http://busy") > 0 {
				t.Error("the busy worker was asked first")
			}
		}})
		facts := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m", Root: dir}}, BlockSize: 16}
		busy, idle := x.Fleet.Put("http://busy", facts), x.Fleet.Put("http://idle", facts)
		h := x.Fleet.Snapshot().ByID(busy).Holders[0]
		x.Fleet.Report(h, fleet.Reported{At: time.Now().UnixNano(), Running: 5})
		x.Fleet.SetHealth(busy, true, "")
		x.Fleet.SetHealth(idle, true, "")
		x.after(500 * time.Millisecond)
		x.wants("m", FromFiles)
		if x.engines.questions("http://idle") != probesOfFiles {
			t.Errorf("the idle worker was asked %d times", x.engines.questions("http://idle"))
		}
	})
}

func TestAHostilePathConcernsItsWorkerOnly(t *testing.T) {
	fifo := folderOf(t, nil)
	if err := syscall.Mkfifo(filepath.Join(fifo, "tokenizer.json"), 0o600); err != nil {
		t.Skip(err)
	}
	crowd := folderOf(t, files())
	for i := range 3 * maxEntries {
		if err := os.WriteFile(filepath.Join(crowd, fmt.Sprint(i, ".tiktoken")), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret := folderOf(t, fstest.MapFS{"tokenizer.json": {Data: []byte("root:x:0:0:THE-SECRET")}})
	link, huge, endless := folderOf(t, nil), folderOf(t, nil), folderOf(t, nil)
	for name, to := range map[string]string{link: filepath.Join(secret, "tokenizer.json"), endless: "/dev/zero"} {
		if err := os.Symlink(to, filepath.Join(name, "tokenizer.json")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(huge, "tokenizer.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(huge, "tokenizer.json"), 1<<40); err != nil {
		t.Fatal(err)
	}
	slow := files()
	slow["tokenizer.json"] = &fstest.MapFile{Data: []byte(`{"version":"1.0","added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[` +
		strings.Repeat(`{"type":"Replace","pattern":{"Regex":"(a*)*b"},"content":"abab"},`, 64) + `{"type":"NFC"}]},"pre_tokenizer":null,"post_processor":null,"decoder":null,
		"model":{"type":"WordLevel","vocab":{"[UNK]":0},"unk_token":"[UNK]"}}`)}
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		right := load(t, files())
		for i, root := range []string{"/etc", "/", "/../..", "../..", "/dev", "/dev/zero", "/proc/self/root", fifo,
			filepath.Join(fifo, "tokenizer.json"), secret, link, huge,
			endless, folderOf(t, slow), "/" + strings.Repeat("x/", 1<<20), "/a\x00b", "a/../b", "", "\x1b[31mred/\nline"} {
			x.serve(fmt.Sprintf("http://hostile%02d", i), fmt.Sprintf("hostile%02d", i), root, &fakeEngine{model: right})
		}
		x.serve("http://z", "zz", folderOf(t, files()), &fakeEngine{model: right})
		x.serve("http://y", "yy", crowd, &fakeEngine{model: right})
		x.after(5 * time.Second)
		x.wants("zz", FromFiles)
		x.wants("yy", FromFiles)
		for _, s := range x.Statuses() {
			if strings.HasPrefix(s.Model, "hostile") && s.Source != FromEngine {
				t.Errorf("%s: ids from %s %s", s.Model, s.Source, s.Folder)
			}
			if len(s.Why) > 2000 {
				t.Errorf("%s: %d bytes of reason", s.Model, len(s.Why))
			}
		}
		if log := x.log.String(); strings.Contains(log, "SECRET") || strings.Contains(log, "\x1b") || len(log) > 20000 {
			t.Errorf("the log leaks or grows:\n%.3000s", log)
		}
	})
}

func TestRunEndsWhileAReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, begun := make(chan struct{}), make(chan struct{})
		f := NewFinder(FinderParts{Fleet: fleet.New(fleet.Config{}), Log: slog.New(slog.DiscardHandler)})
		f.read = func(string) (*Model, string) {
			close(begun)
			<-end
			return nil, ""
		}
		x := &finderTest{t: t, Finder: f, engines: &engines{by: map[string]*fakeEngine{}, asked: map[string]int{}}}
		f.Asker = x.engines
		x.serve("http://h", "a", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = f.Run(ctx); close(ended) }()
		<-begun
		cancel()
		<-ended
		close(end)
	})
}

func TestAHangingReadIsGivenUpAndDelaysNoOtherWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := folderOf(t, files())
		end := make(chan struct{})
		f := NewFinder(FinderParts{Fleet: fleet.New(fleet.Config{}), Log: slog.New(slog.DiscardHandler)})
		read := f.read
		f.read = func(dir string) (*Model, string) {
			if dir == hangs {
				<-end
			}
			return read(dir)
		}
		x := runThis(t, f)
		right := load(t, files())
		id := x.serve("http://h", "a", hangs, &fakeEngine{model: right})
		x.serve("http://m", "m", folderOf(t, files()), &fakeEngine{model: right})
		x.after(time.Second)
		x.wants("m", FromFiles)
		x.wants("a", Searching)
		x.after(readTime)
		x.wants("a", FromEngine, "within 30s")
		// However often the worker restarts, no more than maxStuck reads hang.
		for range 2 * maxStuck {
			x.Fleet.Remove(id)
			x.serve("http://h", "a", hangs, &fakeEngine{model: right})
			x.after(2 * readTime)
		}
		if x.stuck > maxStuck || x.readers != 0 {
			t.Errorf("%d reads hang, %d are under way", x.stuck, x.readers)
		}
		close(end)
		x.after(2 * lookEvery)
		if x.stuck != 0 {
			t.Errorf("%d reads still count as stuck", x.stuck)
		}
		x.serve("http://n", "n", folderOf(t, files()), &fakeEngine{model: right})
		x.after(2 * lookEvery)
		x.wants("n", FromFiles)
	})
}
