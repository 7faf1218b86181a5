package app

import (
	"crypto/rand"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/snapshot"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// useSnapshots makes the parts that give the index to other routers and take it from them. It is called before the feed
// runs.
func (a *App) useSnapshots(cfg *config.Config) {
	a.giver = snapshot.NewGiver(a.kvfeed, a.options.Version, a.log)
	a.keeper = snapshot.NewKeeper(cfg.Index.WarmStart, snapshot.Parts{
		Feed: a.kvfeed, Client: a.peerClient(), Key: cfg.Admin.Key, Name: rand.Text(), Version: a.options.Version,
		Room: cfg.Index.Bytes, Log: a.log, Others: a.options.PeerAdmins,
	})
}

// peerClient returns the client for the admin listeners of other routers. It uses no proxy from the environment, and
// follows no redirects: the admin key would go along.
func (a *App) peerClient() *http.Client {
	return &http.Client{
		Transport: network.NewTransport(a.options.Network, nil, network.TransportConfig{
			ConnectTimeout: time.Second, IdleTimeout: 10 * time.Second, IdlePerPeer: 1, Plain: true,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
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
