package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/snapshot"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// useSnapshots makes the parts that give the index to other routers and take it from them. It is called before the feed
// runs.
func (a *App) useSnapshots(cfg *config.Config) error {
	client, err := a.peerClient(cfg.Index.TLS)
	if err != nil {
		return fmt.Errorf("index.tls: %w", err)
	}
	name := rand.Text()
	a.giver = snapshot.NewGiver(a.kvfeed, name, a.options.Version, a.log)
	key := cfg.Admin.Key
	if a.options.IndexOnly { // its peers are index services
		key = cfg.IndexService.Key
	}
	a.keeper = snapshot.NewKeeper(cfg.Index.WarmStart, snapshot.Parts{
		Feed: a.kvfeed, Client: client, Key: key, Name: name, Version: a.options.Version,
		Room: cfg.Index.Bytes, Log: a.log, Others: a.otherAdmins(cfg),
	})
	return nil
}

// otherAdmins returns what finds the admin addresses of other routers in addition to index.peers; nil: nothing does.
// Routers that share their requests tell theirs, if the messages are signed: this router shows its admin key to whom it
// asks. A router without an index of its own has no use for snapshots.
func (a *App) otherAdmins(cfg *config.Config) func() []string {
	if a.replica == nil || cfg.Sync.Key == "" || cfg.Index.Elsewhere() {
		return nil
	}
	return a.replica.Admins
}

// keepIndex runs the keeper until ctx ends. A router that has just started hears first where its peers are.
func (a *App) keepIndex(ctx context.Context) error {
	if a.keeper.Others != nil && a.replica != nil {
		a.replica.AwaitPeer(ctx)
	}
	return a.keeper.Run(ctx)
}

// peerClient returns the client for the admin listeners of other routers. It uses no proxy from the environment, and
// follows no redirects: the key would go along. The files of index.tls count for index.peers, too.
func (a *App) peerClient(files network.PeerTLS) (*http.Client, error) {
	secure, err := files.Client()
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport: network.NewTransport(a.options.Network, nil, network.TransportConfig{
			ConnectTimeout: time.Second, IdleTimeout: 10 * time.Second, IdlePerPeer: 1, Plain: true, TLS: secure,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// showSnapshots returns the counters of snapshots for the metrics.
func (a *App) showSnapshots() telemetry.Snapshots {
	s := a.keeper.Stats(a.giver)
	c := s.Checkpoints
	return telemetry.Snapshots{
		Given: s.Given, GivenBroken: s.GivenBroken, GivenRefused: s.GivenRefused, Peers: s.Peers, PeersFailed: s.PeersFailed,
		Files: s.Files, FilesFailed: s.FilesFailed, Saved: s.Saved, SavesFailed: s.SavesFailed,
		Confirmed: c.Confirmed, Refused: c.Refused, Unfit: c.Unfit,
	}
}
