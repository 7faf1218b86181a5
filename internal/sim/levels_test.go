package sim

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
)

func TestAnExperimentSetsTheServiceLevelsOfTheRouter(t *testing.T) {
	five, two := fleet.ServiceLevel{FirstToken: 5 * time.Second, PerToken: 100 * time.Millisecond}, fleet.ServiceLevel{FirstToken: 2 * time.Second}
	for _, c := range []struct {
		given []string
		want  []fleet.ServiceLevel
		says  string // a part of the run's assumptions
	}{
		{nil, nil, "the service levels 5s/100ms, 2s/50ms"},
		{[]string{}, []fleet.ServiceLevel{}, "no service levels"},
		{[]string{"none"}, []fleet.ServiceLevel{}, "no service levels"},
		{[]string{"5s/100ms", " 2s"}, []fleet.ServiceLevel{five, two}, "the service levels 5s/100ms, 2s."},
	} {
		x := DefaultExperiment()
		x.ServiceLevels = c.given
		configs, err := x.Configs(families(1, 2, time.Second), nil)
		if err != nil {
			t.Fatalf("%q: %v", c.given, err)
		}
		if got := configs[0].Levels; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: levels %v, want %v", c.given, got, c.want)
		}
		if !slices.ContainsFunc(configs[0].Assumptions(), func(s string) bool { return strings.Contains(s, c.says) }) {
			t.Errorf("%q: no assumption says %q", c.given, c.says)
		}
	}
	for _, given := range [][]string{{"none", "5s"}, {"5"}, {"0s"}, {""}, {"1s", "2s", "3s", "4s", "5s"}} {
		x := DefaultExperiment()
		x.ServiceLevels = given
		if _, err := x.Configs(families(1, 2, time.Second), nil); err == nil {
			t.Errorf("%q is accepted", given)
		}
	}
}

// A policy that knew the length of an answer would predict better than with any real client.
func TestARouterDoesNotLearnTheLengthOfAnAnswerFromItsRequest(t *testing.T) {
	asked := func(output int) any {
		load := families(1, 1, time.Second)
		load.Requests[0].Output = output
		marginal, err := ParsePolicy("marginal")
		if err != nil {
			t.Fatal(err)
		}
		w, err := newWorld(Config{Workload: load, Policy: marginal, Groups: []Group{{Count: 1, Profile: engine.Profiles()[0]}}})
		if err != nil {
			t.Fatal(err)
		}
		return w.ask(w.newFlight(0))
	}
	if short, long := asked(1), asked(1000); !reflect.DeepEqual(short, long) {
		t.Errorf("the requests differ: %+v and %+v", short, long)
	}
}
