package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/bench/internal/machine"
)

func reportAll(args []string) error {
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	in := f.String("in", "engines.jsonl", "file of results")
	out := f.String("out", "", "file for the page (default: standard output)")
	profile := f.String("profile", "", "file of the engines' profile, for the laboratory's table (default: none)")
	if err := f.Parse(args); err != nil {
		return err
	}
	results, err := readResults(*in)
	// Leave out results of older versions of a set, and of routers with additional flags.
	results = slices.DeleteFunc(results, func(r result) bool {
		s, err := setNamed(r.Set)
		return err != nil || s.fingerprint() != r.Work || !slices.ContainsFunc(routers, func(k routerKind) bool { return k.name == r.Router })
	})
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("%s has no results of the sets as they are now; `run.sh` plays them", *in)
	}
	fit, err := readFitted(*profile)
	if err != nil {
		return err
	}
	notes, err := os.ReadFile(strings.TrimSuffix(*in, ".jsonl") + "-notes.md")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	text, err := page(results, machine.Now(), fit, string(notes))
	if err != nil {
		return err
	}
	if *out == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	return os.WriteFile(*out, []byte(text), 0o644)
}

// margin is the tolerance of the goal for hits, in percentage points: Warmpath's hits may be lower than the best peer's
// by this number.
const margin = 0.5

// section has the results of one set on one engine, by router and round.
type section struct {
	engine string
	scale  float64
	set    set
	rounds []int
	by     map[string]map[int]*result
}

// sections groups results by engine, scale and set. Engines come in reverse alphabetical order, and greater scales come
// first. Sets come in the order of the variable sets.
func sections(results []result) []section {
	var out []section
	for i := range results {
		r := &results[i]
		at := slices.IndexFunc(out, func(s section) bool { return s.engine == r.Engine && s.scale == r.Scale && s.set.name == r.Set })
		if at < 0 {
			s, _ := setNamed(r.Set)
			out = append(out, section{engine: r.Engine, scale: r.Scale, set: s, by: map[string]map[int]*result{}})
			at = len(out) - 1
		}
		if out[at].by[r.Router] == nil {
			out[at].by[r.Router] = map[int]*result{}
		}
		out[at].by[r.Router][r.Round] = r // if a run has several lines, the last line counts
	}
	for i := range out {
		rounds := map[int]bool{}
		for _, by := range out[i].by {
			for round := range by {
				rounds[round] = true
			}
		}
		out[i].rounds = slices.Sorted(maps.Keys(rounds))
	}
	place := func(name string) int { return slices.IndexFunc(sets, func(s set) bool { return s.name == name }) }
	slices.SortStableFunc(out, func(a, b section) int {
		return cmp.Or(-cmp.Compare(a.engine, b.engine), -cmp.Compare(a.scale, b.scale), cmp.Compare(place(a.set.name), place(b.set.name)))
	})
	return out
}

// goals returns a text about each goal of the section, and adds the goals that are met and missed to count. A text is
// empty if there is nothing to compare.
func (s section) goals(count *goalCounts) (hits, first, share string) {
	var parts []string
	for _, round := range s.rounds {
		own := s.by[ours][round]
		best, name := -1.0, ""
		for router, by := range s.by {
			if r := by[round]; peer(router) && r != nil && (r.hits() > best || r.hits() == best && router < name) {
				best, name = r.hits(), router
			}
		}
		if own == nil || name == "" {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %+.1f (%s)", count.hits.note(own.hits() >= best-margin), own.hits()-best, name))
	}
	hits = strings.Join(parts, " · ")

	bound := 1.0
	if s.set.exact {
		bound = 0.9
	}
	best, name := 0.0, ""
	for router := range s.by {
		if m, ok := s.firstToken(router); ok && peer(router) && (name == "" || m < best || m == best && router < name) {
			best, name = m, router
		}
	}
	if own, ok := s.firstToken(ours); ok && name != "" && best > 0 {
		first = fmt.Sprintf("%s %.2f of %s, goal %.1f", count.first.note(own <= bound*best), own/best, name, bound)
	}

	if s.set.event == engineRestart {
		return hits, first, "one was away"
	}
	parts = nil
	for _, round := range s.rounds {
		if own := s.by[ours][round]; own != nil {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", count.share.note(own.least() >= 40), own.least()))
		}
	}
	return hits, first, strings.Join(parts, " · ")
}

// goalCounts counts the goals that were met and missed, by kind.
type goalCounts struct{ hits, first, share, ids, waits, added score }

// String returns the counts as one sentence.
func (c *goalCounts) String() string {
	var all []string
	for _, k := range []struct {
		what string
		of   score
	}{{"hits", c.hits}, {"median first token", c.first}, {"shares", c.share}, {"matched by ids", c.ids}, {"waited at most 1 ms for ids", c.waits}, {"added by asking", c.added}} {
		if n := k.of.met + k.of.missed; n > 0 {
			all = append(all, fmt.Sprintf("%s %d of %d", k.what, k.of.met, n))
		}
	}
	return "Goals met: " + strings.Join(all, ", ") + "."
}

// score counts the goals of one kind.
type score struct{ met, missed int }

// note counts a goal as met or missed, and returns its result as a word.
func (s *score) note(ok bool) string {
	if ok {
		s.met++
		return "met"
	}
	s.missed++
	return "**missed**"
}

// firstToken returns the median over the rounds of a router's median time to the first token, in milliseconds.
func (s section) firstToken(router string) (float64, bool) {
	var all []float64
	for _, r := range s.by[router] {
		all = append(all, r.First.P50)
	}
	if len(all) == 0 {
		return 0, false
	}
	return median(all), true
}

// page returns the results as Markdown, with the simulator's results next to them if fit is not nil. The page begins
// with notes, a text that was written by hand.
func page(results []result, here machine.Facts, fit *fitted, notes string) (string, error) {
	var b strings.Builder
	b.WriteString("# Routers on real engines\n\n")
	head(&b, results, here)
	if notes != "" {
		fmt.Fprintf(&b, "\n## What to know first\n\n%s", notes)
	}
	all := sections(results)
	b.WriteString("\n## Goals\n\n" +
		"Warmpath runs with its default policy and without any setting. The goals compare it with the best other router:\n" +
		"\n" +
		"- hits: at most 0.5 points below the best of the same round;\n" +
		"- median first token (the median of the rounds' medians): at most that of the best other router; in the sets marked `*`,\n" +
		"  at most 0.9 of it;\n" +
		"- least share of an engine: if both engines are alike, no engine gets less than 40 % of the requests.\n" +
		"\n" +
		"Rounds are separated by `·`. The column *hits* has the difference to the best other router of the round, in percentage\n" +
		"points; the best other router is in brackets. The column *median first token* has Warmpath's median divided by that of\n" +
		"the best other router.\n" +
		"\n" +
		"| set | hits, points to the best | median first token | least share of an engine |\n|---|---|---|---|\n")
	var count goalCounts
	for _, s := range all {
		if hits, first, share := s.goals(&count); hits+first != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.title(), hits, first, share)
		}
	}
	tokenIDs(&b, all, &count)
	fmt.Fprintf(&b, "\n%s\n", &count)
	b.WriteString(noise(all))
	for _, s := range all {
		s.write(&b)
	}
	if fit != nil {
		if err := fit.beside(&b, all); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// noise returns a sentence that says how much the machine's speed changed between rounds. It compares the rounds of
// round robin (nginx), because round robin does the same work in each round. It returns "" if no set has two rounds of
// round robin.
func noise(all []section) string {
	var spreads []float64
	for _, s := range all {
		var took []float64
		for _, r := range s.by["nginx"] {
			if s.set.event != engineRestart {
				took = append(took, r.First.P50)
			}
		}
		if len(took) > 1 {
			spreads = append(spreads, 100*(slices.Max(took)/slices.Min(took)-1))
		}
	}
	if len(spreads) == 0 {
		return ""
	}
	return fmt.Sprintf("\nThe machine's speed changes between rounds. nginx does the same in every round, but its median first token of the\n"+
		"slowest round is %.0f %% above that of the fastest round (median of the sets; %.0f %% at most). A smaller difference between\n"+
		"two routers counts only if it occurs in every round.\n",
		median(spreads), slices.Max(spreads))
}

func (s section) title() string {
	t := s.engine + " " + s.set.name
	if s.set.exact {
		t += " *"
	}
	if s.scale != 1 {
		t += fmt.Sprintf(" (scale %g)", s.scale)
	}
	return t
}

// builds returns a text with the commits of the Warmpath builds that were measured.
func builds(results []result) string {
	runs, rounds := map[string]int{}, map[string]map[int]bool{}
	for i := range results {
		r := &results[i]
		if kind, err := routerNamed(r.Router); err != nil || !kind.ours {
			continue
		}
		if runs[r.Commit]++; rounds[r.Commit] == nil {
			rounds[r.Commit] = map[int]bool{}
		}
		rounds[r.Commit][r.Round] = true
	}
	var all []string
	for _, c := range slices.Sorted(maps.Keys(runs)) {
		all = append(all, fmt.Sprintf("%s (%d runs, rounds %s)", c, runs[c], strings.Trim(fmt.Sprint(slices.Sorted(maps.Keys(rounds[c]))), "[]")))
	}
	return strings.Join(all, ", ")
}

// head writes on which machine, when and with which versions the results were measured.
func head(b *strings.Builder, results []result, here machine.Facts) {
	versions := map[string]bool{}
	first, last := results[0].Time, results[0].Time
	var others []float64
	for i := range results {
		r := &results[i]
		for name, v := range r.Versions {
			if name == "engine" || name == "nginx" || usedPeer(results, name) {
				versions[v] = true
			}
		}
		first, last = min(first, r.Time), max(last, r.Time)
		// Leave out sets with a restart, because a restart makes the figure others too high.
		if s, err := setNamed(r.Set); err == nil && s.event == nothing {
			others = append(others, r.Others)
		}
	}
	fmt.Fprintf(b, "%d runs, %s to %s. %d cores (%s), %s. Warmpath %s; %s.\n", len(results), first, last, here.Cores, here.CPU, here.OS,
		builds(results), strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
	if len(others) > 0 {
		fmt.Fprintf(b, "Other processes used %.2f cores while it was measured (median of the runs; %.2f to %.2f).\n", median(others), slices.Min(others), slices.Max(others))
	}
	b.WriteString("Each of the two engines has half of the cores, as if it had a machine of its own. The routers and the clients use all\n" +
		"cores, and so does the one engine of the set with two ranks. The command is `bash bench/engines/run.sh`. The head of\n" +
		"that file has the commands for SGLang, for engines that are asked for token ids, and for this page.\n" +
		"\n")
	b.WriteString("Two engines serve a tiny random Llama on the CPU. Each has a cache of 65,536 tokens in blocks of 32. Before each run the\n" +
		"caches are emptied and the router is started anew. Within a round every router gets the same texts. The columns are:\n" +
		"\n" +
		"- *hits*: cached prompt tokens as a share of all prompt tokens, as the engines count them;\n" +
		"- *first token*: the time to the first token of a stream, measured by the client from the request's first attempt on;\n" +
		"- *whole*: the time of all requests, without the pause while a router is restarted;\n" +
		"- *failed*: failed attempts. A request is sent up to five times, until it is answered. The status and the number of tokens\n" +
		"  of each answer are checked;\n" +
		"- *by ids*: prompts that Warmpath matched by token ids;\n" +
		"- *over*: predictions of Warmpath that are above the engine's report of cached tokens;\n" +
		"- *at risk*: cached tokens that Warmpath expected to be evicted before their request is scheduled;\n" +
		"- *processor time*: of all processes of the router, and of both engines.\n" +
		"\n" +
		"The lengths of answers differ by up to a third. With equal lengths, answers that begin together would also end together,\n" +
		"and their clients would send the next requests together. The less a router moves conversations between engines, the\n" +
		"longer such clients would stay in step.\n")
}

func usedPeer(results []result, name string) bool {
	return slices.ContainsFunc(results, func(r result) bool { return strings.HasPrefix(r.Router, name) })
}

// apart returns a text about rows of Warmpath that were measured with another build than other rows of the same round,
// and so at another time. It returns "" if there are no such rows.
func (s section) apart() string {
	var all []string
	for _, k := range routers {
		for _, round := range s.rounds {
			own := s.by[k.name][round]
			if !k.ours || own == nil {
				continue
			}
			in, others := false, map[string]bool{}
			for router, by := range s.by {
				if r := by[round]; router != k.name && r != nil {
					in, others[r.Commit] = in || r.Commit == own.Commit, true
				}
			}
			if !in && len(others) > 0 {
				all = append(all, fmt.Sprintf("round %d of %q (commit %s; the other routers: %s)", round, k.about, own.Commit,
					strings.Join(slices.Sorted(maps.Keys(others)), ", ")))
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "Measured at another time than the other routers of the round: " + strings.Join(all, "; ") + ".\n\n"
}

// write writes the section's table: a row for each router. A cell has the figures of all rounds, with "·" between them.
func (s section) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n", s.title(), s.set.about)
	if s.scale != 1 {
		fmt.Fprintf(b, "Scale %g means: the set has %g times the number of conversations, agents or questions.\n\n", s.scale, s.scale)
	}
	if s.set.note != "" {
		fmt.Fprintf(b, "%s\n\n", s.set.note)
	}
	b.WriteString(s.apart())
	b.WriteString("| router | hits, % | first token: mean, ms | p50 | p90 | whole, s | processor, ms a request: router, engines | requests of each engine | failed | by ids, % | over, %; at risk, tokens |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range routers {
		by := s.by[k.name]
		if by == nil {
			continue
		}
		cell := func(format func(*result) string) string {
			var parts []string
			for _, round := range s.rounds {
				if r := by[round]; r != nil {
					parts = append(parts, format(r))
				} else {
					parts = append(parts, "–")
				}
			}
			return strings.Join(parts, " · ")
		}
		number := func(format string, v func(*result) float64) string {
			return cell(func(r *result) string { return fmt.Sprintf(format, v(r)) })
		}
		byIDs, over := "", ""
		if k.ours {
			byIDs = cell(func(r *result) string {
				if share, ok := r.byIDs(); ok {
					return fmt.Sprintf("%.1f", share)
				}
				return "–"
			})
			over = cell(func(r *result) string {
				if share, ok := r.over(); ok {
					return fmt.Sprintf("%.1f; %.0f", share, r.Warmpath["warmpath_tokens_total kind=at_risk"])
				}
				return "–"
			})
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", k.about,
			number("%.1f", (*result).hits),
			number("%.0f", func(r *result) float64 { return r.First.Mean }),
			number("%.0f", func(r *result) float64 { return r.First.P50 }),
			number("%.0f", func(r *result) float64 { return r.First.P90 }),
			number("%.1f", func(r *result) float64 { return r.Seconds }),
			cell(func(r *result) string {
				n := 1000 / float64(max(r.Requests, 1))
				return fmt.Sprintf("%.1f, %.0f", r.Routers*n, r.Engines*n)
			}),
			cell(func(r *result) string {
				var parts []string
				for _, h := range r.Holders {
					parts = append(parts, fmt.Sprintf("%.0f", h.Requests))
				}
				return strings.Join(parts, "+")
			}),
			cell(func(r *result) string {
				if r.Abandoned > 0 {
					return fmt.Sprintf("%d (%d given up)", r.Failed, r.Abandoned)
				}
				return fmt.Sprint(r.Failed)
			}),
			byIDs, over)
	}
}
