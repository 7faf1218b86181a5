package app

import (
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
)

// connections derives the limits of the listeners from the process's limit of file descriptors. A limit of zero means
// no limit.
func (a *App) connections(cfg *config.Config) (clients, operators gateway.ConnectionLimit) {
	limit := network.Descriptors()
	if limit == 0 || a.options.Network != nil {
		return clients, operators
	}
	listeners := 1
	if a.service != nil {
		listeners = 2
		if cfg.IndexService.GRPCListen != "" {
			listeners = 3
		}
	}
	clients, operators = divided(limit, listeners)
	a.log.Info("descriptors", "limit", limit, "clients", clients.Serving)
	if limit < fewDescriptors {
		a.log.Warn("the process may open only a few file descriptors, so further clients wait: raise the limit (ulimit -n, LimitNOFILE)",
			"limit", limit, "clients", clients.Serving)
	}
	return clients, operators
}

// divided divides limit file descriptors. operators is for each of the listeners beside the clients'. A client that is
// served needs three descriptors: for its own connection, for the connection to its worker, and for the kept connection
// on which its tokens were asked for. An eighth of the descriptors, at least 64, is reserved for operators, the index
// service, health checks, reports, events and other uses. Another eighth, from 8 to 256, is reserved for connections
// that are accepted only to find out whether they are probes of a load balancer. Half as many requests may wait until
// they are served.
func divided(limit, listeners int) (clients, operators gateway.ConnectionLimit) {
	reserve := max(64, limit/8)
	clients.Spare = min(max(limit/8, 8), 256)
	clients.Waiting = clients.Spare / 2
	clients.Serving = max((limit-reserve-clients.Spare-clients.Waiting)/3, 1)
	operators = gateway.ConnectionLimit{Serving: min(reserve/4/listeners, 256), Waiting: 4, Spare: 8}
	return clients, operators
}

// fewDescriptors: if the process may open fewer file descriptors, the log has a warning. A common default limit, 1,024,
// is too low for several hundred clients.
const fewDescriptors = 4096
