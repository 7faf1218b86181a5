package app

import (
	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// Divided divides a number of file descriptors.
var Divided = divided

// Telemetry returns the metrics and the recent decisions.
func (a *App) Telemetry() *telemetry.Telemetry { return a.telemetry }

// IndexConnections returns the bounds of the index service's connections.
func (a *App) IndexConnections() indexer.Connections { return a.service.Connections }

// OtherAdmins returns the admin addresses of the routers of sync that this one asks for snapshots.
func (a *App) OtherAdmins() []string { return a.keeper.Others() }
