package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// RoleLaboratory is what the simulator says about the fleet before and after the change of a role. It plays the last
// requests twice, through the router's own policy, on workers with the learned times. Both fleets begin with empty
// caches.
type RoleLaboratory struct {
	Requests int     `json:"requests"` // requests that were played
	LeftOut  int     `json:"left_out"` // requests of the record that were not: other models, no token ids, failed
	Seconds  float64 `json:"seconds"`  // from the first arrival to the last one
	// MeasuredFirstTokenMS is the mean time to the first token that the router measured for these requests. Before has the
	// simulated time. If they differ much, the simulation does not fit this fleet.
	MeasuredFirstTokenMS float64       `json:"measured_first_token_ms,omitempty"`
	Before               *FleetFigures `json:"before,omitempty"`
	After                *FleetFigures `json:"after,omitempty"`
	Notes                []string      `json:"notes,omitempty"` // what was assumed
	Error                string        `json:"error,omitempty"` // why there are no figures
}

// FleetFigures are the simulated figures of a fleet.
type FleetFigures struct {
	HitRate      float64      `json:"hit_rate"`       // share of the prompt tokens that were cached
	FirstTokenMS float64      `json:"first_token_ms"` // mean time from arrival to first token
	PerTokenMS   float64      `json:"per_token_ms"`   // mean time of each further token
	Answered     int          `json:"answered"`
	Divided      int          `json:"divided"` // requests that were divided between two workers
	Levels       []LevelShare `json:"levels"`
}

// LevelShare says which share of the requests, 0 to 1, keeps a service level.
type LevelShare struct {
	Level string  `json:"level"` // such as 5s/100ms
	Share float64 `json:"share"`
}

// Limits of a prediction.
const (
	leastPlayed  = 50              // with fewer requests, single ones decide the shares
	mostPlayed   = 2000            // the newest requests; they bound the time and the memory
	longestPlay  = 5 * time.Second // of both runs together
	playedBlock  = 64              // tokens in a block of the simulated caches
	assumedBytes = 131072          // KV of a token if no worker reports it: that of Llama-3.1-8B, as in package fleet
)

// playRoles plays the records on the fleet as it is, and with the changed role of one worker. One prediction is made at
// a time.
func (a *Admin) playRoles(ctx context.Context, s *fleet.Snapshot, changed *fleet.Worker, role fleet.Role, recent []telemetry.Record) *RoleLaboratory {
	lab := &RoleLaboratory{}
	if !a.playing.CompareAndSwap(false, true) {
		lab.Error = "another prediction is under way; ask again after its answer"
		return lab
	}
	defer a.playing.Store(false)
	ctx, cancel := context.WithTimeout(ctx, longestPlay)
	defer cancel()
	if err := a.play(ctx, lab, s, changed, role, recent); err != nil {
		lab.Before, lab.After, lab.Error = nil, nil, err.Error()
	}
	return lab
}

func (a *Admin) play(ctx context.Context, lab *RoleLaboratory, s *fleet.Snapshot, changed *fleet.Worker, role fleet.Role, recent []telemetry.Record) error {
	base := changed.Facts.BaseModel()
	w, levels := lab.requests(changed, recent)
	if len(w.Requests) < leastPlayed {
		return fmt.Errorf("%d requests for %q with token ids are in the record, and at least %d are needed; ask again later", len(w.Requests), base, leastPlayed)
	}
	p, err := a.Router.Policy("", base)
	if err != nil {
		return err
	}
	c := sim.Config{Workload: w, Policy: p.Spec(), Seed: 1, Levels: levels}
	c.Policy.Failed = nil // the failures of a simulated policy are not the router's
	for _, l := range levels {
		c.SLOs = append(c.SLOs, report.SLO{TTFT: l.FirstToken, TPOT: l.PerToken})
	}
	for _, role := range []fleet.Role{changed.Facts.Role, role} {
		groups, links := lab.fleetOf(s, changed, role)
		c.Groups, c.Disaggregation = groups, nil
		if links > 0 {
			c.Disaggregation = &sim.Disaggregation{Legs: a.Router.Legs(), LinkGBs: links}
			if changed.Facts.Transfer.LegsOnly {
				c.Disaggregation.Mode = policy.ModeAlways
			}
		}
		run, err := sim.Run(ctx, c, nil)
		if err != nil {
			return err
		}
		if run.Stopped || ctx.Err() != nil {
			return fmt.Errorf("the simulation takes longer than %v; play the decision log instead: warmpath sim --workload decisions:FILE --decode-workers N (docs/simulator.md)", longestPlay)
		}
		if run.Requests.Answered == 0 {
			return errors.New("no simulated request was answered")
		}
		figures := figuresOf(run, levels)
		if lab.Before == nil {
			lab.Before = figures
		} else {
			lab.After = figures
		}
	}
	if m, b := lab.MeasuredFirstTokenMS, lab.Before.FirstTokenMS; m > 0 && (b > 2*m || m > 2*b) {
		lab.Notes = append(lab.Notes, "the simulated times to the first token are far from the measured ones: compare before with after only")
	}
	slices.Sort(lab.Notes)
	lab.Notes = slices.Compact(lab.Notes)
	return nil
}

func figuresOf(run *report.Run, levels []fleet.ServiceLevel) *FleetFigures {
	f := &FleetFigures{HitRate: run.HitRate, FirstTokenMS: run.TTFT.Mean, PerTokenMS: run.TPOT.Mean, Answered: run.Requests.Answered, Divided: run.Transfers.Divided,
		Levels: []LevelShare{}}
	for i, l := range levels {
		f.Levels = append(f.Levels, LevelShare{Level: l.String(), Share: run.SLO[i].Share})
	}
	return f
}

// requests returns the records as a workload, and the service levels that they had.
func (l *RoleLaboratory) requests(changed *fleet.Worker, recent []telemetry.Record) (*workload.Workload, []fleet.ServiceLevel) {
	w := &workload.Workload{Name: "record", Block: playedBlock}
	served := map[string]bool{}
	for i := range changed.Facts.Models {
		served[changed.Facts.Models[i].ID] = true
	}
	var taken []*telemetry.Record
	output, known, first, measured := 0, 0, 0.0, 0
	for i := range recent { // the newest first
		r := &recent[i]
		if !served[r.Model] || r.PromptTokens < 1 || r.PromptTokens > workload.MaxTokens || r.Status != 200 || len(taken) == mostPlayed {
			continue
		}
		taken = append(taken, r)
		if r.OutputTokens != nil && *r.OutputTokens > 0 {
			output, known = output+*r.OutputTokens, known+1
		}
		if r.FirstTokenMS > 0 {
			first, measured = first+r.FirstTokenMS, measured+1
		}
	}
	l.Requests, l.LeftOut = len(taken), len(recent)-len(taken)
	if len(taken) == 0 {
		return w, nil
	}
	if measured > 0 {
		l.MeasuredFirstTokenMS = first / float64(measured)
	}
	usual := 128
	if known > 0 {
		usual = max(output/known, 1)
	}
	if known < len(taken) {
		l.Notes = append(l.Notes, fmt.Sprintf("%d answers reported no length, and count as %d tokens", len(taken)-known, usual))
	}
	slices.SortStableFunc(taken, func(a, b *telemetry.Record) int { return a.Time.Compare(b.Time) })
	names := map[string]bool{}
	for i, r := range taken {
		q := workload.Request{ID: i, Arrival: r.Time.Sub(taken[0].Time), Session: -1, After: -1, Input: r.PromptTokens, Output: usual, Segments: segmentsOf(r, i)}
		if r.OutputTokens != nil && *r.OutputTokens > 0 {
			q.Output = *r.OutputTokens
		}
		w.Requests = append(w.Requests, q)
		for _, list := range [][]string{r.KeptLevels, r.BrokenLevels} {
			for _, name := range list {
				names[name] = true
			}
		}
	}
	l.Seconds = w.Requests[len(w.Requests)-1].Arrival.Seconds()
	levels := []fleet.ServiceLevel{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if level, err := fleet.ParseServiceLevel(name); err == nil && len(levels) < fleet.MaxServiceLevels {
			levels = append(levels, level)
		}
	}
	if len(levels) == 0 {
		levels = fleet.DefaultServiceLevels()
	}
	return w, levels
}

// segmentsOf returns the content of the prompt of request i. What is behind the last recorded hash is taken for its
// own, so hits are rounded down by at most PrefixTokens tokens.
func segmentsOf(r *telemetry.Record, i int) []workload.Segment {
	left := r.PromptTokens
	segments := make([]workload.Segment, 0, len(r.Prefix)+1)
	for _, key := range r.Prefix {
		n := min(r.PrefixTokens, left)
		if n < 1 {
			break
		}
		segments, left = append(segments, workload.Segment{ID: uint64(key), Tokens: n}), left-n
	}
	if left > 0 {
		segments = append(segments, workload.Segment{ID: uint64(i+1) * 0x9e3779b97f4a7c15, Tokens: left})
	}
	return segments
}

// fleetOf returns the workers of the changed worker's model with their learned times, each as a group. links is the
// speed between them in GB/s; 0: they exchange no KV blocks.
func (l *RoleLaboratory) fleetOf(s *fleet.Snapshot, changed *fleet.Worker, role fleet.Role) (groups []sim.Group, links float64) {
	base := changed.Facts.BaseModel()
	usual := engine.Profiles()[0]
	var workers []*fleet.Worker
	for _, w := range s.Workers() {
		if w.Facts.BaseModel() != base || len(w.Holders) == 0 || !w.Ready && w.ID != changed.ID {
			continue
		}
		workers = append(workers, w)
		g := sim.Group{Count: 1, Role: w.Facts.Role, Profile: usual, BlockSize: playedBlock, Ranks: w.Facts.UsedRanks(), Declared: w.Facts.UsedRanks()}
		if w.ID == changed.ID {
			g.Role = role
		}
		g.Profile.Name = "learned"
		for _, m := range w.Facts.Models {
			g.Profile.MaxModelLen = max(g.Profile.MaxModelLen, m.MaxModelLen)
		}
		t := s.Timing(w.Holders[0])
		if t.Token <= 0 {
			t = fleet.DefaultTiming
		}
		if t.Samples == 0 {
			l.Notes = append(l.Notes, "no times of "+w.URL+" were learned yet: those of Qwen3-32B on two H100 are assumed")
		}
		g.Profile.Timing = engine.Linear{Base: max(t.Base, 0.1), Token: t.Token, Attention: max(t.Attention, 0), Sequence: max(t.Sequence, 0), Context: max(t.Context, 0)}
		if g.KVTokens = w.Facts.BlocksPerRank * w.Facts.BlockSize; g.KVTokens < playedBlock {
			g.KVTokens = usual.KVTokens
			l.Notes = append(l.Notes, fmt.Sprintf("the cache size of %s is not known: %d tokens are assumed", w.URL, g.KVTokens))
		}
		if bytes := w.Facts.Transfer.TokenBytes; bytes > 0 {
			g.Profile.KVBytes = float64(bytes)
		} else {
			g.Profile.KVBytes = assumedBytes
		}
		groups = append(groups, g)
	}
	token, pairs := 0.0, 0
	for i, from := range workers {
		for _, to := range workers {
			if from.ID != to.ID && from.Facts.Transfer.Pairs(&to.Facts.Transfer) {
				link := s.Link(from, to)
				token, pairs = token+link.Token, pairs+1
				links += groups[i].Profile.KVBytes
			}
		}
	}
	if pairs == 0 {
		return groups, 0
	}
	return groups, min(links/max(token*1e6, 1), 1e6) // bytes a nanosecond
}
