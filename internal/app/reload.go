package app

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
)

// Reload reads the configuration again and applies what can change without dropping a request: workers and policy. It
// returns what changed, one line each; settings that need a restart are named and stay as they were. On an error nothing
// has changed.
func (a *App) Reload() (changes []string, err error) {
	defer func() { a.telemetry.Reloaded(err) }()
	if a.options.Load == nil {
		return nil, errors.New("there is no file to read again")
	}
	next, err := a.options.Load()
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !reflect.DeepEqual(next.Workers, a.cfg.Workers) {
		if err := a.workers.Replace(next.Workers); err != nil {
			return nil, err
		}
		changes = append(changes, compareWorkers(a.cfg.Workers, next.Workers)...)
	}
	if next.Policy != a.cfg.Policy {
		if err := a.setPolicy(next); err != nil {
			return nil, err // cannot happen: Validate has built it
		}
		changes = append(changes, fmt.Sprintf("policy: %s, was %s", next.Policy, a.cfg.Policy))
	}
	changes = append(changes, needRestart(a.cfg, next)...)
	in := *a.cfg
	in.Workers, in.Policy = next.Workers, next.Policy
	a.cfg = &in
	a.log.Info("configuration reloaded", "changes", changes)
	return changes, nil
}

// compareWorkers says which workers came, went and changed.
func compareWorkers(old, next []discovery.Target) []string {
	var changes []string
	before := map[string]discovery.Target{}
	for _, w := range old {
		before[w.URL] = w
	}
	for _, w := range next {
		was, known := before[w.URL]
		switch {
		case !known:
			changes = append(changes, "worker added: "+w.URL)
		case !was.Equal(w):
			changes = append(changes, "worker changed: "+w.URL)
		}
		delete(before, w.URL)
	}
	for _, w := range old {
		if _, gone := before[w.URL]; gone {
			changes = append(changes, "worker removed: "+w.URL)
		}
	}
	return changes
}

// needRestart names the sections that differ and are not applied.
func needRestart(old, next *config.Config) []string {
	var changes []string
	o, n := reflect.ValueOf(*old), reflect.ValueOf(*next)
	for i := range o.NumField() {
		key, _, _ := strings.Cut(o.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "workers" || key == "policy" || reflect.DeepEqual(o.Field(i).Interface(), n.Field(i).Interface()) {
			continue
		}
		changes = append(changes, key+": differs, a restart is needed to apply it")
	}
	return changes
}
