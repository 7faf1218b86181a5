package inprocess

import (
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// open loads models with named files.
func open(t *testing.T, paths ...Path) func(*FinderParts) {
	t.Helper()
	given, err := Open(paths)
	if err != nil {
		t.Fatal(err)
	}
	return func(p *FinderParts) { p.Given = given }
}

// A folder without a model's name is used for the fleet's only base model without a probe. When the fleet has several
// base models, the folder is used for the models whose engines give the same ids.
func TestAFolderWithoutANameServesTheOnlyModelOrModelsThatAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folderOf(t, files())
		x := runFinder(t, open(t, Path{Path: dir}))
		x.serve("http://a", "m", "", &fakeEngine{model: load(t, files())})
		x.after(time.Minute)
		x.wants("m", FromGiven)
		if x.log.String() != "" || x.engines.questions("http://a") != 0 {
			t.Errorf("%d questions, log:\n%s", x.engines.questions("http://a"), x.log)
		}
		id := x.serve("http://b", "n", "", &fakeEngine{model: load(t, otherWords())})
		x.after(5 * time.Second)
		x.wants("m", FromFiles)
		x.wants("n", FromEngine, dir, "http://b", "differ")
		if s := x.status("m"); s.Folder != dir {
			t.Errorf("ids from %q", s.Folder)
		}
		if log := x.log.String(); strings.Count(log, "write NAME=DIR") != 1 || !strings.Contains(log, "folder="+dir) ||
			!strings.Contains(log, `models="[m n]"`) {
			t.Errorf("the log does not say it once:\n%s", log)
		}
		x.after(time.Hour)
		x.Fleet.Remove(id)
		x.after(time.Second)
		x.wants("m", FromGiven)
		if strings.Count(x.log.String(), "write NAME=DIR") != 1 {
			t.Errorf("the log says it again:\n%s", x.log)
		}
	})
}

func TestAFolderWithoutANameServesNoModelBeforeAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folderOf(t, files())
		x := runFinder(t, func(p *FinderParts) { open(t, Path{Path: dir})(p); p.Off = true })
		x.serve("http://a", "m", "", &fakeEngine{model: load(t, files())})
		x.serve("http://b", "n", "", &fakeEngine{model: load(t, files())})
		x.after(time.Minute)
		x.wants("m", FromEngine, "tokens.discover is off", dir)
		x.wants("n", FromEngine, "tokens.discover is off", dir)
	})
}

func TestANameThatNoWorkerServesIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folderOf(t, files())
		x := runFinder(t, open(t, Path{Name: "tinny", Path: dir}, Path{Name: "tiny", Path: dir}))
		x.after(time.Hour)
		// This worker may serve the model. It is added first, because the Finder checks names whenever the fleet
		// changes.
		silent := x.Fleet.Put("http://b", fleet.Facts{})
		id := x.serve("http://a", "tiny", "", &fakeEngine{model: load(t, files())})
		x.after(10 * time.Second)
		if x.log.String() != "" {
			t.Errorf("it is logged while a worker did not answer yet:\n%s", x.log)
		}
		x.after(lookEvery)
		x.Fleet.Remove(silent)
		x.after(time.Hour)
		if log := x.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "level=WARN") ||
			!strings.Contains(log, "model=tinny folder="+dir+" they_serve=[tiny]") {
			t.Errorf("the log is not one line about the name:\n%s", log)
		}
		x.Fleet.Remove(id) // the name was served once, so it is not misspelt, and there is no warning
		x.serve("http://a", "other", "", &fakeEngine{model: load(t, files())})
		x.after(time.Hour)
		if strings.Contains(x.log.String(), "model=tiny ") {
			t.Errorf("a model that left is logged as a wrong name:\n%s", x.log)
		}
	})
}

func TestAFolderThatCannotBeUsedHasAReason(t *testing.T) {
	empty, file := folderOf(t, nil), filepath.Join(folderOf(t, files()), "tokenizer.json")
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		for model, c := range map[string]struct{ root, why string }{
			"missing": {"/models/nowhere", `"/models/nowhere" is not on this machine`},
			"empty":   {empty, "has no tokenizer.json, tekken.json or .tiktoken file"},
			"file":    {file, "is no folder"},
		} {
			x.serve("http://"+model, model, c.root, &fakeEngine{model: load(t, files())})
			x.after(time.Second)
			x.wants(model, FromEngine, c.why)
		}
	})
	if got := whyNot(&fs.PathError{Op: "stat", Path: "/secret", Err: fs.ErrPermission}); !strings.Contains(got,
		"may not be read by the user") {
		t.Errorf("forbidden: %s", got)
	}
}

func TestFilesThatMayNotBeReadAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFinder(FinderParts{Fleet: fleet.New(fleet.Config{}), Cache: "/nowhere", Log: slog.New(slog.DiscardHandler)})
		f.read = func(string) (*Model, string) {
			return nil, whyNotLoaded(&fs.PathError{Op: "open", Path: "tokenizer.json", Err: fs.ErrPermission})
		}
		x := runThis(t, f)
		x.serve("http://a", "m", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.wants("m", FromEngine, "may not be read by the user")
	})
}

func TestAnUnusablePathHasAReason(t *testing.T) {
	for path, want := range map[string]string{
		"no-org/no-model": "hub:no-org/no-model with --allow-hub",
		"/no/such/folder": "no such file",
		folderOf(t, fstest.MapFS{"config.json": {Data: []byte("{}")}}): "no tokenizer.json, tekken.json or .tiktoken file: " +
			"name the folder that has one; serve without a path looks",
	} {
		if err := (Path{Path: path}).Check(false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A worker of a group of the index service has its group in the fleet's names. Questions, folders and the log name the
// model and the URL.
func TestAModelOfAGroupIsNamedWithoutTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named, found := folderOf(t, files()), folderOf(t, files())
		x := runFinder(t, func(p *FinderParts) {
			open(t, Path{Name: "tiny", Path: named})(p)
			p.Bare = func(name string) string { bare, _, _ := strings.Cut(name, "\x1f"); return bare }
		})
		engine := &fakeEngine{model: load(t, files())}
		for _, url := range []string{"http://a", "http://b"} {
			x.engines.set(url, engine)
		}
		x.serve("http://a\x1fx", "tiny\x1fx", "", engine)
		for _, group := range []string{"\x1fx", "\x1fy"} {
			x.serve("http://b"+group, "m"+group, found, engine)
		}
		x.after(time.Hour)
		x.wants("tiny", FromGiven)
		x.wants("m", FromFiles)
		if log := x.log.String(); strings.Contains(log, "WARN") || strings.Contains(log, `\x1f`) {
			t.Errorf("the log says\n%s", log)
		}
		if !x.Agrees("m", tokens.Worker{URL: "http://b"}) {
			t.Error("a question to the worker does not find its probes")
		}
	})
}
