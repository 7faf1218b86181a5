package script

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.starlark.net/starlark"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// build returns the policy of a script.
func build(t testing.TB, text string) *policy.Policy {
	t.Helper()
	spec, err := Text("mine", "choose.star", text, Default())
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// workers returns n workers. Worker i has i requests and 100·i tokens of the prompt.
func workers(n int) []policy.Candidate {
	list := make([]policy.Candidate, n)
	for i := range list {
		list[i] = policy.Candidate{
			Worker: &fleet.Worker{ID: fleet.WorkerID(i), URL: fmt.Sprintf("http://w%d:8000", i), Facts: fleet.Facts{Labels: map[string]string{"zone": string(rune('a' + i%3))}}},
			Holder: fleet.Holder(i), Hash: uint64(i) * 0x9e3779b97f4a7c15, Available: true, BlockSize: 16,
			Load: fleet.Load{Requests: int64(i), PrefillTokens: int64(1000 * i)}, Match: 100 * i, Predicted: 100 * i,
		}
	}
	return list
}

func ask() *policy.Query {
	return &policy.Query{PromptTokens: 1000, Known: true, Model: "m", Tenant: "acme", Session: policy.Session{Key: "s1"}, Rank: -1, Turn: 7, Now: 1e18}
}

func choose(t testing.TB, text string) (policy.Choice, []policy.Candidate) {
	t.Helper()
	list := workers(4)
	return build(t, text).Choose(ask(), list), list
}

func TestAScriptReturnsAWorkerScoresAChoiceOrNone(t *testing.T) {
	for _, c := range []struct{ body, url, branch, reason string }{
		{"return workers[2]", "http://w2:8000", "script", "the script's choice"},
		{"return [-w.requests for w in workers]", "http://w0:8000", "script", "the script's choice"},
		{"return [float(w.match) for w in workers]", "http://w3:8000", "script", "the script's choice"},
		{"return choice(workers[1], reason='because of ' + request.tenant)", "http://w1:8000", "script", "because of acme"},
		{"return choice(scores=[w.match * 2 for w in workers], reason='long')", "http://w3:8000", "script", "long"},
		{"return None", "", "script", "the script left the choice to the default policy"},
		{"pass", "", "script", "the script left the choice to the default policy"},
		{"return sorted(workers, key=lambda w: (w.requests % 2, -w.match))[0]", "http://w2:8000", "script", "the script's choice"},
		{"best = workers[0]\n    for w in workers:\n        if w.labels.get('zone') == 'c':\n            best = w\n    return best", "http://w2:8000", "script", "the script's choice"},
		{"return max(workers, key=lambda w: w.match)", "http://w3:8000", "script", "the script's choice"},
		{"n = {}\n    for w in workers:\n        n[w.url] = 0\n        n[w.url] += w.requests\n    return [n[w.url] for w in workers]", "http://w3:8000", "script", "the script's choice"},
		{"t = 0\n    l = []\n    for w in workers:\n        t += w.work\n        l += [t]\n    return l", "http://w3:8000", "script", "the script's choice"},
		{"return workers[request.turn % len(workers)] if request.tokens_known else None", "http://w3:8000", "script", "the script's choice"},
		{"return 3", "", "broken", "choose.star: choose returned a int: return one of the workers, a list of scores, choice(…) or None: the default policy decided"},
		{"return [1]", "", "broken", "choose.star: scores has 1 values for 4 workers: the default policy decided"},
		{"return [1, 2, float('nan'), 3]", "", "broken", "choose.star: the score of worker 2 is nan: it must be a number within ±1e12: the default policy decided"},
		{"return 1 // 0", "", "broken", "choose.star:2:14: floored division by zero: the default policy decided"},
		{"return fail('no luck')", "", "broken", "choose.star:2:16: no luck: the default policy decided"},
		{"x = {}\n    return x['y']", "", "broken", `choose.star:3:13: key "y" not in dict: the default policy decided`},
		{"state['x'] = 1", "", "broken", "choose.star:2:16: choose cannot change the state: change it in on_routed or on_finished: the default policy decided"},
	} {
		choice, list := choose(t, "def choose(request, workers):\n    "+c.body)
		if string(choice.Branch) != c.branch || choice.Reason != c.reason {
			t.Errorf("%s:\n%s: %s\nwant %s: %s", c.body, choice.Branch, choice.Reason, c.branch, c.reason)
		}
		if url := list[choice.Index].Worker.URL; c.url != "" && url != c.url {
			t.Errorf("%s: %s, want %s", c.body, url, c.url)
		}
	}
}

func TestScoresAndReasonsAreInTheExplanation(t *testing.T) {
	choice, list := choose(t, `
def choose(request, workers):
    return choice(scores=[w.match for w in workers], reasons=["%s has %d" % (w.url, w.match) for w in workers])
`)
	q := ask()
	if why := choice.Why(q, list, 1); why != "http://w1:8000 has 100" {
		t.Errorf("%q", why)
	}
	if list[3].Score != 300 || list[3].Terms[0] != 300 || choice.Index != 3 || !choice.Ranked {
		t.Errorf("%+v %+v", choice, list[3])
	}
}

func TestTheClientsWorkerStaysTheClients(t *testing.T) {
	q := ask()
	q.Target = "http://w1:8000"
	list := workers(4)
	if choice := build(t, "def choose(request, workers):\n    return choice(workers[0], reason='mine')").Choose(q, list); choice.Branch != policy.BranchDirect || list[choice.Index].Worker.URL != q.Target {
		t.Errorf("%+v", choice)
	}
}

// A mistake in a file names the place, and the policy is not made.
func TestAMistakeNamesLineAndColumn(t *testing.T) {
	for text, want := range map[string]string{
		"def choose(request, workers)\n  return 1\n":          "choose.star:2:1: got newline, want ':'",
		"def choose(request, workers):\n    return nothing\n": "choose.star:2:12: undefined: nothing",
		"x = 1\n":    "choose.star: there is no function choose(request, workers)",
		"choose = 1": "choose.star: choose is not a function",
		"def choose(request):\n    return None\n":                                        "choose.star:1:1: choose takes 2 parameters, not 1",
		"x = 1 // 0\ndef choose(a, b):\n    pass\n":                                      "choose.star:1:7: floored division by zero",
		"load('os.star', 'x')\n":                                                         "choose.star:1:1: load is not available: a script is one file",
		"def choose(a, b):\n    print(a)\n":                                              "choose.star:2:5: print is not available",
		"def choose(a, b):\n    while True:\n        pass\n":                             "choose.star:2:5: while is not available: use for, with range(n)",
		"def choose(a, b):\n    return b[0].address\n":                                   "choose.star:2:17: nothing has the attribute or method .address (known: ",
		"def choose(a, b):\n    return 'x'.format(1)\n":                                  "choose.star:2:16: there is no method .format (known: ",
		"def choose(a, b):\n    return max(*b)\n":                                        "choose.star:2:16: * and ** are not available in calls",
		"def choose(a, b):\n    return 1" + strings.Repeat("0", 200) + "\n":              "choose.star:2:12: a number has at most 256 bits",
		"x = " + strings.Repeat("(", 5000):                                               "choose.star:1:1: more than 100 brackets in each other",
		"x = " + strings.Repeat("-", 60000) + "1":                                        "choose.star:1:1: more than 100 brackets in each other, or signs in a row",
		strings.Repeat("#", 70000):                                                       "choose.star: more than 64 KiB",
		"def f(n):\n    return f(n)\nf(1)\ndef choose(a, b):\n    pass\n":                "choose.star:2:12: function f called recursively",
		"[x for a in range(10000) for x in range(10000)]\ndef choose(a, b):\n    pass\n": "choose.star:1:",
		"state['k'] = ['list']\ndef choose(a, b):\n    pass\n":                           "choose.star:1:12: the state keeps numbers, texts and tuples of these, not a list",
		"def choose(a, b):\n    return a.model.set\n":                                    "choose.star:2:20: nothing has the attribute",
		"def choose(a, b):\n    for b[0] in b:\n        pass\n":                          "choose.star:2:9: only variables can be set here",
	} {
		_, err := Text("mine", "choose.star", text, Default())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80q\n%v\nwant %s", text, err, want)
		}
	}
}

// hostile has scripts that want time or memory without end.
var hostile = map[string]string{
	"a long list":               "x = [0] * 10000000\n    x = [0] * 1000000000",
	"a long text":               "x = 'a' * 1000000000",
	"a list doubles":            "x = [0]\n    for i in range(60):\n        x = x + x",
	"a list doubles in place":   "x = [0]\n    for i in range(60):\n        x += x",
	"a text doubles":            "x = 'a'\n    for i in range(60):\n        x += x",
	"a text in a dict doubles":  "x = {1: 'a'}\n    for i in range(60):\n        x[1] += x[1]",
	"a text doubles by format":  "x = 'a'\n    for i in range(60):\n        x = '%s%s' % (x, x)",
	"a text doubles by join":    "x = 'a'\n    for i in range(60):\n        x = x.join([x, x, x])",
	"copies of a long text":     "x = 'a' * 100000\n    l = []\n    for i in range(10000):\n        l.append(x + 'b')",
	"copies of a list":          "x = [0] * 10000\n    l = []\n    for i in range(10000):\n        l.append(x[:])",
	"copies of keys":            "x = {i: i for i in range(10000)}\n    l = []\n    for i in range(10000):\n        l.append(x.keys())",
	"copies by list()":          "x = range(100000)\n    l = []\n    for i in range(10000):\n        l.append(list(x))",
	"copies by split":           "x = 'a ' * 50000\n    l = []\n    for i in range(10000):\n        l.append(x.split(' '))",
	"a whole number squares":    "x = 3\n    for i in range(60):\n        x = x * x",
	"a whole number shifts":     "x = 1 << 100000",
	"a whole number grows":      "x = 1 << 200\n    for i in range(60000):\n        x = x - (0 - x)",
	"a whole number from text":  "x = int('9' * 100000)",
	"a loop without an end":     "for a in range(100000):\n        for b in range(100000):\n            pass",
	"a range without an end":    "x = range(1000000000000)",
	"a comprehension":           "x = [1 for a in range(10000) for b in range(10000)]",
	"a search in a long range":  "for i in range(100000):\n        x = all(range(1, 100000))",
	"comparisons":               "x = [0] * 100000\n    y = [0] * 100000\n    for i in range(100000):\n        x == y",
	"lists in lists":            "x = [0] * 100\n    y = [0] * 100\n    for i in range(9):\n        x = [x] * 100\n        y = [y] * 100\n    x == y",
	"a list in itself":          "x = []\n    x.append(x)\n    y = []\n    y.append(y)\n    x == y",
	"sorted lists in lists":     "x = [0] * 100\n    for i in range(9):\n        x = [x] * 100\n    sorted([x, x])",
	"a key of tuples in tuples": "x = (1, 1)\n    for i in range(60):\n        x = (x, x)\n    d = {x: 1}",
	"tuples by items":           "x = (1, 1)\n    for i in range(60):\n        x = {x: x}.items()[0]",
	"tuples by zip":             "x = (1, 1)\n    for i in range(60):\n        x = zip([x], [x])[0]",
	"the text of lists":         "x = [0]\n    for i in range(60):\n        x = [x, x]\n    str(x)",
	"the format of lists":       "x = [0]\n    for i in range(60):\n        x = [x, x]\n    '%s' % x",
	"recursion":                 "choose(request, workers)",
	"recursion by lambda":       "f = lambda g: g(g)\n    f(f)",
	"a search in a text":        "x = 'a' * 1000000\n    for i in range(100000):\n        'aaaaaaaab' in x",
	"a long reason":             "return choice(workers[0], reason='a' * 5000000)",
}

// TestAHostileScriptEndsSoonWithBoundedMemory: each script fails, and the default policy decides. A call that fails
// takes less than a second even on a busy machine, and allocates less than 48 MB.
func TestAHostileScriptEndsSoonWithBoundedMemory(t *testing.T) {
	for name, body := range hostile {
		t.Run(name, func(t *testing.T) {
			p := build(t, "def choose(request, workers):\n    "+body+"\n    return workers[0]\n")
			list := workers(4)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			choice := p.Choose(ask(), list)
			took := time.Since(began)
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc
			t.Logf("%v, %d KB: %s", took.Round(time.Microsecond), allocated>>10, choice.Reason)
			if choice.Branch != policy.BranchBroken || !strings.HasPrefix(choice.Reason, "choose.star:") || choice.Index < 0 {
				t.Errorf("%+v", choice)
			}
			if took > time.Second || allocated > 48<<20 {
				t.Errorf("the call took %v and %d MB", took, allocated>>20)
			}
		})
	}
}

// TestOthersGoOnBesideAHostileScript: calls that fail leave nothing behind for calls that follow or run beside them.
func TestOthersGoOnBesideAHostileScript(t *testing.T) {
	p := build(t, `
def choose(request, workers):
    if request.tenant == "hostile":
        for a in range(100000):
            for b in range(100000):
                pass
    return workers[1]
`)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for n := range 20 {
				q, list := ask(), workers(4)
				if (i+n)%2 == 0 {
					q.Tenant = "hostile"
				}
				choice := p.Choose(q, list)
				if want := map[bool]policy.Branch{true: policy.BranchBroken, false: policy.BranchScript}[q.Tenant == "hostile"]; choice.Branch != want {
					t.Errorf("%s: %s %s", q.Tenant, choice.Branch, choice.Reason)
				}
			}
		})
	}
	wait.Wait()
}

const counting = `
state["limit"] = 3

def choose(request, workers):
    for w in workers:
        if state.get(w.url, 0) < state["limit"]:
            return w
    return None

def on_routed(request, worker):
    state[worker.url] = state.get(worker.url, 0) + 1

def on_finished(outcome):
    state[outcome.url] -= 1
    state["last"] = (outcome.result, outcome.seconds, outcome.first_token_seconds)
`

// TestCallbacksKeepState: no count is lost among callbacks that run at the same time, and a choice changes nothing.
func TestCallbacksKeepState(t *testing.T) {
	var failed sync.Map
	spec, err := Text("mine", "choose.star", strings.Replace(counting, "3", "1000", 1), Default())
	if err != nil {
		t.Fatal(err)
	}
	spec.Failed = func(call string, err error) { failed.Store(call, err) }
	p, err := policy.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	list := workers(4)
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			for range 100 {
				p.Routed(ask(), &list[0])
			}
		})
	}
	wait.Wait()
	at := func() string {
		list := workers(4)
		return list[p.Choose(ask(), list).Index].Worker.URL
	}
	for range 2 { // a choice changes nothing
		if got := at(); got != "http://w1:8000" {
			t.Errorf("%s after 1000 requests at w0", got)
		}
	}
	p.Finished(&policy.Finished{Holder: 0, Outcome: fleet.OutcomeServed, RoutedAt: 1e9, FirstTokenAt: 2e9, Now: 3e9})
	if at() != "http://w0:8000" {
		t.Errorf("%s after a request ended at w0", at())
	}
	p.Retire([]fleet.Holder{0})
	p.Finished(&policy.Finished{Holder: 0})
	if err, ok := failed.Load("on_finished"); !ok || !strings.Contains(fmt.Sprint(err), "choose.star:14:24: there is no key") {
		t.Errorf("the failure of on_finished: %v", err)
	}
}

func TestTheStateIsBounded(t *testing.T) {
	p := Default()
	p.StateEntries = 3
	spec, err := Text("mine", "choose.star", `
def fill():
    for i in range(1000):
        state["key %d" % i] = i
fill()

def choose(request, workers):
    return choice(workers[0], reason="%d %s %s" % (len(state.keys()), "key 999" in state, "key 0" in state))

def on_routed(request, worker):
    state["k" * 300] = 1
`, p)
	if err != nil {
		t.Fatal(err)
	}
	var failure error
	spec.Failed = func(_ string, err error) { failure = err }
	built, err := policy.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	list := workers(2)
	if why := built.Choose(ask(), list).Reason; why != "3 True False" {
		t.Error(why)
	}
	if built.Routed(ask(), &list[0]); failure == nil || !strings.Contains(failure.Error(), "a key of the state has at most 256 bytes") {
		t.Error(failure)
	}
}

// TestValidateReadsTheFileAgain: the parameters differ after the file has changed, so that a reload takes the new file.
func TestValidateReadsTheFileAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "choose.star")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("def choose(r, w):\n    return w[0]\n")
	kind, _ := Kinds().Find("script")
	p := kind.Defaults().(*Script)
	p.File = file
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	old := *p
	write("def choose(r, w):\n    return w[1]\n")
	if err := p.Validate(); err != nil || p.text == old.text {
		t.Fatal("the change was not seen", err)
	}
	write("def choose(r, w):\n    return w[1\n")
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "file: choose.star:3:1: ") {
		t.Fatal(err)
	}
	if spec, err := Kinds().Parse("script:file=" + file); err == nil {
		t.Fatal("a broken file was taken", spec.Name)
	}
}

func FuzzCompile(f *testing.F) {
	f.Add(counting)
	for _, body := range hostile {
		f.Add("def choose(request, workers):\n    " + body + "\n")
	}
	q := ask()
	f.Fuzz(func(t *testing.T, text string) {
		p := Default()
		p.MaxSteps = 1000
		spec, err := Text("mine", "choose.star", text, p)
		if err != nil {
			return
		}
		built, err := policy.Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		list := workers(3)
		if built.Choose(q, list).Index < 0 {
			t.Error("no worker")
		}
		built.Routed(q, &list[0])
		built.Finished(&policy.Finished{})
	})
}

// TestAttributesThatCountAsNumbersAreNumbers: the compiler leaves out checks for these attributes.
func TestAttributesThatCountAsNumbersAreNumbers(t *testing.T) {
	list := workers(1)
	for _, object := range []starlark.HasAttrs{&request{q: ask()}, &worker{q: ask(), c: &list[0]}, &outcome{f: &policy.Finished{}}} {
		for _, name := range object.AttrNames() {
			v, err := object.Attr(name)
			if err != nil || v == nil {
				t.Errorf("%s.%s: %v", object.Type(), name, err)
				continue
			}
			_, isInt := v.(starlark.Int)
			_, isFloat := v.(starlark.Float)
			if (isInt || isFloat) == notNumbers[name] {
				t.Errorf("%s.%s is a %s", object.Type(), name, v.Type())
			}
		}
	}
}
