package indexer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// poolOf returns the pool of a model in a group. If the group has only one base model, "" means this model.
func poolOf(snap *fleet.Snapshot, model, group string) (*fleet.Pool, error) {
	name := pooled(model, group)
	if model == "" {
		var more bool
		if name, more = firstModel(snap, group); more {
			return nil, severalModels(snap, group)
		}
	}
	if pool, ok := snap.Pool(name); ok && name != "" {
		return pool, nil
	}
	if model == "" {
		return nil, noGroup(group)
	}
	return nil, fmt.Errorf("%w %s in group %s: GET /workers lists the models, POST /register adds a worker", errNoModel, api.Quoted(model), groupShown(group))
}

// firstModel returns the fleet's name of the first base model of a group, "" if there is none. more says that the group
// has several.
func firstModel(snap *fleet.Snapshot, group string) (name string, more bool) {
	group = cmp.Or(group, defaultGroup)
	for _, m := range snap.Models() {
		if _, of := unpooled(m.ID); of != group || m.Parent != "" {
			continue
		}
		if name != "" {
			return name, true
		}
		name = m.ID
	}
	return name, false
}

// mostNamed bounds the models that an error names.
const mostNamed = 10

// severalModels returns the error of a question without a model, in a group with several.
func severalModels(snap *fleet.Snapshot, group string) error {
	group = cmp.Or(group, defaultGroup)
	var served []string
	for _, m := range snap.Models() {
		if name, of := unpooled(m.ID); of == group && m.Parent == "" {
			served = append(served, name)
		}
	}
	all := strings.Join(served[:min(len(served), mostNamed)], ", ")
	if len(served) > mostNamed {
		all += ", …"
	}
	return fmt.Errorf("the question names no model, and the group has workers of several models: name one of them in model_name: %s", all)
}

func noGroup(group string) error {
	return fmt.Errorf("%w: group %s has no workers; GET /workers lists the groups, POST /register adds a worker", errNoModel, groupShown(group))
}

// groupShown returns a group for an error.
func groupShown(group string) string { return api.Quoted(cmp.Or(group, defaultGroup)) }

// selection is what a stream of changes or a dump is about: a model in a group, all models of a group, or everything.
type selection struct{ model, group string }

// has reports whether a model in a group is selected.
func (s selection) has(model, group string) bool {
	switch {
	case s.model != "":
		return s.model == model && cmp.Or(s.group, defaultGroup) == group
	case s.group != "":
		return s.group == group
	}
	return true
}

// check returns an error if no worker serves what is selected, or if the model is only an adapter or another name of a
// base model: the index is kept for base models. Everything may be nothing.
func (s selection) check(snap *fleet.Snapshot) error {
	switch {
	case s.model != "":
		pool, err := poolOf(snap, s.model, s.group)
		if err == nil && !slices.ContainsFunc(pool.Workers, func(w *fleet.Worker) bool { return w.Facts.BaseModel() == pool.Name }) {
			err = fmt.Errorf("%s is an adapter or another name of the model %s: give the model as model_name", api.Quoted(s.model), api.Quoted(bare(pool.Model)))
		}
		return err
	case s.group != "":
		if name, _ := firstModel(snap, s.group); name == "" {
			return noGroup(s.group)
		}
	}
	return nil
}
