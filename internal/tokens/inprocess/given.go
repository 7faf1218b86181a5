package inprocess

import (
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// checkNames holds the names that the operator gave to models' files against what the fleet serves.
func (f *Finder) checkNames(s *fleet.Snapshot, now time.Time) {
	if f.Given.nameless != nil {
		f.followNameless()
	}
	if len(f.Given.named) > 0 {
		f.warnUnserved(s, now)
	}
}

// followNameless has files that were named without a model count as given while all workers have one base model. While
// they have several, the files are treated as found ones: for each model they count once its engines agree in every
// probe.
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
		f.Log.Warn("--model-path gives a folder but no model name, and the workers serve several models: the folder is used only for "+
			"models whose engine returns the same token ids in every probe; write NAME=DIR",
			"folder", f.nameless.dir, "models", few(slices.Sorted(maps.Keys(all))))
	}
}

// warnUnserved warns once of each model whose files were named and that no worker serves. A worker that did not answer
// yet may serve it: such workers are waited for, until a minute after the first one that answered.
func (f *Finder) warnUnserved(s *fleet.Snapshot, now time.Time) {
	models := baseModels(s)
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
			f.Log.Warn("no worker serves the model whose folder was named: is its name right?", "model", name,
				"folder", f.Given.from[f.Given.named[name]], "they_serve", few(models))
		}
	}
}

// baseModels returns the names of the fleet's base models, those of adapters, too.
func baseModels(s *fleet.Snapshot) []string {
	all := map[string]bool{}
	for _, m := range s.Models() {
		if pool, ok := s.Pool(m.ID); ok {
			all[pool.Model] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// few are the first names of a list that is to be logged.
func few(names []string) []string {
	const most = 8
	if len(names) > most {
		return append(slices.Clone(names[:most]), "…")
	}
	return names
}
