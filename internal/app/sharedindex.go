package app

import (
	"context"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/sharedindex"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/kvindex"
)

// sharedIndex is this process's part in a shared index: it writes or reads. All are nil without index.backend: valkey.
type sharedIndex struct {
	writer *sharedindex.Writer
	reader *sharedindex.Reader
	// placements is nil if the router learns no placements, too.
	placements *sharedindex.Placements
}

// useSharedIndex makes the writer or the reader, and lets the router's indexes tell the writer their changes. The
// router does not exist yet.
func (a *App) useSharedIndex(cfg *config.Config, options *warmpath.Options) {
	c := cfg.Index.Valkey
	switch {
	case cfg.Index.WritesShared():
		w := sharedindex.NewWriter(c, sharedindex.WriterParts{
			Fleet: a.fleet, Algorithm: options.Algorithm, Log: a.log, Network: a.options.Network,
			TellAgain: func(generation uint64, h fleet.Holder, from int) int { return a.router.TellAgain(generation, h, from) },
		})
		a.sharedIndex.writer = w
		hearChanges(options, w.IndexChanged)
	case cfg.Index.ReadsShared():
		a.sharedIndex.reader = sharedindex.NewReader(c, sharedindex.ReaderParts{
			Fleet: a.fleet, Log: a.log, Network: a.options.Network, LearnedTTL: max(options.ApproximateTTL, 0),
			Keying:       func(model string) (block.Algorithm, int, bool) { return a.router.Keying(model) },
			SetBlockSize: func(model string, tokens int) { a.router.SetBlockSize(model, tokens) },
		})
	default:
		return
	}
	if options.ApproximateTTL > 0 && !a.options.IndexOnly {
		a.sharedIndex.placements = sharedindex.NewPlacements(c, sharedindex.PlacementsParts{
			Fleet: a.fleet, Algorithm: options.Algorithm, TTL: options.ApproximateTTL, Log: a.log, Network: a.options.Network,
		})
		hearRequests(options, a.sharedIndex.placements)
	}
}

// hearRequests adds an observer to those that the router tells of its requests.
func hearRequests(options *warmpath.Options, o warmpath.Observer) {
	if options.Observer != nil {
		o = observers{options.Observer, o}
	}
	options.Observer = o
}

// observers are several observers of a router's requests.
type observers []warmpath.Observer

// Placed is a method of warmpath.Observer.
func (all observers) Placed(d *warmpath.Decision) {
	for _, o := range all {
		o.Placed(d)
	}
}

// PrefillCompleted is a method of warmpath.Observer.
func (all observers) PrefillCompleted(id uint64) {
	for _, o := range all {
		o.PrefillCompleted(id)
	}
}

// Freed is a method of warmpath.Observer.
func (all observers) Freed(id uint64, e warmpath.Ending) {
	for _, o := range all {
		o.Freed(id, e)
	}
}

// hearChanges adds a listener to those that the router's indexes tell of their changes: see
// [warmpath.Options.IndexChanged]. No listener returns nil.
func hearChanges(options *warmpath.Options, listener func(warmpath.MadeIndex) func(*kvindex.Change)) {
	others := options.IndexChanged
	if others == nil {
		options.IndexChanged = listener
		return
	}
	options.IndexChanged = func(made warmpath.MadeIndex) func(*kvindex.Change) {
		other, own := others(made), listener(made)
		return func(c *kvindex.Change) {
			other(c)
			own(c)
		}
	}
}

// remote returns the remote index that the gateway asks; nil if it is not the shared one.
func (s *sharedIndex) remote() gateway.RemoteIndex {
	if s.reader == nil {
		return nil
	}
	return s.reader
}

// report makes metrics of the shared index.
func (s *sharedIndex) report(t *telemetry.Telemetry) {
	if s.reader != nil {
		t.ReadSharedIndex(func() telemetry.SharedReader { return readerFigures(s.reader.Stats()) })
	}
	if s.placements != nil {
		t.LearnShared(func() telemetry.SharedPlacements { return placementFigures(s.placements.Stats()) })
	}
	if s.writer != nil {
		t.WriteSharedIndex(func() telemetry.SharedWriter { return writerFigures(s.writer.Stats()) })
	}
}

// readerFigures, placementFigures and writerFigures return the figures of a part as the metrics take them: package
// telemetry, which all fronts link, knows no client of Valkey.
func readerFigures(s sharedindex.Stats) telemetry.SharedReader {
	return telemetry.SharedReader{Connected: s.Connected, Holders: s.Holders, LearnedHolders: s.PlacementHolders, Answered: s.Lookups,
		Failed: s.Failed, RoundTrips: s.RoundTrips, CacheHits: s.CacheHits, CacheMiss: s.CacheMiss, Invalid: s.Invalid}
}

func placementFigures(s sharedindex.Stats) telemetry.SharedPlacements {
	return telemetry.SharedPlacements{Written: s.PlacementsWritten, Dropped: s.PlacementsDropped}
}

func writerFigures(s sharedindex.Stats) telemetry.SharedWriter {
	return telemetry.SharedWriter{Connected: s.Connected, Holders: s.Holders, Waiting: s.Waiting, Written: s.Written, Dropped: s.Dropped,
		Refused: s.Refused, Resyncs: s.Resyncs, Sessions: s.Sessions}
}

// run runs the writer or the reader until ctx ends.
func (s *sharedIndex) run(ctx context.Context, g *group, stop context.CancelCauseFunc) {
	if s.reader != nil {
		g.run("shared index", stop, func() error { return s.reader.Run(ctx) })
	}
	if s.placements != nil {
		g.run("learned placements", stop, func() error { return s.placements.Run(ctx) })
	}
	if s.writer != nil {
		g.run("shared index", stop, func() error { return s.writer.Run(ctx) })
	}
}
