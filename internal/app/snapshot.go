package app

import (
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
	parts := snapshot.Parts{
		Feed: a.kvfeed, Client: client, Key: key, Name: name, Version: a.options.Version, Room: cfg.Index.Bytes, Log: a.log,
	}
	if a.asksReplicas(cfg) {
		parts.Others, parts.Joining = a.replica.Admins, a.replica.FirstAdmins
	}
	a.keeper = snapshot.NewKeeper(cfg.Index.WarmStart, parts)
	return nil
}

// asksReplicas reports whether the routers that share their requests are asked for their index, in addition to
// index.peers. Their messages must be signed: this router shows its admin key to the addresses that they tell. A router
// without an index of its own has no use for snapshots.
func (a *App) asksReplicas(cfg *config.Config) bool {
	return a.replica != nil && cfg.Sync.Key != "" && !cfg.Index.Elsewhere()
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
