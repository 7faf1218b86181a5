package app

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/policy"
)

// source is the client of one policy's external source.
type source struct {
	config policy.SourceConfig
	client *discovery.LMCache
	stop   context.CancelFunc // nil: it does not run
}

// withSource returns the sources of policies, by the policy's name: of the policies that the file describes, and of
// built-in ones in use.
func withSource(cfg *config.Config) map[string]policy.SourceConfig {
	used := cfg.Used()
	for _, p := range cfg.Policies {
		used = append(used, p.Name)
	}
	all := map[string]policy.SourceConfig{}
	for name, p := range cfg.Parameters() {
		if p, ok := p.(policy.Sourced); ok && slices.Contains(used, name) {
			all[name] = p.SourceConfig()
		}
	}
	return all
}

// sourcesOf returns the sources for cfg, by policy. A source whose settings are the same is kept. It starts nothing.
// a.mu is held.
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

// attach gives specs their sources.
func attach(specs []policy.Spec, sources map[string]*source) {
	for i := range specs {
		if x := sources[specs[i].Name]; x != nil {
			specs[i].Source = x.client.Cached
		}
	}
}

// attachChanged gives specs their sources, and adds the specs of policies that only get or lose one. a.mu is held.
func (a *App) attachChanged(specs []policy.Spec, cfg *config.Config, sources map[string]*source) []policy.Spec {
	for name, p := range cfg.Parameters() {
		listed := slices.ContainsFunc(specs, func(s policy.Spec) bool { return s.Name == name })
		if !listed && a.external[name] != sources[name] {
			specs = append(specs, p.Spec(name))
		}
	}
	attach(specs, sources)
	return specs
}

// useSources starts the sources that are new, and stops the others. a.mu is held.
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

// runSources runs the present sources and the sources that later reloads add. The returned function stops them all and
// lets no other begin. Each ends with ctx.
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
