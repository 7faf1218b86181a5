package kvindextest

import (
	"testing"

	"github.com/warmpath/warmpath/kvindex"
)

// Conformance checks what any index has to keep, promise by promise. The eight defects of facts/llm-d.md §3.4 are
// among them as far as they are an index's (marked "llm-d"); the two that are a decoder's are in the tests of
// kvindex that replay payloads.
func Conformance(t *testing.T, make Maker) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) { c.run(newRig(t, make, c.size, c.config)) })
	}
}

type conformanceCase struct {
	name    string
	size    int
	config  kvindex.Config
	learned bool // it means something to an index that learns from requests
	run     func(r *rig)
}

var conformance = concat(chainCases, copyCases, cutCases, tierCases, groupCases, beliefCases, boundCases)

func concat(lists ...[]conformanceCase) (all []conformanceCase) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
