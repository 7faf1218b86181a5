package kvindextest

import (
	"slices"
	"testing"

	"github.com/warmpath/warmpath/kvindex"
)

// Conformance checks the promises of every index, one by one. The index of llm-d-kv-cache at 7be76e119c fails the cases
// whose names begin with "llm-d". A defect of llm-d-kv-cache's decoder has a test in package kvindex:
// TestEventsOfEveryForm.
func Conformance(t *testing.T, make Maker) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) { c.run(newRig(t, make, c.size, c.config)) })
	}
}

// ConformanceWithout is [Conformance] without the cases of the given names: what an index cannot do.
func ConformanceWithout(t *testing.T, make Maker, names ...string) {
	for _, name := range names {
		if !slices.ContainsFunc(conformance, func(c conformanceCase) bool { return c.name == name }) {
			t.Errorf("there is no case %q", name)
		}
	}
	for _, c := range conformance {
		if !slices.Contains(names, c.name) {
			t.Run(c.name, func(t *testing.T) { c.run(newRig(t, make, c.size, c.config)) })
		}
	}
}

type conformanceCase struct {
	name    string
	size    int // the index's block size in tokens
	config  kvindex.Config
	learned bool // the case also holds for an index that learns from requests
	run     func(r *rig)
}

var conformance = concat(chainCases, copyCases, cutCases, tierCases, groupCases, boundCases)

func concat(lists ...[]conformanceCase) (all []conformanceCase) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
