package app

import "github.com/warmpath/warmpath/internal/telemetry"

// Telemetry returns the metrics and the recent decisions.
func (a *App) Telemetry() *telemetry.Telemetry { return a.telemetry }
