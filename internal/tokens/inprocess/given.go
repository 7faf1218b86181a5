package inprocess

import (
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// checkNames compares the model names that the operator gave with the models that the fleet serves.
func (f *Finder) checkNames(s *fleet.Snapshot, now time.Time) {
	if f.Given.nameless != nil {
		f.followNameless()
	}
	if len(f.Given.named) > 0 {
		f.warnUnserved(s, now)
	}
}

// followNameless decides about files that were named without a model. While all workers have one base model, the files
// count as named for this model. While the workers have several base models, the files are treated as found files: the
// files are used for a model after the model's engines gave the same ids in every probe.
func (f *Finder) followNameless() {
	all := map[string]bool{}
	for key := range f.units {
		all[key.model] = true
	}
	several := len(all) > 1
	if several == f.several.Load() {
		return
	}
	f.several.Store(several)
	for _, u := range f.units {
		u.looked = false
		u.changes++
	}
	if several {
		f.Log.Warn("--model-path gives a folder but no model name, and the workers serve several models: the folder is "+
			"used only for models whose engine returns the same token ids in every probe; write NAME=DIR",
			"folder", f.nameless.dir, "models", few(slices.Sorted(maps.Keys(all))))
	}
}

// warnUnserved warns once about each model name that the operator gave and that no worker serves. A worker that has not
// answered yet may serve the model. So the warning waits for such workers, until a minute after the first worker
// answered.
func (f *Finder) warnUnserved(s *fleet.Snapshot, now time.Time) {
	models := f.baseModels(s)
	if len(models) == 0 {
		return
	}
	if f.since.IsZero() {
		f.since = now
	}
	silent := slices.ContainsFunc(s.Workers(), func(w *fleet.Worker) bool { return w.Facts.BaseModel() == "" })
	for _, name := range slices.Sorted(maps.Keys(f.Given.named)) {
		switch {
		case f.nameChecked[name]:
		case slices.Contains(models, name):
			f.nameChecked[name] = true
		case !silent || now.Sub(f.since) >= lookEvery:
			f.nameChecked[name] = true
			f.Log.Warn("a folder was given for a model that no worker serves: is the model's name right?", "model", name,
				"folder", f.Given.from[f.Given.named[name]], "they_serve", few(models))
		}
	}
}

// baseModels returns the names of the fleet's base models, including the base models of adapters.
func (f *Finder) baseModels(s *fleet.Snapshot) []string {
	all := map[string]bool{}
	for _, m := range s.Models() {
		if pool, ok := s.Pool(m.ID); ok {
			all[f.Bare(pool.Model)] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// few returns at most the first 8 names of a list, for a log line.
func few(names []string) []string {
	const most = 8
	if len(names) > most {
		return append(slices.Clone(names[:most]), "…")
	}
	return names
}
