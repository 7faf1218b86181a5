package peers

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// filterSettings are the parameters of a kind that its filters need.
type filterSettings struct {
	imbalanceTokens int
	locality        Locality
}

// filters has all filters by the names that an operator writes into the parameter filters.
var filters = map[string]func(filterSettings) policy.Filter{
	"balanced":  func(s filterSettings) policy.Filter { return policy.Balanced(s.imbalanceTokens) },
	"locality":  func(s filterSettings) policy.Filter { return nearest(s.locality) },
	"multiplex": func(filterSettings) policy.Filter { return multiplex{} },
}

// filterNames returns the names of all filters, sorted.
func filterNames() []string { return slices.Sorted(maps.Keys(filters)) }

// filtersOf returns the filters of these names, in their order. Names that do not exist, which Validate refuses, are
// left out.
func filtersOf(names []string, s filterSettings) []policy.Filter {
	var list []policy.Filter
	for _, name := range names {
		if f, ok := filters[name]; ok {
			list = append(list, f(s))
		}
	}
	return list
}

// reachOf returns the reach of a policy with these filters. With a locality and the filter of this name, a policy is
// offered all holders, because a near holder may have neither a match nor little load.
func reachOf(names []string, l Locality) policy.Reach {
	if l != (Locality{}) && slices.Contains(names, "locality") {
		return policy.ReachAll
	}
	return policy.ReachUnset
}
