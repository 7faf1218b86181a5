package app

import (
	"context"
	"log/slog"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/lmcache"
	"github.com/warmpath/warmpath/policy"
)

// askers makes a client for each policy that wants to be told by others, by the policy's name: those that the file
// describes, and the built-in one where it is used.
func askers(cfg *config.Config, f *fleet.Fleet, log *slog.Logger) map[string]*lmcache.Client {
	const builtIn = "lmcache_aware"
	clients := map[string]*lmcache.Client{}
	used := append([]string{cfg.Policy}, cfg.RequestPolicies...)
	for _, name := range cfg.ModelPolicies {
		used = append(used, name)
	}
	if slices.Contains(used, builtIn) {
		clients[builtIn] = lmcache.New(policy.DefaultLMCacheAware(), f, nil, log)
	}
	for _, p := range cfg.Policies {
		if told, ok := p.Parameters.(*policy.LMCacheAware); ok {
			clients[p.Name] = lmcache.New(*told, f, nil, log)
		}
	}
	return clients
}

// asks are what the gateway calls, by policy name.
func asks(clients map[string]*lmcache.Client) map[string]func(context.Context, []block.Token) []policy.External {
	all := map[string]func(context.Context, []block.Token) []policy.External{}
	for name, c := range clients {
		all[name] = c.Ask
	}
	return all
}
