package app

import (
	"net"
	"os"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// useSync makes the router tell other routers of its requests, if the configuration says so. It starts nothing.
func (a *App) useSync(cfg *config.Config, options *warmpath.Options) {
	if !cfg.Sync.On() {
		return
	}
	a.replica = replica.New(cfg.Sync, replica.Parts{
		NewPeer:     func() *warmpath.Peer { return a.router.NewPeer() },
		SetReplicas: func(own, count int) { a.router.SetReplicas(own, count) },
		Fleet:       a.fleet, Tenants: a.tenants, Log: a.log, Name: ownName(cfg.Listen), Version: a.options.Version,
		NoIndex: cfg.Index.Elsewhere(),
	})
	options.Observer = a.replica.Observer()
}

// syncFigures returns the state of the sharing of requests as the metrics take it: package telemetry, which all fronts
// link, knows no client of NATS.
func syncFigures(s replica.Status) telemetry.Sync {
	c := &s.Counts
	out := telemetry.Sync{Connected: s.Connected, Requests: s.Requests, Sent: c.Sent, SentBytes: c.SentBytes, Received: c.Received,
		ReceivedBytes: c.ReceivedBytes, Failed: c.Failed, Asks: c.Asks, Answers: c.Answers, Repairs: c.Repairs, Connects: c.Connects, Dropped: c.Dropped}
	for _, p := range s.Peers {
		out.Peers = append(out.Peers, telemetry.SyncPeer{Name: p.Name, Requests: p.Requests, Refused: p.Refused, Forgotten: p.Forgotten,
			HeartbeatAge: p.HeartbeatAge, Delay: p.Delay})
	}
	return out
}

// ownName returns the name of a router that the configuration does not name: the machine's name, with the port for
// clients.
func ownName(listen string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "router"
	}
	if _, port, err := net.SplitHostPort(listen); err == nil {
		return net.JoinHostPort(host, port)
	}
	return host
}
