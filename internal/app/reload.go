package app

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
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
	if !samePolicies(a.cfg, next) {
		if err := a.usePolicies(next); err != nil {
			return nil, fmt.Errorf("a policy that the file describes anew needs a restart: %w", err)
		}
		changes = append(changes, comparePolicies(a.cfg, next)...)
	}
	if !reflect.DeepEqual(next.Workers, a.cfg.Workers) {
		if err := a.workers.Replace(next.Workers); err != nil {
			return nil, err
		}
		changes = append(changes, compareWorkers(a.cfg.Workers, next.Workers)...)
	}
	changes = append(changes, needRestart(a.cfg, next)...)
	in := *a.cfg
	in.Workers, in.Policy = next.Workers, next.Policy
	in.ModelPolicies, in.RequestPolicies = next.ModelPolicies, next.RequestPolicies
	a.cfg = &in
	a.log.Info("configuration reloaded", "changes", changes)
	return changes, nil
}

func samePolicies(old, next *config.Config) bool {
	return next.Policy == old.Policy && maps.Equal(next.ModelPolicies, old.ModelPolicies) && slices.Equal(next.RequestPolicies, old.RequestPolicies)
}

// comparePolicies says what decides otherwise now.
func comparePolicies(old, next *config.Config) []string {
	var changes []string
	if next.Policy != old.Policy {
		changes = append(changes, fmt.Sprintf("policy: %s, was %s", next.Policy, old.Policy))
	}
	if !maps.Equal(next.ModelPolicies, old.ModelPolicies) {
		changes = append(changes, fmt.Sprintf("model_policies: %v, was %v", next.ModelPolicies, old.ModelPolicies))
	}
	if !slices.Equal(next.RequestPolicies, old.RequestPolicies) {
		changes = append(changes, fmt.Sprintf("request_policies: %v, was %v", next.RequestPolicies, old.RequestPolicies))
	}
	return changes
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

// applied are the sections that a reload applies.
var applied = []string{"workers", "policy", "model_policies", "request_policies"}

// needRestart names the sections that differ and are not applied.
func needRestart(old, next *config.Config) []string {
	var changes []string
	o, n := reflect.ValueOf(*old), reflect.ValueOf(*next)
	for i := range o.NumField() {
		key, _, _ := strings.Cut(o.Type().Field(i).Tag.Get("yaml"), ",")
		if slices.Contains(applied, key) || reflect.DeepEqual(o.Field(i).Interface(), n.Field(i).Interface()) {
			continue
		}
		changes = append(changes, key+": differs, a restart is needed to apply it")
	}
	return changes
}
