package app

import (
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/indexer"
)

// useIndexClient makes the client of an index service, if the configuration names one.
func (a *App) useIndexClient(cfg *config.Config) (err error) {
	if cfg.Index.URL != "" {
		a.indexClient, err = indexer.NewClient(cfg.Index.ClientConfig, a.router, a.options.Network, a.log)
	}
	return err
}

// remoteIndex returns the remote index that the gateway asks: that of an index service, or the shared one. It is nil if
// the router has an index of its own.
func (a *App) remoteIndex() gateway.RemoteIndex {
	if a.indexClient != nil {
		return a.indexClient
	}
	return a.sharedIndex.remote()
}
