package app

import (
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/indexer"
)

// useRemoteIndex makes the client of an index service, if the configuration names one.
func (a *App) useRemoteIndex(cfg *config.Config) (err error) {
	if cfg.Index.URL != "" {
		a.remote, err = indexer.NewClient(cfg.Index.ClientConfig, a.router, a.options.Network, a.log)
	}
	return err
}

// remoteIndex returns the index that the gateway asks, nil if the router has one of its own.
func (a *App) remoteIndex() gateway.RemoteIndex {
	if a.remote != nil {
		return a.remote
	}
	return a.shared.remote()
}
