package app

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/lmcache"
	"github.com/warmpath/warmpath/policy/peers"
)

// asker is a client that asks others for one policy.
type asker struct {
	told   peers.LMCacheAware
	client *lmcache.Client
	stop   context.CancelFunc // nil: it does not run
}

// asking are the policies that want to be told by others, by name: those that the file describes, and what is in use
// without being described.
func asking(cfg *config.Config) map[string]peers.LMCacheAware {
	used := cfg.Used()
	for _, p := range cfg.Policies {
		used = append(used, p.Name)
	}
	all := map[string]peers.LMCacheAware{}
	for name, p := range cfg.Parameters() {
		if told, ok := p.(*peers.LMCacheAware); ok && slices.Contains(used, name) {
			all[name] = *told
		}
	}
	return all
}

// useAskers has the gateway ask for the policies of cfg that want it. Clients that are told the same go on. a.mu is
// held.
func (a *App) useAskers(cfg *config.Config) {
	next := map[string]*asker{}
	for name, told := range asking(cfg) {
		if was := a.askers[name]; was != nil && reflect.DeepEqual(was.told, told) {
			next[name] = was
			continue
		}
		next[name] = &asker{told: told, client: lmcache.New(told, a.fleet, lmcache.NewClient(a.options.Network), a.log)}
	}
	ask := map[string]gateway.Ask{}
	for name, x := range next {
		ask[name] = x.client.Ask
		if x.stop == nil && a.follow != nil {
			x.stop = a.follow(name, x.client)
		}
	}
	a.gateway.AskOthers(ask)
	for name, x := range a.askers {
		if next[name] != x && x.stop != nil {
			x.stop()
		}
	}
	a.askers = next
}

// runAskers runs the clients there are and those of later reloads, until the returned function is called, after which
// no more begin. Each ends with ctx.
func (a *App) runAskers(ctx context.Context, g *group, stop context.CancelCauseFunc) (noMore func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow = func(name string, client *lmcache.Client) context.CancelFunc {
		own, cancel := context.WithCancel(ctx)
		g.run("policy "+name, stop, func() error { return client.Run(own) })
		return cancel
	}
	for _, name := range slices.Sorted(maps.Keys(a.askers)) {
		a.askers[name].stop = a.follow(name, a.askers[name].client)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.follow = nil
		for _, x := range a.askers {
			x.stop()
		}
	}
}
