package main

import (
	"fmt"
	"strings"
)

// tokenIDs writes how the router got the token ids of the prompts, and whether the goals are met. If the router can
// read the model's files, the goals are that 99 % of the prompts have ids, and that 99 % wait at most a millisecond for
// ids. If the router has to ask engines, the goals are that 90 % of the prompts have ids, and that the mean time to the
// first token is at most 10 ms longer. tokenIDs adds the goals that are met and missed to count.
func tokenIDs(b *strings.Builder, all []section, count *goalCounts) {
	b.WriteString("\n" +
		"### Token ids\n" +
		"\n" +
		"If the router can read the model's files, it asks no engine for ids. The goals are then that 99 % of the prompts are\n" +
		"matched by ids, and that 99 % of the prompts wait at most 1 ms for their ids. A longer wait has one of two causes: the\n" +
		"prompt is new to the router, so that its ids take time (1.5 ms for 4,000 tokens on a free core); or the router waits for\n" +
		"a core, because the engines use all cores.\n" +
		"\n" +
		"If the router has to ask engines, the goals are that 90 % of the prompts are matched by ids, and that the mean first\n" +
		"token comes at most 10 ms later than with files (median of the rounds). The figure in brackets is the share of prompts\n" +
		"that were matched by the ids of a known beginning; the length of the rest was estimated.\n" +
		"\n" +
		"| set | router | by ids, % | waited at most 1 ms, % | added to the mean first token, ms |\n|---|---|---|---|---|\n")
	for _, s := range all {
		for _, k := range routers {
			if !k.ours {
				continue
			}
			var shares, quick, more []string
			var added []float64
			for _, round := range s.rounds {
				r := s.by[k.name][round]
				if r == nil {
					continue
				}
				share, ok := r.byIDs()
				if !ok {
					continue
				}
				if k.name == ours {
					shares = append(shares, fmt.Sprintf("%s %.1f", count.ids.note(share >= 99), share))
					if at, reported := r.waitedAtMost("0.001"); reported {
						quick = append(quick, fmt.Sprintf("%s %.1f", count.waits.note(at >= 99), at))
					}
					continue
				}
				begun := 100 * r.Warmpath["warmpath_token_requests_total outcome=beginning"] / float64(max(r.Requests, 1))
				shares = append(shares, fmt.Sprintf("%s %.1f (%.1f)", count.ids.note(share >= 90), share, begun))
				if at, reported := r.waitedAtMost("0.001"); reported {
					quick = append(quick, fmt.Sprintf("%.1f", at))
				}
				if own := s.by[ours][round]; own != nil {
					added = append(added, r.First.Mean-own.First.Mean)
					more = append(more, fmt.Sprintf("%+.0f", r.First.Mean-own.First.Mean))
				}
			}
			if len(shares) == 0 {
				continue
			}
			text := strings.Join(more, " · ")
			if len(added) > 0 {
				text = count.added.note(median(added) <= 10) + " " + text
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", s.title(), k.about, strings.Join(shares, " · "), strings.Join(quick, " · "), text)
		}
	}
}

// waitedAtMost returns the share of requests that waited at most le seconds for their token ids, in percent. le is the
// bound of a bucket of the histogram, in seconds. reported is false if the result has no histogram.
func (r *result) waitedAtMost(le string) (share float64, reported bool) {
	all := r.Warmpath["warmpath_token_wait_seconds_bucket le=+Inf"]
	if all == 0 {
		return 0, false
	}
	return 100 * r.Warmpath["warmpath_token_wait_seconds_bucket le="+le] / all, true
}
