package main

import (
	"fmt"
	"io"
	"math"
	"time"
)

// demoGain compares one measure of two runs of the same work. Less is better.
type demoGain struct {
	// ratio is the cost of the other policy, divided by the cost of the default policy. 2 means that the default policy
	// has half the cost.
	ratio    float64
	low      float64 // two standard errors below the ratio; for a single measurement, the ratio itself
	high     float64 // two standard errors above the ratio; for a single measurement, the ratio itself
	unproven bool    // the difference may be chance
}

// alikeRatio is the ratio up to which a difference counts as chance, even if its standard error is small: the error
// covers only the differences between conversations of one run, not between runs. On a busy machine, three simultaneous
// runs of the same policy differed by up to 4 %.
const alikeRatio = 1.05

func (g demoGain) judged() demoGain {
	g.unproven = g.low <= 1 && g.high >= 1 || g.ratio < alikeRatio && g.ratio > 1/alikeRatio
	return g
}

// pairedGain compares the cost of each conversation in both runs. A conversation has the same requests in both runs, so
// most differences between conversations cancel. The ratio of the sums has the standard error √(Σ(aᵢ−R·bᵢ)²·n/(n−1)) /
// Σbᵢ (W. G. Cochran, Sampling Techniques, 3rd edition, 1977, §2.11), for conversations that do not affect one another.
func pairedGain(other, ours map[int]float64) demoGain {
	var a, b float64
	for c, cost := range other {
		a += cost
		b += ours[c]
	}
	if a <= 0 || b <= 0 {
		return demoGain{ratio: 1, low: 1, high: 1, unproven: true}
	}
	g := demoGain{ratio: a / b}
	squares, n := 0.0, float64(len(other))
	for c, cost := range other {
		off := cost - g.ratio*ours[c]
		squares += off * off
	}
	margin := 2 * math.Sqrt(squares*n/max(n-1, 1)) / b
	g.low, g.high = g.ratio-margin, g.ratio+margin
	return g.judged()
}

// singleGain compares one measurement of each run. A single measurement has no standard error, so low and high equal
// the ratio, and only alikeRatio decides whether the difference may be chance.
func singleGain(other, ours time.Duration) demoGain {
	if other <= 0 || ours <= 0 {
		return demoGain{ratio: 1, low: 1, high: 1, unproven: true}
	}
	r := float64(other) / float64(ours)
	return demoGain{ratio: r, low: r, high: r}.judged()
}

// demoWorth is the gain of one policy over another in a run, in the three measures that a user pays for.
type demoWorth struct {
	firstToken demoGain // the clients' wait for first tokens
	computed   demoGain // prompt tokens that engines computed
	took       demoGain // time in which the fleet did all the work
}

func demoWorthOf(other, ours *demoResult) demoWorth {
	wait := func(a *demoAnswer) float64 { return a.firstToken.Seconds() }
	computed := func(a *demoAnswer) float64 { return float64(a.prompt - a.cached) }
	return demoWorth{
		firstToken: pairedGain(other.perConversation(wait), ours.perConversation(wait)),
		computed:   pairedGain(other.perConversation(computed), ours.perConversation(computed)),
		took:       singleGain(other.totals().took, ours.totals().took),
	}
}

// tooLateFor is the lateness of timers from which on measured times show more about the machine than about a policy. On
// a busy machine, the default policy's gain had the same sign in 9 of 9 runs with less lateness than this, and in 5 of
// 6 runs with more lateness.
const tooLateFor = 5 * time.Millisecond

// printDemoWorth prints the gain of the last policy over each of the other policies. late is the mean lateness of the
// machine's timers during the run.
func printDemoWorth(out io.Writer, results []*demoResult, late time.Duration) {
	ours := results[len(results)-1]
	b := ours.totals()
	fmt.Fprintf(out, "\nWhat %s was worth in this run, on the same engines, for the same requests:\n", ours.Policy)
	for _, other := range results[:len(results)-1] {
		w, a := demoWorthOf(other, ours), other.totals()
		fmt.Fprintf(out, "\n  against %s\n", other.Policy)
		line := func(name, verdict, figures string) {
			fmt.Fprintf(out, "    %-11s  %s\n    %11s  (%s)\n", name, verdict, "", figures)
		}
		waiting := w.firstToken.say("first tokens came %.1f times sooner", "first tokens came %.1f times later", asTimes)
		engines := w.took.say("%.0f %% less engine time for all the work", "%.0f %% more engine time for all the work", asShare)
		if late >= tooLateFor {
			waiting, engines = notJudged, notJudged
		}
		line("waiting", waiting, fmt.Sprintf("%s in place of %s, on average", inMS(b.meanFirstToken()), inMS(a.meanFirstToken())))
		line("computing", w.computed.say("%.0f %% fewer prompt tokens to compute", "%.0f %% more prompt tokens to compute", asShare),
			fmt.Sprintf("%s in place of %s", groupedCount(b.computed()), groupedCount(a.computed())))
		line("engine time", engines, fmt.Sprintf("%d engines for %s in place of %s", demoWorkers, inSeconds(b.took), inSeconds(a.took)))
	}
	fmt.Fprintf(out, `
  The clients measured this. A difference counts when it is above %.0f %% and above
  twice its standard error over the conversations. Expect such ratios, not such
  milliseconds: the engines' times are a model's, and your traffic is different.
`, 100*(alikeRatio-1))
	if late >= tooLateFor {
		fmt.Fprintf(out, "  This machine is busy: its timers fire %s late. Times are not judged.\n", inMS(late))
	}
}

const notJudged = "not judged: this machine is too busy to tell"

// say describes a gain in words: how much better or worse the default policy is, or that the difference may be chance.
func (g demoGain) say(better, worse string, amount func(ratio float64) float64) string {
	switch {
	case g.unproven:
		return "no difference beyond chance"
	case g.ratio > 1:
		return fmt.Sprintf(better, amount(g.ratio))
	}
	return fmt.Sprintf(worse, amount(g.ratio))
}

// asTimes returns the ratio of the greater cost to the smaller one. ratio is the cost of the other policy divided by
// the cost of the default policy.
func asTimes(ratio float64) float64 { return max(ratio, 1/ratio) }

// asShare returns by how many percent the cost of the default policy is lower or higher than the cost of the other
// policy. ratio is the cost of the other policy divided by the cost of the default policy.
func asShare(ratio float64) float64 { return 100 * math.Abs(1-1/ratio) }

func inSeconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
