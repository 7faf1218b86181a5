package warmpath_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// lookAt returns the requests under way on a holder.
func (w *world) lookAt(h fleet.Holder, now int64) []fleet.Underway {
	list, _ := w.fleet.Snapshot().AppendUnderway(nil, h, now, 100)
	return list
}

func TestARequestHasTheLevelsOfTheOptionsUnlessItNamesItsOwn(t *testing.T) {
	strict := []fleet.ServiceLevel{{FirstToken: time.Second}}
	f := func(ofOptions, ofRequest, want []fleet.ServiceLevel) {
		t.Helper()
		w := newWorld(t, warmpath.Options{ServiceLevels: ofOptions}, vllm())
		d := w.route(warmpath.Request{Tokens: prompt(1, 500), Now: second, Levels: ofRequest})
		defer d.Done(fleet.OutcomeServed, 2*second)
		got := []fleet.ServiceLevel(nil)
		for _, u := range w.lookAt(0, second) {
			got = u.Levels
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("options %v, request %v: %v, want %v", ofOptions, ofRequest, got, want)
		}
	}
	none := []fleet.ServiceLevel{}
	f(nil, nil, fleet.DefaultServiceLevels())
	f(strict, nil, strict)
	f(none, nil, nil)
	f(nil, strict, strict)
	f(none, strict, strict)
	f(strict, none, nil)
}

func TestOptionsRefuseWrongLevels(t *testing.T) {
	for text, levels := range map[string][]fleet.ServiceLevel{
		"first_token: 0s is not positive": {{PerToken: time.Second}},
		"per_token: -1s is negative":      {{FirstToken: time.Second, PerToken: -time.Second}},
		"more than 4 service levels":      {{FirstToken: 1}, {FirstToken: 2}, {FirstToken: 3}, {FirstToken: 4}, {FirstToken: 5}},
		"100h0m0s is longer than 1h0m0s":  {{FirstToken: 100 * time.Hour}},
	} {
		_, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{}), ServiceLevels: levels})
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q", levels, err, text)
		}
	}
}

// TestPromptsWithTheSameBeginningHaveOneClass: a class is told to the policy when a request ends, and to the fleet
// while it is under way.
func TestPromptsWithTheSameBeginningHaveOneClass(t *testing.T) {
	var calls recorder
	recording := policy.Spec{Name: "recorder", NeedsMatches: true, Chooser: func() policy.Chooser { return &calls }}
	w := newWorld(t, warmpath.Options{Policy: recording}, vllm())
	class := func(tokens []block.Token) uint64 {
		t.Helper()
		d := w.route(warmpath.Request{Tokens: tokens, Now: second})
		under := w.lookAt(0, second)
		d.Done(fleet.OutcomeServed, 2*second)
		got := calls.finished[len(calls.finished)-1].Class
		if len(under) != 1 || under[0].Class != got {
			t.Errorf("%+v while it was under way, class %d at its end", under, got)
		}
		return got
	}
	a, b := prompt(1, 1000), prompt(1, 1000)
	b[300] = 7
	if one, two := class(a), class(b); one == 0 || one != two {
		t.Errorf("prompts that differ from token 300 on have the classes %d and %d", one, two)
	}
	b[200] = 7
	if one, two := class(a), class(b); one == two {
		t.Error("prompts that differ from token 200 on have the same class")
	}
	if got := class(prompt(1, 200)); got != 0 {
		t.Errorf("a short prompt has the class %d", got)
	}
}

// TestADelayGoesWhereItBreaksNoLevel: the production path, from the first token and the tokens that a worker reports to
// the choice for another request.
func TestADelayGoesWhereItBreaksNoLevel(t *testing.T) {
	for _, test := range []struct {
		levels []fleet.ServiceLevel
		want   fleet.Holder
		what   string
	}{
		{[]fleet.ServiceLevel{{FirstToken: 2 * time.Second, PerToken: 50 * time.Millisecond}}, 1, "a's answers are at their limit"},
		{[]fleet.ServiceLevel{}, 0, "without levels, a has less load"},
	} {
		w := newWorld(t, warmpath.Options{Policy: policy.DefaultMarginal().Spec("marginal"), ServiceLevels: test.levels}, vllm(), vllm())
		// Six answers at a are as slow as they may be; six answers at b, with longer prompts, are far within their level.
		for i := range 12 {
			h, tokens, n := fleet.Holder(0), 100, 150
			if i%2 == 1 {
				h, tokens, n = 1, 150, 190
			}
			d := w.route(warmpath.Request{Tokens: prompt(i+1, tokens), Target: []string{"http://a", "http://b"}[h], Now: second})
			if d.Holder != h {
				t.Fatal(d)
			}
			d.FirstToken(2 * second)
			d.Tokens(n, 9*second)
		}
		d := w.route(warmpath.Request{Tokens: prompt(99, 8000), Now: 9*second + second/4})
		if d.Holder != test.want {
			t.Errorf("%s, but holder %d was chosen:\n%s\n%+v\n%+v", test.what, d.Holder, d, d.Candidates[0].Terms, d.Candidates[1].Terms)
		}
	}
}
