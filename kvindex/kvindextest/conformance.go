package kvindextest

import (
	"testing"

	"github.com/warmpath/warmpath/kvindex"
)

// Conformance checks the promises of every index, one by one. The cases marked "llm-d" are defects that were seen in
// the index of llm-d-kv-cache at 7be76e119c. The tests of kvindex that replay payloads check two defects of
// llm-d-kv-cache's decoder.
func Conformance(t *testing.T, make Maker) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) { c.run(newRig(t, make, c.size, c.config)) })
	}
}

type conformanceCase struct {
	name    string
	size    int
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
