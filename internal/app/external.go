package app

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// source is the client of one policy's external source.
type source struct {
	config discovery.LMCacheConfig
	client *discovery.LMCache
	stop   context.CancelFunc // ends the source's goroutine; nil: the source does not run
}

// withSource returns the sources of policies, by the policy's name. It covers the policies that the file describes, and
// the built-in policies that are in use.
func withSource(cfg *config.Config) map[string]discovery.LMCacheConfig {
	used := cfg.Used()
	for _, p := range cfg.Policies {
		used = append(used, p.Name)
	}
	all := map[string]discovery.LMCacheConfig{}
	for name, p := range cfg.Parameters() {
		if p, ok := p.(*peers.LMCacheAware); ok && slices.Contains(used, name) {
			all[name] = controllerOf(p)
		}
	}
	return all
}

// controllerOf returns how the controller of lmcache_aware is asked.
func controllerOf(p *peers.LMCacheAware) discovery.LMCacheConfig {
	return discovery.LMCacheConfig{
		URL: p.ControllerURL, APIKey: p.ControllerAPIKey, Workers: p.LMCacheWorkerMap, Lookup: p.LookupMode == peers.LookupPrefix,
		PollInterval: time.Duration(p.PollIntervalSecs) * time.Second, Timeout: time.Duration(p.ControllerTimeoutMs) * time.Millisecond,
	}
}

// sourcesOf returns the sources for cfg, by policy. It keeps a source whose settings did not change. It starts nothing.
// Callers hold a.mu, except New.
func (a *App) sourcesOf(cfg *config.Config) map[string]*source {
	next := map[string]*source{}
	for name, c := range withSource(cfg) {
		if old := a.external[name]; old != nil && reflect.DeepEqual(old.config, c) {
			next[name] = old
			continue
		}
		next[name] = &source{config: c, client: discovery.NewLMCache(c, a.fleet, discovery.NewLMCacheClient(a.options.Network), a.log)}
	}
	return next
}

// attach sets the source of each policy in the policy's spec.
func attach(specs []policy.Spec, sources map[string]*source) {
	for i := range specs {
		if x := sources[specs[i].Name]; x != nil {
			specs[i].Source = x.client.Cached
		}
	}
}

// attachChanged sets the source of each policy in the policy's spec, and who is told of its failures. It also
// adds the specs of policies for which only the source changes. Callers hold a.mu.
func (a *App) attachChanged(specs []policy.Spec, cfg *config.Config, sources map[string]*source) []policy.Spec {
	for name, p := range cfg.Parameters() {
		listed := slices.ContainsFunc(specs, func(s policy.Spec) bool { return s.Name == name })
		if !listed && a.external[name] != sources[name] {
			specs = append(specs, p.Spec(name))
		}
	}
	attach(specs, sources)
	a.countFailures(specs)
	return specs
}

// useSources starts the new sources, and stops the sources that are not in next. Callers hold a.mu.
func (a *App) useSources(next map[string]*source) {
	for name, x := range next {
		if x.stop == nil && a.follow != nil {
			x.stop = a.follow(name, x.client)
		}
	}
	for name, x := range a.external {
		if next[name] != x && x.stop != nil {
			x.stop()
		}
	}
	a.external = next
}

// runSources runs the present sources and the sources that later reloads add. Each source ends with ctx. The returned
// function stops all of them, and prevents others from starting.
func (a *App) runSources(ctx context.Context, g *group, stop context.CancelCauseFunc) (noMore func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow = func(name string, client *discovery.LMCache) context.CancelFunc {
		own, cancel := context.WithCancel(ctx)
		g.run("policy "+name, stop, func() error { return client.Run(own) })
		return cancel
	}
	for _, name := range slices.Sorted(maps.Keys(a.external)) {
		a.external[name].stop = a.follow(name, a.external[name].client)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.follow = nil
		for _, x := range a.external {
			x.stop()
		}
	}
}
