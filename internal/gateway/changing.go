package gateway

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// changingEvery is the shortest time between two lines of the log about the changing line. Each request of Claude Code
// has the line, so one entry for each request would flood the log, and say the same.
const changingEvery = 10 * time.Minute

// changingLine returns what w does with the line that Claude Code changes with every request: telemetry.LineDropped or
// telemetry.LineRendered, or "" if the prompt has no such line. The router itself never removes the line: the body
// belongs to the client.
func changingLine(p *prepared, w *fleet.Worker) string {
	switch {
	case !p.changing:
		return ""
	case w.Facts.Engine == fleet.EngineVLLM:
		return telemetry.LineDropped
	}
	return telemetry.LineRendered
}

// reportChanging writes a line into the log if an engine rendered the changing line of the request.
func (x *exchange) reportChanging() {
	if x.rec.ChangingLine != telemetry.LineRendered {
		return
	}
	now, last := x.rec.Time.UnixNano(), x.g.changed.Load()
	if last != 0 && now-last < int64(changingEvery) || !x.g.changed.CompareAndSwap(last, now) {
		return
	}
	x.g.Log.Warn("prompts begin with a line that Claude Code changes with every request, and the engine renders it: no cached prompt is used behind it. "+
		"Start Claude Code with CLAUDE_CODE_ATTRIBUTION_HEADER=0",
		"worker", x.rec.Worker, "model", x.rec.Model, "prompt", x.rec.PromptTokens, "predicted", x.rec.PredictedTokens)
}
