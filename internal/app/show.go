package app

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/kvfeed"
)

// sources returns the functions that provide the values of metrics at each scrape.
func (a *App) sources() telemetry.Sources {
	s := telemetry.Sources{Workers: a.showWorkers, Index: a.showIndex, Tokens: a.showTokens, Queue: a.showQueue,
		Stalls: a.stalls, Stale: a.stale, Log: a.options.LogLines, Snapshots: a.showSnapshots}
	if a.replica != nil {
		s.Sync = func() telemetry.Sync { return syncFigures(a.replica.Status()) }
	}
	return s
}

func (a *App) showWorkers() []telemetry.Worker {
	snapshot, now := a.fleet.Snapshot(), time.Now()
	streams := a.streams()
	index := a.indexHolders()
	var out []telemetry.Worker
	for _, w := range snapshot.Workers() {
		line := telemetry.Worker{URL: w.URL, Up: w.Ready}
		if c := a.reporter.Counts(w.URL); c != nil {
			line.Reports, line.ReportsFailed = c.Answered.Load(), c.Failed.Load()
		}
		for _, h := range w.Holders {
			trust, _ := snapshot.Trust(h)
			indexed := index[h]
			holder := telemetry.Holder{Rank: snapshot.Rank(h), Trust: trust, Load: snapshot.Load(h).Own(),
				Reported: snapshot.LoadAt(h, now.UnixNano()).Reported, Timing: snapshot.Timing(h), Pace: snapshot.Pace(h),
				Blocks: indexed.IndexBlocks, Evicted: indexed.IndexEvicted, Refused: indexed.IndexRefused,
				Suspect: snapshot.Suspected(h), Share: snapshot.Share(h, now.UnixNano()), Useless: len(snapshot.Useless(h)) > 0,
				Limited: snapshot.Limited(h, now.UnixNano()) != 0, Leaked: snapshot.Leaked(h), Stream: streams[h]}
			line.Holders = append(line.Holders, holder)
		}
		out = append(out, line)
	}
	return out
}

func (a *App) showIndex() []telemetry.Index {
	var out []telemetry.Index
	for _, s := range a.indexes.get() {
		out = append(out, telemetry.Index{Model: s.Model, BlockSize: s.BlockSize, Blocks: s.Blocks, Memberships: s.Memberships,
			Bytes: s.Bytes, Waiting: s.Waiting, Evictions: uint64(s.Evictions),
			Speculative: s.Speculative, SpeculativeBytes: s.SpeculativeBytes, SpeculativeDropped: uint64(s.SpeculativeDropped)})
	}
	return out
}

func (a *App) showQueue() []telemetry.Line {
	var out []telemetry.Line
	_, lines := a.gateway.Queue()
	for _, l := range lines {
		out = append(out, telemetry.Line{Model: l.Model, Requests: l.Requests, Bytes: l.Bytes})
	}
	return out
}

func (a *App) showTokens() telemetry.TokenStats {
	return telemetry.TokenStats{Stats: a.tokens.Stats(), Models: a.modelSources()}
}

// modelSources returns the number of models by the source of their ids.
func (a *App) modelSources() map[string]int {
	out := map[string]int{}
	for _, s := range inprocess.Sources {
		out[string(s)] = 0
	}
	for _, s := range a.models.Statuses() {
		out[string(s.Source)]++
	}
	return out
}

// showModels returns for each model where its token ids come from.
func (a *App) showModels() []admin.TokenModel {
	out := []admin.TokenModel{}
	for _, s := range a.models.Statuses() {
		out = append(out, admin.TokenModel{Model: s.Model, Engine: s.Engine, Source: string(s.Source), Folder: s.Folder, Prompts: s.Prompts,
			Why: s.Why, Advice: s.Advice})
	}
	return out
}

// streams returns the statistics of each event stream, by its holder.
func (a *App) streams() map[fleet.Holder]*kvfeed.Stats {
	out := map[fleet.Holder]*kvfeed.Stats{}
	for _, s := range a.events.get() {
		out[s.Holder] = &s
	}
	return out
}

// indexHolders returns the indexes' statistics of each holder, over all tiers.
func (a *App) indexHolders() map[fleet.Holder]admin.IndexHolder {
	out := map[fleet.Holder]admin.IndexHolder{}
	for _, x := range a.indexes.get() {
		for i := range x.Holders {
			h := &x.Holders[i]
			sum := out[h.Holder]
			for t := range h.Blocks {
				sum.IndexBlocks += h.Blocks[t]
				sum.IndexEvicted += h.Evicted[t]
			}
			sum.IndexRefused += h.Refused
			out[h.Holder] = sum
		}
	}
	return out
}
